"""Politeness and fairness of several processes, measured by the crawled hosts.

Each crawl is any number of processes on one ledger. The assertions about hosts
and times use the log of the crawled server, see `tests.support.many_hosts`.
Each test prints its measurements.
"""

import asyncio
import itertools
import signal
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from crawlcw import Request
from crawlcw.ledger.protocol import Ledger
from crawlcw.ledger_opening import open_ledger
from tests.support import many_hosts
from tests.support.crawl_process import Process, Store, begin_together, wait_until
from tests.support.many_hosts import Hit, Host, HostsSpider, Served, addresses

pytestmark = pytest.mark.thorough

ROBOTS = "/robots.txt"
#: Enough for a process to begin, on a busy machine.
WELL_BELOW_A_LEASE = 150.0

#: Of this many gaps of 0.1 s, a missing one leaves a mean of 0.08 s.
_IN_A_ROW = 5

Serve = Callable[..., Served]
Start = Callable[..., list[Process]]


@pytest.fixture
def store(ledger_url: str) -> Store:
    return Store(ledger_url, HostsSpider.name)


@pytest.fixture
def serve(processes: ExitStack) -> Serve:
    def serve(*hosts: Host) -> Served:
        return processes.enter_context(many_hosts.served(hosts))

    return serve


@pytest.fixture
def start(processes: ExitStack, tmp_path: Path) -> Start:
    """Start a crawl of several processes, each with its own user agent."""
    numbers = itertools.count()

    def start(
        number: int, store: Store, urls: Sequence[str], *, on_cue: bool = False, **settings: Any
    ) -> list[Process]:
        return [
            processes.enter_context(
                Process(
                    store,
                    urls,
                    tmp_path / f"{agent}.log",
                    on_cue=on_cue,
                    user_agent=agent,
                    **settings,
                )
            )
            for agent in (f"crawl-{next(numbers)}" for _ in range(number))
        ]

    return start


def pages(requests: Iterable[Hit]) -> list[Hit]:
    """Return the requests that were answered with a page."""
    return [r for r in requests if r.status == 200 and r.path != ROBOTS]


def by_host(requests: Iterable[Hit]) -> dict[str, list[Hit]]:
    found = defaultdict(list)
    for request in requests:
        found[request.host].append(request)
    return found


def smallest_gap(requests: Iterable[Hit]) -> float:
    """Return the smallest mean gap between the arrivals of a few successive requests at one host.

    The time to connect differs on a busy machine: it makes one gap longer, and the
    next one shorter by as much. A request that did not wait for its turn makes one
    gap shorter and no other longer, so the mean of a few gaps shows it.
    """
    return min(
        (later.arrived - earlier.arrived) / number
        for of_host in by_host(requests).values()
        if (number := min(_IN_A_ROW, len(of_host) - 1))
        for earlier, later in zip(of_host, of_host[number:], strict=False)
    )


def requests_of(crawls: Iterable[Process], site: Served) -> list[Hit]:
    """Wait until all crawls are drained; return the requests that the site got."""
    for crawl in crawls:
        crawl.drained()
    return site.requests()


def processes_of_each_host(requests: Iterable[Hit]) -> Counter[int]:
    """Return the number of hosts by the number of processes that sent requests to them."""
    return Counter(len({r.agent for r in of_host}) for of_host in by_host(requests).values())


def until_the_last_page(requests: Sequence[Hit], *, since: float) -> float:
    return max(r.ended or 0.0 for r in pages(requests)) - since


def asked(site: Served, *, at_least: int) -> Callable[[], bool]:
    return lambda: len(site.requests()) >= at_least


def answered(site: Served, names: Sequence[str], *, with_pages: int) -> Callable[[], bool]:
    return lambda: len(pages(site.requests(names))) >= with_pages


def owner_of(name: str, store: Store, crawls: Iterable[Process]) -> Process | None:
    """Return the process that owns a host, if any."""
    token = store.owners().get(name, "")
    return next((crawl for crawl in crawls if f"-{crawl.pid}-" in token), None)


def freeze_while_it_waits_for_an_answer(
    site: Served, store: Store, crawls: Sequence[Process]
) -> Process:
    """Stop the process that has the only host, outside of a transaction.

    A process that is stopped between the check of its lease and the sending of a
    request sends that request when it resumes: no client can prevent that.
    """
    frozen: list[Process] = []

    def is_open() -> bool:
        return any(request.ended is None for request in site.requests())

    def is_frozen() -> bool:
        owner = owner_of(site.names[0], store, crawls) if is_open() else None
        if owner is None:
            return False
        owner.send(signal.SIGSTOP)
        if is_open() and store.is_writable():
            frozen.append(owner)
            return True
        owner.send(signal.SIGCONT)
        return False

    wait_until(is_frozen)
    return frozen[0]


