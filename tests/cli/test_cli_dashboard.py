"""`crawlcw dashboard` as a command: its refusals in one sentence, and its end."""

import signal
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.commands import invoke
from tests.support.ledgers import url_of_one_task
from tests.support.servers import ServerProcess


@pytest.fixture
async def url(tmp_path: Path) -> str:
    return await url_of_one_task(tmp_path)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("nothing",), "nothing is recorded for a spider or use case named 'nothing'"),
        (("--host", "0.0.0.0"), "other machines can reach 0.0.0.0: set a token by --token-file"),
        (("--token-file", "/nowhere/token"), "the token cannot be read from /nowhere/token"),
        (("--port", "70000"), "write a whole number 0 to 65535, not '70000'"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_said_in_one_line(url: str, options: tuple[str, ...], sentence: str):
    done = invoke("dashboard", "--ledger", url, "--port", "0", *options)

    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_ledger_that_is_not_there_is_named(tmp_path: Path):
    done = invoke("dashboard", "--ledger", f"sqlite:///{tmp_path}/none.db")

    assert done.returncode == 2
    assert "there is no ledger at" in done.stderr


def test_it_says_where_it_is_and_ends_softly(url: str, processes: ExitStack):
    server = ServerProcess(processes, url, "--port", "0", use_case="books", command="dashboard")
    line = server.ready()

    assert line == f"the dashboard is at {server.address}\n"
    with urllib.request.urlopen(f"{server.address}/api/start") as response:
        assert b'"crawls":["books"]' in response.read()
    # An open stream does not delay the end.
    live = urllib.request.urlopen(f"{server.address}/api/crawls/books/live")
    assert live.readline() == b"event: overview\n"
    assert server.stop(signal.SIGTERM) == (0, "", "")
    live.close()
