"""Pages of a host that is given up: the spider hears of each one."""

from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from crawlcw.model.task import Status
from tests.blame.code_site import crawled, running
from tests.blame.test_ends import HASTY, Site, dead_url, spider
from tests.support.crawl_process import Store, wait_until

pytestmark = pytest.mark.thorough

PAGES = 3000


def telling(url: str, calls: Path) -> str:
    """Return a spider that logs each call of `on_error`, and yields an item for it."""
    return f"""
from crawlcw import Request, Spider

class Pages(Spider):
    name = "pages"
    start_urls = [{url!r}]

    async def start(self):
        for n in range({PAGES}):
            yield Request(f"{url}{{n}}")

    def parse(self, response):
        pass

    def on_error(self, request, error):
        with open({str(calls)!r}, "a") as calls:
            print(request.url, error.reason, file=calls)
        yield {{"lost": request.url}}
"""


@pytest.mark.representative("sqlite-0")
@pytest.mark.parametrize("processes", [0, 2])
def test_each_page_is_told_although_the_crawl_is_killed_meanwhile(
    ledger_url: str, tmp_path: Path, processes: int
):
    calls = tmp_path / "calls"
    with dead_url() as dead:
        code = telling(dead, calls)
        options = ("--processes", processes, *HASTY)
        with running(tmp_path, code, ledger_url, *options) as command:
            wait_until(lambda: calls.exists() and len(calls.read_text().splitlines()) > 300)
            command.kill_all()
        before = calls.read_text().splitlines()
        assert len(before) < PAGES, "the kill came too late"

        _, report, command = crawled(tmp_path, code, ledger_url, *options)

    rows = Store(ledger_url, "pages").rows()
    assert Counter((row.status, row.reason, row.items) for row in rows) == {
        (Status.IGNORED, "host-unreachable", 1): PAGES
    }, command.log
    told = Counter(calls.read_text().splitlines())
    assert told.keys() == {f"{dead}{n} host-unreachable" for n in range(PAGES)}
    # Calls that were under way at the kill are repeated.
    assert told.total() <= PAGES + 500
    assert report["finish_reason"] == "drained"


def test_pages_that_no_method_is_called_for_are_ignored_all_at_once(
    ledger_url: str, tmp_path: Path
):
    with dead_url() as dead:
        code = telling(dead, tmp_path / "calls").replace("def on_error", "def unused")
        _, report, command = crawled(tmp_path, code, ledger_url, *HASTY)

    assert (report["given_up"], report["failures"]) == (PAGES, {}), command.log
    assert report["counts"]["ignored"] == PAGES


@pytest.mark.parametrize("obeys", [True, False], ids=["robots", "no-robots"])
@pytest.mark.parametrize("ports", [1, 3])
def test_ports_that_refuse_are_given_up_in_seconds_where_nothing_else_is_left(
    ledger_url: str, tmp_path: Path, ports: int, obeys: bool
):
    with ExitStack() as taken:
        dead = [taken.enter_context(dead_url()) for _ in range(ports)]
        options = ("-s", f"obey_robots={obeys}")
        code, report, command = crawled(tmp_path, spider(*dead), ledger_url, *options)

    assert (code, report["finish_reason"], report["given_up"]) == (3, "drained", ports), command.log
    assert report["host_failures"].popitem()[1] == 5 * ports, (
        "the same number of failures as for other hosts"
    )
    # With the usual rests, it would be 150 s.
    assert 7.5 <= report["elapsed"] < 60, command.log


def test_a_port_that_takes_connections_again_loses_no_page(ledger_url: str, tmp_path: Path):
    with ExitStack() as ended:
        with dead_url() as url:
            pages = [f"{url}{n}" for n in range(10)]
            command = ended.enter_context(running(tmp_path, spider(*pages), ledger_url))
            wait_until(lambda: len(command.records("host_failed")) >= 2)
        port = int(url.rpartition(":")[2].strip("/"))
        site = ended.enter_context(Site(port=port))
        code, report = command.end()

    assert (code, report["pages"], report["given_up"]) == (0, 10, 0), command.log
    assert site.asked >= 10
