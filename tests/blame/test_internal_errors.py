"""Internal errors of crawlcw: they end no page, and the crawl reports them, on both ledgers.

The spider's file puts the error into a method of crawlcw that handles each good answer.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest

from crawlcw.model.task import Status
from tests.blame.code_site import Site, crawled
from tests.faults.scenario import examined
from tests.support.crawl_process import Row, Store
from tests.support.work_process import crawlcw

pytestmark = pytest.mark.thorough

INTERNAL = 70
PAGES = 12
BROKEN = ("/3", "/7")

SPIDER = """
from pathlib import Path
from urllib.parse import urlsplit

from crawlcw import Spider
from crawlcw.crawl import outcomes

BROKEN, TIMES = {broken!r}, {times!r}
original = outcomes.Outcomes.answered

def answered(self, attempt, response):
    path = urlsplit(attempt.request.url).path
    mark = Path(__file__).with_name(f"raised-{{path[1:]}}")
    raised = len(mark.read_text()) if mark.exists() else 0
    if path in BROKEN and raised < TIMES:
        mark.write_text("x" * (raised + 1))
        raise TypeError("cannot pickle \\x1b[31m")
    return original(self, attempt, response)

outcomes.Outcomes.answered = answered

class Pages(Spider):
    name = "pages"
    start_urls = [{start!r}]

    def parse(self, response):
        yield {{"path": urlsplit(response.url).path}}
        yield from response.follow_all("a")
"""


def by_path(rows: Sequence[Row]) -> dict[str, Row]:
    return {row.path: row for row in rows}


@pytest.mark.representative("sqlite-1")
@pytest.mark.parametrize("processes", [0, 1, 2])
def test_an_error_of_crawlcw_itself_ends_no_page_and_the_crawl_says_where(
    processes: int, ledger_url: str, tmp_path: Path
):
    store = Store(ledger_url, "pages")
    with Site(PAGES) as site:
        code = SPIDER.format(start=site.url, broken=BROKEN, times=10**6)
        ended, report, command = crawled(tmp_path, code, ledger_url, "--processes", processes)
        rows = by_path(store.rows())

        assert (ended, report["finish_reason"]) == (INTERNAL, "internal-error"), command.log
        assert report["failures"] == {}
        assert report["pages"] == 1 + PAGES - len(BROKEN)
        assert report["internal_errors"] >= 3 * len(BROKEN)
        assert "keeps 2 pages unfinished: TypeError: cannot pickle" in report["faults"]
        left = {path: row for path, row in rows.items() if row.status != Status.FINISHED}
        assert left.keys() == {*BROKEN}
        for row in left.values():
            assert (row.status, row.retry, row.lock, row.reason) == (Status.TODO, 0, None, None)
        assert all(site.hits[path] <= 8 for path in BROKEN), "it does not retry without a pause"
        said = [record["message"] for record in command.records("internal")]
        assert said
        assert all("TypeError: cannot pickle" in each for each in said)
        assert not any("\x1b" in each for each in said)
        assert all("crawlcw.crawl.fetcher:" in each for each in said), said
        assert examined(store.url, "pages").is_clean

        # After the mend, the next run does the rest.
        mended = SPIDER.format(start=site.url, broken=(), times=0)
        again, done, other = crawled(tmp_path, mended, ledger_url, "--processes", processes)

    assert (again, done["finish_reason"], done["pages"]) == (0, "drained", 2), other.log
    assert {row.status for row in store.rows()} == {Status.FINISHED}


def test_an_error_of_crawlcw_itself_that_passes_costs_no_page(ledger_url: str, tmp_path: Path):
    store = Store(ledger_url, "pages")
    with Site(PAGES) as site:
        code = SPIDER.format(start=site.url, broken=BROKEN, times=1)
        ended, report, command = crawled(tmp_path, code, ledger_url)

    assert (ended, report["finish_reason"]) == (INTERNAL, "drained"), command.log
    assert (report["pages"], report["internal_errors"]) == (1 + PAGES, len(BROKEN))
    assert report["faults"] == "crawlcw itself has raised 2 errors (the log names the place)"
    assert {(row.status, row.retry) for row in store.rows()} == {(Status.FINISHED, 0)}


def test_a_crawl_with_such_an_error_on_every_page_ends(ledger_url: str, tmp_path: Path):
    paths = ("/", *(f"/{number}" for number in range(PAGES)))
    with Site(PAGES) as site:
        code = SPIDER.format(start=site.url, broken=paths, times=10**6)
        ended, report, command = crawled(tmp_path, code, ledger_url)

    assert (ended, report["finish_reason"], report["pages"]) == (INTERNAL, "internal-error", 0)
    assert report["counts"]["todo"] == 1, command.log


def test_the_last_line_says_that_it_was_crawlcw_itself(tmp_path: Path):
    with Site(PAGES) as site:
        code = SPIDER.format(start=site.url, broken=BROKEN, times=10**6)
        (tmp_path / "spider.py").write_text(code)
        run = crawlcw("run", tmp_path / "spider.py", "--ledger", f"sqlite:///{tmp_path}/l.db")

    assert run.returncode == INTERNAL
    last = run.stdout.splitlines()[-1]
    assert "a bug in crawlcw keeps 2 pages unfinished" in last
    assert "\x1b" not in run.stdout + run.stderr