@asynccontextmanager
async def opened(store: Store) -> AsyncIterator[Ledger]:
    ledger = await open_ledger(store.url, store.spider)
    try:
        yield ledger
    finally:
        await ledger.close()


async def put(store: Store, wanted: Iterable[Request]) -> None:
    """Add tasks before a crawl, as another crawl would have done."""
    async with opened(store) as ledger:
        tasks = (request.task(now=ledger.now()) for request in wanted)
        while batch := list(itertools.islice(tasks, 5000)):
            await ledger.tasks.add(batch)
            await ledger.hosts.wake({task.host: ledger.now() for task in batch})


# The crawl of the host with a request limit takes minutes, nearly all of them
# waiting: it starts before all other tests.


@dataclass(frozen=True, slots=True, kw_only=True)
class Limited:
    """The crawl of a host that refuses more than 20 requests in any 10 seconds."""

    site: Served
    store: Store
    crawl: Process


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Limited]:
    folder = tmp_path_factory.mktemp("limited")
    host = Host(address="127.15.0.1", pages=260, latency=0.1, most=20, within=10.0, retry_after=3)
    store = Store(f"sqlite:///{folder}/ledger.db", HostsSpider.name)
    with (
        many_hosts.served([host]) as site,
        Process(store, site.urls, folder / "crawl.log", on_cue=False) as crawl,
    ):
        yield Limited(site=site, store=store, crawl=crawl)


@pytest.fixture(scope="module", autouse=True)
def begun(request: pytest.FixtureRequest) -> None:
    if any("limited" in getattr(item, "fixturenames", ()) for item in request.session.items):
        request.getfixturevalue("limited")


def test_a_killed_and_a_frozen_process_leave_a_host_as_politely_asked_as_by_one(
    store: Store, serve: Serve, start: Start
):
    site = serve(Host(address="127.11.0.1", pages=299, latency=0.03))
    crawls = start(
        3, store, site.urls, delay="0.1s", per_host_concurrency=1, lease="2s", concurrency=4
    )
    owner = partial(owner_of, site.names[0], store, crawls)

    wait_until(asked(site, at_least=80))
    killed = owner()
    assert killed is not None
    killed.kill()
    wait_until(asked(site, at_least=160))
    frozen = freeze_while_it_waits_for_an_answer(site, store, crawls)
    wait_until(asked(site, at_least=220))
    next_owner = owner()
    frozen.send(signal.SIGCONT)
    for crawl in crawls:
        if crawl is not killed:
            crawl.drained()
    requests = site.requests()

    gap = smallest_gap(requests)
    print(f"{len(requests)} requests, never less than {gap:.4f} s apart")
    assert next_owner not in (None, frozen, killed)
    assert len({request.agent for request in requests}) == 3
    assert len(requests) >= 300
    assert len({request.path for request in pages(requests)}) == 299
    assert max(request.open for request in requests) == 1
    assert gap >= 0.09


def test_hosts_that_are_handed_on_are_asked_as_politely_as_by_one(
    store: Store, serve: Serve, start: Start
):
    # Three processes of one fetcher take twelve hosts: the others wait for them.
    site = serve(*(Host(address=each, pages=50, latency=0.005) for each in addresses(18)))
    crawls = start(
        3, store, site.urls, on_cue=True, delay="0.1s", per_host_concurrency=1, concurrency=1
    )
    begin_together(crawls)
    requests = requests_of(crawls, site)

    gap = smallest_gap(requests)
    shared = processes_of_each_host(requests)
    print(f"{len(requests)} requests, never less than {gap:.4f} s apart; hosts by askers {shared}")
    assert len(pages(requests)) == 18 * 50
    assert sum(hosts for askers, hosts in shared.items() if askers > 1) >= 2
    assert max(request.open for request in requests) == 1
    assert gap >= 0.09


