"""Whole crawls of faulty webs in virtual time.

The crawl and the SQLite ledger are real; time and the web are simulated. For every
seed, every good page is finished, every bad page ends for its own reason after its
own attempts, only dead hosts are given up, and the crawl ends. The tests fail
without any one of the protections.
"""

import random
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from crawlcw import Reason, Request, Response, Settings, Spider
from crawlcw.assembly import assemble
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.counters import Report
from crawlcw.model.task import Record, Status
from tests.blame.virtual import TooLongError, VirtualClock, run, virtual
from tests.blame.world import DEAD, ENDS, Health, Kind, Page, Site, Web, World, made

pytestmark = pytest.mark.thorough

#: Crawls for each of the ten tests: a few in CI, and thousands in all with `--soak`.
SEEDS = 3
SOAK_SEEDS = 300
#: Enough for many pages that request the longest rest three times, and an outage.
LONGEST = timedelta(hours=2)


class Everything(Spider):
    name = "everything"
    allowed_hosts = ("*",)

    def __init__(self, urls: dict[str, int]) -> None:
        self.urls = urls

    async def start(self) -> AsyncIterator[Request]:
        for url, priority in self.urls.items():
            yield Request(url, priority=priority)

    def parse(self, response: Response) -> Iterator[Any]:
        if response.url.endswith(Kind.RAISING):
            raise ValueError("a bug")
        yield {"url": response.url}


@dataclass(frozen=True)
class Ended:
    report: Report
    given_up: dict[str, str]
    records: dict[str, Record]
    items: list[str]
    asked: dict[str, int]
    resolved: dict[str, float]


async def crawl(world: World, clock: VirtualClock, path: Path) -> Ended:
    ledger = await SqliteLedger.open(path, "everything", clock=clock.ledger_now)
    web = Web(world, clock)
    spider = Everything({page.url: page.priority for _, page in world.pages})
    settings = Settings(
        concurrency=world.concurrency,
        per_host_concurrency=world.per_host,
        obey_robots=world.obey_robots,
        cookies=world.cookies,
        backoff_base="1s",
        host_backoff_base="2s",
        host_backoff_max="1m",
        lease="10m",
    )
    try:
        running = assemble(spider, ledger, web, settings)
        report = await running.run()
        records = {}
        for _, page in world.pages:
            record = await ledger.tasks.get(Request(page.url).identity()[1])
            assert record is not None
            records[page.url] = record
        return Ended(
            report=report,
            given_up=dict(running.stats.hosts_given_up),
            records=records,
            items=[row.item["url"] async for row in ledger.queries.items()],
            asked=web.asked,
            resolved=web.resolved,
        )
    finally:
        await ledger.close()


def complaint(world: World, ended: Ended) -> Iterator[str]:
    """Yield the differences from the expected end."""
    for origin in ended.given_up:
        scheme, _, name = origin.partition("://")
        if _is_unknown(world.sites[name], ended.resolved):
            continue
        health = world.sites[name].health.get(scheme, Health.REFUSED)
        if health not in DEAD and health is not Health.STOPS:
            yield f"{origin} was given up, and is {health}"
    for site, page in world.pages:
        task = ended.records[page.url].task
        got = f"{page.url} is {task.status.name}, {task.reason}, {task.retry} attempts"
        is_lost = task.status is Status.IGNORED and task.reason is Reason.DNS_NXDOMAIN
        if is_lost and _is_unknown(site, ended.resolved):
            continue
        if not _as_expected(world, site, page, ended.records[page.url]):
            yield got
        if task.status is Status.FINISHED and task.lock:
            yield f"{got}, and still held"
    if len(set(ended.items)) != len(ended.items):
        yield "an item was recorded twice"


def _is_unknown(site: Site, resolved: dict[str, float]) -> bool:
    """Return whether a name lost its address before the crawl ever resolved it."""
    return any(begin <= resolved.get(site.name, begin) for begin, _ in site.unnamed)


