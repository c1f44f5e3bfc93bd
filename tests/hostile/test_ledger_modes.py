"""File modes of an embedded ledger, which holds the headers and forms of requests."""

import logging
import os
import stat
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from crawlcw.ledger.sqlite import SqliteLedger


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    """Make files readable for all users unless the code sets a mode."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_what_is_made_is_for_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "ledger.db"

    ledger = await SqliteLedger.open(path, "books")
    modes = {each.name: mode(each) for each in path.parent.iterdir()}
    await ledger.close()

    assert modes == {"ledger.db": 0o600, "ledger.db-wal": 0o600, "ledger.db-shm": 0o600}
    assert (mode(tmp_path / "a"), mode(tmp_path / "a" / "b")) == (0o700, 0o700)


async def test_a_folder_that_was_there_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)

    ledger = await SqliteLedger.open(tmp_path / "ledger.db", "books")
    await ledger.close()

    assert mode(tmp_path) == 0o755
    assert mode(tmp_path / "ledger.db") == 0o600


async def test_a_file_behind_a_link_is_private_as_well(tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "ledger.db")

    ledger = await SqliteLedger.open(link, "books")
    await ledger.close()

    assert mode(tmp_path / "ledger.db") == 0o600


async def test_an_older_file_is_taken_from_other_users_and_the_log_tells(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "ledger.db"
    older = await SqliteLedger.open(path, "books")
    for each in tmp_path.iterdir():
        each.chmod(0o644)

    for _ in range(2):
        ledger = await SqliteLedger.open(path, "books")
        await ledger.close()
    modes = {mode(each) for each in tmp_path.iterdir()}
    await older.close()

    assert modes == {0o600}
    told = [record.getMessage() for record in caplog.records]
    assert told == [f"every user could read the ledger {path} (mode 644): now only its owner can"]


@pytest.mark.parametrize(
    ("again", "before"),
    [
        pytest.param(SqliteLedger.open, 0o640, id="a file that is shared with a group"),
        pytest.param(
            SqliteLedger.open_existing, 0o644, id="any file of which a command only reads"
        ),
    ],
)
async def test_a_mode_stays(
    again: Callable[..., Awaitable[SqliteLedger]], before: int, tmp_path: Path
) -> None:
    path = tmp_path / "ledger.db"
    await (await SqliteLedger.open(path, "books")).close()
    path.chmod(before)

    await (await again(path, "books")).close()

    assert mode(path) == before