def test_four_processes_have_no_more_requests_open_at_a_host_than_one_may(
    store: Store, serve: Serve, start: Start
):
    site = serve(*(Host(address=each, pages=60, latency=0.05) for each in addresses(12)))
    crawls = start(4, store, site.urls, per_host_concurrency=2, concurrency=2)
    requests = requests_of(crawls, site)

    at_once = Counter(request.open for request in requests)
    shared = processes_of_each_host(requests)
    print(f"requests by how many were open at their host {at_once}; hosts by askers {shared}")
    assert len(pages(requests)) == 12 * 60
    assert sum(hosts for askers, hosts in shared.items() if askers > 1) >= 2
    assert max(at_once) == 2


def test_the_hosts_of_a_killed_process_are_asked_again_at_once(
    store: Store, serve: Serve, start: Start
):
    site = serve(*(Host(address=each, pages=40) for each in addresses(20)))
    (killed,) = start(1, store, site.urls, delay="0.2s", lease="10m")
    wait_until(asked(site, at_least=150))
    killed.kill()
    held = store.owners()
    before = len(site.requests())

    began = time.monotonic()
    (again,) = start(1, store, site.urls, delay="0.2s", lease="10m")
    wait_until(lambda: len(by_host(site.requests()[before:])) == 20)
    after = site.requests()[before:]
    again.kill()

    waited = max(requests[0].arrived for requests in by_host(after).values()) - began
    print(f"{len(held)} hosts that were held are asked {waited:.2f} s after the next start")
    assert len(held) == 20
    assert waited < WELL_BELOW_A_LEASE
    assert smallest_gap(site.requests()) >= 0.18


def test_a_giant_host_does_not_hold_up_small_ones(store: Store, serve: Serve, start: Start):
    small = [Host(address=each, pages=10) for each in addresses(400)]
    giant = Host(
        address="127.14.0.1", pages=100_000, robots="User-agent: *\nCrawl-delay: 1\nDisallow:\n"
    )
    site = serve(*small, giant)
    *names, giants_name = site.names

    def crawled(names: Sequence[str], *others: str) -> float:
        """Crawl hosts by two processes, and *others*; return the time until the hosts are done."""
        before = len(site.requests())
        crawls = start(2, store, [f"http://{name}/" for name in (*others, *names)])
        wait_until(answered(site, names, with_pages=10 * len(names)))
        wait_until(lambda: len(site.requests(others)) >= 3 * len(others))
        for crawl in crawls:
            crawl.kill()
        since = site.requests()[before].arrived
        return until_the_last_page(site.requests(names), since=since)

    alone = crawled(names[:200])
    paths = ("", *range(1, 100_000))
    asyncio.run(put(store, (Request(f"http://{giants_name}/{path}") for path in paths)))
    beside = crawled(names[200:], giants_name)

    asked_of_it = site.requests([giants_name])
    print(
        f"200 hosts took {alone:.2f} s alone and {beside:.2f} s beside one of 100,000 pages, "
        f"which was asked {len(asked_of_it)} times, never less than "
        f"{smallest_gap(asked_of_it):.3f} s apart"
    )
    # Behind the big host they would wait for hours; a factor of two allows for a busy machine.
    assert beside <= 2 * alone + 5.0
    assert smallest_gap(asked_of_it) >= 0.9


def test_robots_txt_is_fetched_once_by_all_processes_and_obeyed_through_redirects(
    store: Store, serve: Serve, start: Start
):
    where = addresses(30)
    site = serve(
        *(
            Host(
                address=address,
                pages=30,
                latency=0.02,
                robots="User-agent: *\nDisallow: /private/\n",
                links=["/private/1", "/here", "/there", f"http://{other}:{{port}}/private/4"],
                moved={"/here": "/private/2", "/there": f"http://{other}:{{port}}/private/3"},
            )
            for address, other in zip(where, where[1:] + where[:1], strict=True)
        )
    )
    crawls = start(4, store, site.urls, on_cue=True, concurrency=1)
    begin_together(crawls)
    requests = requests_of(crawls, site)

    paths = Counter(request.path for request in requests)
    shared = processes_of_each_host(requests)
    print(f"{len(requests)} requests to 30 hosts; hosts by askers {shared}")
    assert Counter(r.host for r in requests if r.path == ROBOTS) == Counter(where)
    assert {path for path in paths if path.startswith("/private/")} == set()
    assert (paths["/here"], paths["/there"], len(pages(requests))) == (30, 30, 30 * 30)
    assert sum(hosts for askers, hosts in shared.items() if askers > 1) >= 2
    refused = Counter(row.path for row in store.rows() if row.reason == "refused-robots")
    assert refused == Counter({f"/private/{n}": 30 for n in (1, 3, 4)} | {"/here": 30})
