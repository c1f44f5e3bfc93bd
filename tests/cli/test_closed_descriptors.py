"""Commands with closed standard descriptors: each behaves as with /dev/null."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gated_site import PAGES, SPIDER, gated_site
from tests.support.programs import run_to_end

#: A spider that prints.
PRINTING = SPIDER.replace("        yield {", '        print("a page")\n        yield {')
CLOSED = ("<&-", ">&-", "2>&-", "<&- >&- 2>&-")
#: Far longer than any command here.
ENOUGH = 120


def crawlcw(closed: str, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a command with some descriptors closed, as a shell can."""
    return run_to_end(
        ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "crawlcw", *arguments],
        folder=folder,
        within=ENOUGH,
    )


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with gated_site() as site:
        site.gate.set()
        yield site.url


@pytest.fixture(scope="module")
def crawled(site: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a crawl that has ended."""
    folder = tmp_path_factory.mktemp("crawled")
    (folder / "pages.py").write_text(PRINTING)
    run = crawlcw("", folder, "run", "pages.py", "-a", f"start_url={site}", "-q")
    assert run.returncode == 0, run.stderr
    return folder


def run(site: str, *options: str) -> list[str]:
    return ["run", "pages.py", "-a", f"start_url={site}", "--log-file", "log", *options]


@pytest.mark.thorough
@pytest.mark.representative("1-", "<&-]")
@pytest.mark.parametrize("closed", CLOSED)
@pytest.mark.parametrize("options", [["--processes", "1"], ["--processes", "0"]], ids=["1", "0"])
def test_a_crawl_goes_on_as_with_dev_null(
    closed: str, options: list[str], site: str, tmp_path: Path
):
    (tmp_path / "pages.py").write_text(PRINTING)

    done = crawlcw(closed, tmp_path, *run(site, *options, "-o", "items.jsonl"))

    log = (tmp_path / "log").read_text()
    assert done.returncode == 0, log
    assert (tmp_path / "items.jsonl").read_text().count("\n") == PAGES + 2
    assert "crashed" not in log
    if closed == "<&-":
        assert done.stdout.count("a page\n") == PAGES + 2


@pytest.mark.thorough
@pytest.mark.representative("<&-]")
@pytest.mark.parametrize(
    "command",
    [
        "stats pages",
        "tasks pages",
        "doctor pages",
        "export pages -o -",
        "export pages -o items.jsonl",
        "hosts pages",
        "check pages.py",
        "settings",
        "--help",
    ],
)
@pytest.mark.parametrize("closed", CLOSED)
def test_a_command_writes_the_same_where_it_still_can(command: str, closed: str, crawled: Path):
    usual = crawlcw("", crawled, *command.split())

    done = crawlcw(closed, crawled, *command.split())

    assert done.returncode == usual.returncode == 0, done.stderr
    assert done.stdout == ("" if ">&-" in closed.split() else usual.stdout)
    assert done.stderr == ("" if "2>&-" in closed else usual.stderr)


@pytest.mark.parametrize("closed", ["2>&-", ">&-"])
def test_an_error_is_told_where_it_can_be(closed: str, tmp_path: Path):
    done = crawlcw(closed, tmp_path, "run", "nowhere.py")

    assert done.returncode == 2
    assert done.stderr == ("" if "2" in closed else "crawlcw: there is no file nowhere.py\n")
