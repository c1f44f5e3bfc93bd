"""Files, folders and streams without access: one error message, and a documented exit code."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import needed
from tests.support.gated_site import PAGES, SPIDER, gated_site
from tests.support.programs import environment, run_to_end

#: Far longer than any command here.
ENOUGH = 120
Crawlcw = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def crawlcw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Crawlcw:
    """Return a command that obeys file modes, also as root."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pages.py").write_text(SPIDER)
    bound: list[str] = []
    if os.geteuid() == 0:
        capabilities = "-dac_override,-dac_read_search"
        bound = [needed.program("setpriv"), f"--bounding-set={capabilities}"]

    def run(line: str, **options: object) -> "subprocess.CompletedProcess[str]":
        given = {"stdout": subprocess.PIPE, "env": environment()} | options
        return subprocess.run(
            [*bound, sys.executable, "-m", "crawlcw", *line.split()],
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=ENOUGH,
            check=False, **given,
        )  # type: ignore[call-overload]  # fmt: skip

    return run


@pytest.fixture
def site() -> Iterator[str]:
    with gated_site() as site:
        site.gate.set()
        yield site.url


@pytest.fixture(scope="module")
def ledger_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger whose crawl has ended."""
    folder = tmp_path_factory.mktemp("crawled")
    (folder / "pages.py").write_text(SPIDER)
    with gated_site() as site:
        site.gate.set()
        command = ["run", "pages.py", "-q", "-a", f"start_url={site.url}"]
        subprocess.run(
            [sys.executable, "-m", "crawlcw", *command, "--ledger", "sqlite:///ledger.db"],
            cwd=folder, stdin=subprocess.DEVNULL, env=environment(), timeout=ENOUGH, check=True,
        )  # fmt: skip
    assert [each.name for each in folder.glob("ledger.db*")] == ["ledger.db"]
    return folder / "ledger.db"


@pytest.fixture
def crawled(ledger_file: Path, tmp_path: Path) -> Path:
    """A folder with that ledger, and its spider."""
    folder = tmp_path / "ö"
    folder.mkdir()
    shutil.copy(ledger_file, folder)
    (folder / "pages.py").write_text(SPIDER)
    return folder


@pytest.fixture
def inaccessible_folder(crawled: Path) -> Iterator[Path]:
    """The same folder, without access."""
    crawled.chmod(0)
    yield crawled
    crawled.chmod(0o755)


@pytest.mark.thorough
@pytest.mark.representative("run pages.py", "78-\\xf6/ledger.db")
@pytest.mark.parametrize(
    ("line", "code", "names"),
    [
        ("stats pages --ledger sqlite:///ö/ledger.db", 78, "ö/ledger.db"),
        ("tasks pages --ledger sqlite:///ö/ledger.db", 78, "ö/ledger.db"),
        ("export pages -o x.jsonl --ledger sqlite:///ö/ledger.db", 78, "ö/ledger.db"),
        ("doctor pages --ledger sqlite:///ö/ledger.db", 78, "ö/ledger.db"),
        ("retry-failed pages --ledger sqlite:///ö/ledger.db", 78, "ö/ledger.db"),
        ("add pages http://127.0.0.1:9/ --ledger sqlite:///ö/ledger.db", 78, "ö/ledger.db"),
        ("run pages.py --ledger sqlite:///ö/ledger.db", 78, "ö/ledger.db"),
        ("run pages.py --ledger sqlite:///ö/new/ledger.db", 78, "ö/new/ledger.db"),
        ("run pages.py -o ö/items.jsonl", 2, "cannot write ö/items.jsonl"),
        ("run pages.py --log-file ö/log", 2, "ö/log"),
        ("run ö/pages.py", 2, "ö/pages.py"),
        ("check ö/pages.py", 2, "ö/pages.py"),
        ("fetch http://127.0.0.1:9/ --spider ö/pages.py", 2, "ö/pages.py"),
        ("work ö/orders.py", 2, "ö/orders.py"),
        ("add pages ö/urls.txt", 2, "ö/urls.txt"),
    ],
)
def test_what_is_in_a_folder_that_may_not_be_entered_is_named(
    line: str, code: int, names: str, inaccessible_folder: Path, crawlcw: Crawlcw
):
    done = crawlcw(line)

    assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
    assert names in done.stderr
    assert "crawlcw itself" not in done.stderr


@pytest.mark.thorough
@pytest.mark.representative("run pages")
@pytest.mark.parametrize("line", ["list", "run pages", "stats pages"])
def test_a_folder_of_spiders_that_may_not_be_read_is_named(
    line: str, crawlcw: Crawlcw, tmp_path: Path
):
    folder = tmp_path / "spiders"
    folder.mkdir(mode=0)
    try:
        done = crawlcw(line)
    finally:
        folder.chmod(0o755)

    assert done.returncode == 2, done.stderr
    assert "crawlcw itself" not in done.stderr
    assert line == "stats pages" or "./spiders cannot be read: Permission denied" in done.stderr


def test_a_folder_that_cannot_take_the_items_is_named(
    crawled: Path, crawlcw: Crawlcw, tmp_path: Path
):
    folder = tmp_path / "read-only"
    folder.mkdir(mode=0o555)
    done = crawlcw("export pages -o read-only/items.jsonl --ledger sqlite:///ö/ledger.db")

    why = f"{folder} is read-only, or this user has no write access to it"
    assert done.stderr == f"crawlcw: cannot write read-only/items.jsonl: {why}\n"
    assert done.returncode == 2


@pytest.mark.thorough
@pytest.mark.representative("run")
@pytest.mark.parametrize(
    "line", ["stats pages", "run {folder}/pages.py", "check {folder}/pages.py", "doctor pages"]
)
def test_a_working_directory_that_is_gone_is_named(line: str, crawlcw: Crawlcw, tmp_path: Path):
    gone = tmp_path / "gone"
    gone.mkdir()
    there = ["/bin/sh", "-c", f'cd {gone} && rmdir {gone} && exec "$@"', "sh"]
    given = line.format(folder=tmp_path).split()
    done = run_to_end([*there, sys.executable, "-m", "crawlcw", *given], within=ENOUGH)

    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "the working directory is gone" in done.stderr


@pytest.mark.thorough
@pytest.mark.representative("[stats pages]")
@pytest.mark.parametrize(
    "line",
    [
        "stats pages",
        "stats pages --json",
        "tasks pages",
        "hosts pages",
        "doctor pages",
        "export pages -o -",
        "export pages -o /dev/full",
        "run pages.py -a start_url={site}",
        "settings",
        "--help",
        "guide commands",
    ],
)
def test_output_that_has_no_room_is_one_sentence(
    line: str, site: str, crawled: Path, crawlcw: Crawlcw
):
    ours = environment() | {"CRAWLCW_LEDGER": "sqlite:///ö/ledger.db"}
    with Path("/dev/full").open("wb") as full:
        done = crawlcw(line.format(site=site), stdout=full, env=ours)

    *_, last = done.stderr.splitlines()
    assert done.returncode == 2, done.stderr
    assert last in (
        "crawlcw: the output cannot be written: No space left on device",
        "crawlcw: cannot write stdout: No space left on device",
        "crawlcw: cannot write /dev/full: No space left on device",
    )
    assert "Exception" not in done.stderr


@pytest.fixture(
    params=[
        pytest.param("file", marks=pytest.mark.thorough),
        pytest.param("folder", marks=pytest.mark.thorough),
        "both",
    ]
)
def read_only_ledger(request: pytest.FixtureRequest, crawled: Path) -> Iterator[Path]:
    """A read-only copy of the ledger, without WAL files."""
    assert [each.name for each in crawled.glob("ledger.db*")] == ["ledger.db"]
    ledger = crawled / "ledger.db"
    if request.param in ("file", "both"):
        ledger.chmod(0o444)
    if request.param in ("folder", "both"):
        crawled.chmod(0o555)
    yield ledger
    crawled.chmod(0o755)


def unchanged_by(line: str, ledger: Path, crawlcw: Crawlcw) -> "subprocess.CompletedProcess[str]":
    """Run a command; assert that the ledger and its folder stay as they were."""
    before = ledger.read_bytes()

    done = crawlcw(f"{line} --ledger sqlite:///ö/ledger.db")

    assert [each.name for each in ledger.parent.glob("ledger.db*")] == ["ledger.db"]
    assert ledger.read_bytes() == before
    return done


@pytest.mark.thorough
@pytest.mark.representative("both", "export")
@pytest.mark.parametrize(
    "line",
    [
        "stats pages",
        "stats pages --json",
        "tasks pages",
        "tasks pages --status finished",
        "hosts pages",
        "export pages -o -",
    ],
)
def test_a_ledger_that_is_read_only_can_be_looked_at(
    line: str, read_only_ledger: Path, crawlcw: Crawlcw
):
    done = unchanged_by(line, read_only_ledger, crawlcw)

    assert done.returncode == 0, done.stderr
    if "export" in line:
        assert done.stdout.count("\n") == PAGES + 2


@pytest.mark.thorough
@pytest.mark.representative("both", "run")
@pytest.mark.parametrize(
    "line",
    [
        "retry-failed pages",
        "reset pages --all --yes",
        "add pages http://127.0.0.1:9/",
        "pause pages",
        "drop pages --yes",
        "run pages.py",
    ],
)
def test_what_changes_a_ledger_that_is_read_only_says_why_it_cannot(
    line: str, read_only_ledger: Path, crawlcw: Crawlcw
):
    done = unchanged_by(line, read_only_ledger, crawlcw)

    assert done.returncode == 78, done.stderr
    assert "is read-only: to change it, give this user write access" in done.stderr