def _as_expected(world: World, site: Site, page: Page, record: Record) -> bool:
    task = record.task
    health = site.health[page.url.partition(":")[0]]
    lost = task.status is Status.IGNORED and task.retry == 0
    if health is Health.NAMELESS:
        return lost and task.reason is Reason.DNS_NXDOMAIN
    if health in DEAD:
        return lost and task.reason is Reason.HOST_UNREACHABLE
    if health is Health.STOPS and task.reason is Reason.HOST_UNREACHABLE:
        return task.status is Status.IGNORED
    if page.kind in (Kind.TO_DEAD, Kind.TO_TLS):
        if not world.cookies:
            return task.status is Status.FINISHED  # the target is a task of its own
        reason, costs = (Reason.CONNECT, 3) if page.kind is Kind.TO_DEAD else (Reason.TLS, 1)
        if world.obey_robots:
            reason, costs = Reason.ROBOTS_UNAVAILABLE, 3
    else:
        reason, costs = ENDS[page.kind]
    # A rate limit may cost any page further attempts.
    as_many = costs <= task.retry <= max(costs, 3) if site.least_gap else task.retry == costs
    if reason is None:
        return task.status is Status.FINISHED and as_many and task.retry < 3
    reasons = {reason}
    if site.least_gap and costs > 1:
        # The reason is that of the last attempt, which may have come too early.
        reasons.add(Reason.HTTP_STATUS)
    return task.status is Status.IGNORED and task.reason in reasons and as_many


def failure(
    seed: int, monkeypatch: pytest.MonkeyPatch, *, within: timedelta = LONGEST
) -> str | None:
    """Return the faults of the crawl of a seed, or None."""
    world = made(seed)
    random.seed(seed)
    with tempfile.TemporaryDirectory() as folder, virtual(monkeypatch) as clock:
        try:
            path = Path(folder) / "ledger.db"
            ended = run(clock, crawl(world, clock, path), within=within)
        except TooLongError:
            return f"seed {seed}: the crawl does not end"
        wrong = [*complaint(world, ended)]
        return f"seed {seed}, after {clock.elapsed:.0f} s:\n" + "\n".join(wrong) if wrong else None


@pytest.mark.representative("[0]")
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("tenth", range(10))
def test_everything_ends_as_it_should(
    tenth: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
):
    number = SOAK_SEEDS if request.config.getoption("--soak") else SEEDS
    for seed in range(tenth * number, (tenth + 1) * number):
        assert failure(seed, monkeypatch) is None


def asked_for_a_throttled_page(monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the number of requests for an urgent page that is always throttled."""
    name = "h0.example"
    site = Site(name, {"http": Health.WELL})
    # It comes first, so no answered page can show yet that the host is well.
    urgent = Page(f"http://{name}/throttled", Kind.THROTTLED, 5)
    others = [Page(f"http://{name}/{n}-good", Kind.GOOD, 0) for n in range(9)]
    site.pages += [urgent, *others]
    world = World({name: site}, [], concurrency=2, per_host=1, obey_robots=False, cookies=False)
    with tempfile.TemporaryDirectory() as folder, virtual(monkeypatch) as clock:
        ended = run(clock, crawl(world, clock, Path(folder) / "ledger.db"), within=LONGEST)
    assert [*complaint(world, ended)] == []
    return ended.asked[urgent.url]


def test_a_throttled_page_waits_behind_the_others_however_urgent_it_is(
    monkeypatch: pytest.MonkeyPatch,
):
    """The first throttling counts for the host, which has a delay from then on.

    After the second one, another page is requested behind that delay. From then on, each
    throttling costs the page an attempt.
    """
    assert asked_for_a_throttled_page(monkeypatch) == 1 + 1 + 3


def test_an_origin_that_rests_is_not_asked_for_its_robots_txt(monkeypatch: pytest.MonkeyPatch):
    """The other origin of the host has answered all of its pages, so the host does not rest."""
    random.seed(0)
    with tempfile.TemporaryDirectory() as folder, virtual(monkeypatch) as clock:
        ended = run(clock, crawl(made(70126), clock, Path(folder) / "ledger.db"), within=LONGEST)

    # Requests to other hosts only probe the network.
    assert ended.asked["https://h4.example/robots.txt"] < 50


#: Seeds that failed once: hosts with rate limits and with pages that are always throttled, on
#: one origin or both, and a network that goes away right after a successful probe.
ONCE_BAD = (0, 4, 5, 45, 69, 70008, 70021, 70027, 70050, 70151, 70239)


@pytest.mark.parametrize("seed", ONCE_BAD)
def test_what_failed_once_ends_as_it_should(seed: int, monkeypatch: pytest.MonkeyPatch):
    assert failure(seed, monkeypatch) is None
