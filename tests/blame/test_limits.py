"""Whole crawls, in virtual time, of hosts with a rate limit, and of hosts that seem to have one.

`tests.crawl.test_fairness` has one of them with real sockets, which takes minutes. The number of
refusals is counted here: on a busy machine, it depends on the time at which a request arrives.
"""

import asyncio
import random
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from crawlcw import Request, Response, Settings, Spider
from crawlcw.assembly import assemble
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.task import Status
from tests.blame.virtual import VirtualClock, run, virtual

pytestmark = pytest.mark.thorough

PAGES = 260
LINKS = 20
#: Of an overloaded host: now and then, an answer takes several times as long.
IRREGULAR = (0.02, 0.1, 0.1, 0.1, 0.4)


class Pages(Spider):
    name = "pages"
    start_urls = ("http://h.example/0",)

    def parse(self, response: Response) -> Iterator[Any]:
        yield from response.follow_all("a[href]")


class Site:
    """The downloader of one host; *refuses* gets the number of a page and the time.

    Each answer takes one of the *latencies*.
    """

    def __init__(
        self,
        clock: VirtualClock,
        *,
        latencies: Sequence[float],
        retry_after: str | None,
        refuses: Callable[[int, float], bool],
        pages: int = PAGES,
    ) -> None:
        self._clock = clock
        self._pages = pages
        self._latencies = latencies
        self._headers = {} if retry_after is None else {"Retry-After": retry_after}
        self._refuses = refuses
        self.asked = 0
        self.refused = 0

    async def fetch(self, request: Request, *, url: str) -> Response:
        name = url.rpartition("/")[2]
        number = int(name) if name.isdigit() else 0
        refused = self._refuses(number, self._clock.elapsed)
        self.asked += 1
        self.refused += refused
        latency = random.choice(self._latencies)
        await asyncio.sleep(latency)
        if refused:
            return Response(url, request=request, status=429, headers=self._headers)
        if name == "robots.txt":
            return Response(url, request=request, status=404)
        first = LINKS * number + 1
        links = [f'<a href="/{n}">{n}</a>' for n in range(first, min(first + LINKS, self._pages))]
        return Response(
            url,
            request=request,
            status=200,
            headers={"Content-Type": "text/html"},
            body="".join(links).encode(),
            elapsed=timedelta(seconds=latency),
        )

    async def close(self) -> None:
        pass


def most(requests: int, *, within: float) -> Callable[[int, float], bool]:
    """Refuse more than *requests* requests in any *within* seconds."""
    answered: deque[float] = deque()

    def refuses(_number: int, now: float) -> bool:
        while answered and answered[0] <= now - within:
            answered.popleft()
        if len(answered) >= requests:
            return True
        answered.append(now)
        return False

    return refuses


def crawled(
    monkeypatch: pytest.MonkeyPatch,
    *,
    latencies: Sequence[float],
    retry_after: str | None,
    refuses: Callable[[int, float], bool],
    seed: int = 0,
    obey_robots: bool = False,
    pages: int = PAGES,
) -> tuple[Site, dict[Status, int], float]:
    """Crawl a host; return the host, the number of pages by status, and the seconds."""

    async def crawl(path: Path) -> dict[Status, int]:
        ledger = await SqliteLedger.open(path, Pages.name, clock=clock.ledger_now)
        try:
            await assemble(Pages(), ledger, site, Settings(obey_robots=obey_robots)).run()
            counts = await ledger.queries.counts()
            return {status: count for status, count in counts.by_status.items() if count}
        finally:
            await ledger.close()

    random.seed(seed)
    with tempfile.TemporaryDirectory() as folder, virtual(monkeypatch) as clock:
        site = Site(
            clock, latencies=latencies, retry_after=retry_after, refuses=refuses, pages=pages
        )
        ended = run(clock, crawl(Path(folder) / "ledger.db"), within=timedelta(hours=10))
        return site, ended, clock.elapsed


@pytest.mark.representative("0.1")
@pytest.mark.parametrize("latency", [0.02, 0.1, 0.5, 0.8])
def test_a_host_that_limits_its_requests_refuses_at_most_a_fiftieth(
    latency: float, monkeypatch: pytest.MonkeyPatch
):
    # Three to five refusals teach the limit: with 260 pages, one more or less decides.
    pages = 400
    site, ended, _ = crawled(
        monkeypatch,
        latencies=[latency],
        retry_after="3",
        refuses=most(20, within=10.0),
        pages=pages,
    )

    print(f"{site.refused} of {site.asked} refused")
    assert ended == {Status.FINISHED: pages}
    assert site.refused <= 0.02 * site.asked


def test_a_host_that_limits_its_requests_and_is_slow_at_times_refuses_as_few(
    monkeypatch: pytest.MonkeyPatch,
):
    refused = asked = 0
    for seed in range(20):
        site, ended, _ = crawled(
            monkeypatch,
            latencies=IRREGULAR,
            retry_after="3",
            refuses=most(20, within=10.0),
            seed=seed,
            obey_robots=True,
        )
        refused, asked = refused + site.refused, asked + site.asked
        assert ended == {Status.FINISHED: PAGES}

    print(f"{refused} of {asked} refused")
    assert refused <= 0.02 * asked


@pytest.mark.representative("3")
@pytest.mark.parametrize("retry_after", [None, "3"])
def test_pages_that_are_always_refused_cost_the_others_no_time(
    retry_after: str | None, monkeypatch: pytest.MonkeyPatch
):
    """A seventh of all pages; a delay that grew with each refusal would take over four hours."""
    site, ended, seconds = crawled(
        monkeypatch, latencies=[0.05], retry_after=retry_after, refuses=lambda n, _: n % 7 == 6
    )

    print(f"{site.refused} of {site.asked} refused, {seconds:.0f} s")
    assert set(ended) == {Status.FINISHED, Status.IGNORED}
    assert seconds < 60
