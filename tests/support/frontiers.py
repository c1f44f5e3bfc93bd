"""A process's frontier, for tests: what the coordinator and the fetchers do to it."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from crawlcw.api.host_limits import HostLimit
from crawlcw.crawl.held_host import HeldHost, PageLimit
from crawlcw.crawl.hosts import Frontier
from crawlcw.engine.leases import HeldLeases
from crawlcw.engine.stats import Stats
from crawlcw.errors import Defer, Reason
from crawlcw.model.health import Uplink
from crawlcw.model.hosts import Host, HostLease, HostPolicy, RobotsRecord
from crawlcw.model.standstill import Rests
from crawlcw.model.task import Lease
from tests.support.ledgers import START, make_task

HOST = "example.com"
LEASE = timedelta(seconds=100)
USABLE = 85.0  #: seconds of a lease in which requests are begun

_numbers = count()


def lease_of(state: Host, *, epoch: int = 1, clean: bool = True) -> HostLease:
    return HostLease(
        host=state, token=f"a:{epoch}", epoch=epoch, expires=START + LEASE, clean=clean
    )


class FixedLimits:
    """Limits of hosts that nobody changes meanwhile."""

    may_share = True

    def __init__(self, limits: dict[str, HostLimit], default: HostLimit, pages: PageLimit) -> None:
        self.pages = pages
        self._limits = limits
        self._default = default

    def of(self, host: str) -> HostLimit:
        return self._limits.get(host, self._default)


class Process:
    """A frontier, with the tasks that its process holds and a clock of its own."""

    def __init__(
        self,
        *,
        concurrency: int = 8,
        delay: float = 0.0,
        limits: dict[str, HostLimit] | None = None,
        max_pages: int | None = None,
        unlimited: Iterable[str] = (),
        booted: float = 1000.0,
        elapsed: float = 0.0,
    ) -> None:
        """Begin when the process's own clock shows *booted*, *elapsed* seconds after `START`."""
        self.now = booted
        self.held = HeldLeases()
        self.full: set[str] = set()
        self.stats = Stats()
        self.failures, self.given_up = self.stats.host_failures, self.stats.hosts_given_up
        self._offset = elapsed - booted
        limit = HostLimit(concurrency=concurrency, delay=delay)
        pages = PageLimit(most=max_pages, unlimited=set(unlimited), full=self.full)
        self.frontier = Frontier(
            held=self.held,
            limits=FixedLimits(limits or {}, limit, pages),
            policy=HostPolicy(),
            lease=LEASE,
            stats=self.stats,
            uplink=Uplink(),
            rests=Rests(),
            ledger_now=self.ledger_now,
        )
        self.frontier.page_limit.seeded = True

    def ledger_now(self) -> datetime:
        return START + timedelta(seconds=self.now + self._offset)

    def at(self, seconds: float) -> datetime:
        """The ledger's time in so many seconds."""
        return self.ledger_now() + timedelta(seconds=seconds)

    # What the coordinator does.

    def begin(self, name: str = HOST, *, clean: bool = True, **state: Any) -> HeldHost:
        """Lease a host that the ledger has in this *state*."""
        lease = lease_of(Host(name=name, **state), clean=clean)
        return self.frontier.begin(lease, now=self.now, asked=self.now)

    def open(
        self,
        name: str = HOST,
        *,
        crawl_delay: float = 0.0,
        robots: RobotsRecord | None = None,
        asked: bool = False,
    ) -> None:
        self.frontier.open(name, crawl_delay=crawl_delay, robots=robots, asked=asked, now=self.now)

    def serve(self, name: str = HOST, *, clean: bool = True, **state: Any) -> HeldHost:
        """Lease and open a host."""
        host = self.begin(name, clean=clean, **state)
        self.open(name)
        return host

    def claim(self, number: int = 1, *, host: str = HOST) -> list[Lease]:
        """Claim as many tasks of a host."""
        leases = []
        for _ in range(number):
            task = make_task(f"http://{host}/{next(_numbers)}")
            leases.append(Lease(task=task, token="a:1", fence=1, expires=START))
        self.held.add(leases)
        for lease in leases:
            self.frontier.queues.add(lease, now=self.now)
        return leases

    def take(self) -> Lease | None:
        return self.frontier.queues.take(now=self.now)

    def take_all(self) -> list[Lease]:
        return list(iter(self.take, None))

    # What the fetchers and the committer do.

    def fetched(self, lease: Lease) -> None:
        """The request has ended, and its task is still held."""
        self.frontier.queues.finished(lease.task.host, now=self.now)

    def commit(self, *leases: Lease) -> None:
        self.held.end(leases)

    def work(self, lease: Lease, *, latency: float = 0.1) -> None:
        """Fetch and commit a page."""
        self.answered(lease.task.host, latency=latency)
        self.fetched(lease)
        self.commit(lease)

    def answered(self, name: str = HOST, *, latency: float = 0.1, page: bool = True) -> None:
        self.frontier.health.answered(name, latency=latency, sent=self.ledger_now(), now=self.now)
        if page:
            self.frontier.health.finished(name, now=self.now)

    def failed(
        self,
        name: str = HOST,
        reason: Reason = Reason.CONNECT,
        *,
        sent: datetime | None = None,
        retry_after: float | None = None,
        scheme: str = "http",
    ) -> Defer:
        """A request of this moment, unless it was *sent* earlier, shows that a host has failed."""
        return self.frontier.health.host_failed(
            name,
            reason,
            scheme=scheme,
            sent=sent or self.ledger_now(),
            retry_after=retry_after,
            now=self.now,
        )

    def lose(self, name: str = HOST) -> None:
        self.frontier.lose(name, now=self.now)

    def part(self, name: str = HOST) -> Host:
        return self.frontier.part(self.frontier[name], now=self.now)

    def may_ask(self, name: str = HOST) -> bool:
        return self.frontier.queues.may_ask(name, now=self.now)

    def idle(self) -> list[str]:
        return [host.name for host in self.frontier.to_do.idle()]

    def resting(self, name: str = HOST) -> float:
        """For how many seconds no request is begun."""
        return max(0.0, self.frontier.queues[name].next_start - self.now)
