"""The frontier of one process, with the operations of its coordinator and its fetchers."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from crawlcw.api.host_limits import HostLimit, Limit
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.crawl.causes import Causes
from crawlcw.crawl.hosts import Frontier, FrontierHost, PageLimit, Phase
from crawlcw.engine.session import TaskLeases
from crawlcw.engine.stats import Stats
from crawlcw.errors import Defer, FetchError, Reason
from crawlcw.fetch.proxies import ProxyPool
from crawlcw.model.hosts import Host, HostLease, RobotsRecord
from crawlcw.model.idle_reason import Rests
from crawlcw.model.task import Lease
from tests.support.ledgers import START, make_task

HOST = "example.com"
LEASE = timedelta(seconds=100)
USABLE = 85.0  #: seconds of a lease in which requests may start

_numbers = count()


def lease_of(state: Host, *, epoch: int = 1, clean: bool = True) -> HostLease:
    return HostLease(
        host=state, token=f"a:{epoch}", epoch=epoch, expires=START + LEASE, clean=clean
    )


def settings_of(*, concurrency: int, delay: float) -> Settings:
    return Settings(per_host_concurrency=concurrency, delay=timedelta(seconds=delay), lease=LEASE)


class Process:
    """A frontier with the held tasks of its process, and a clock."""

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
        ledger: Any = None,
    ) -> None:
        """Start *elapsed* seconds after `START`, when the process's clock shows *booted*."""
        self.now = booted
        self.held = TaskLeases()
        self.full: set[str] = set()
        self.stats = Stats()
        self.failures, self.given_up = self.stats.host_failures, self.stats.hosts_given_up
        self._offset = elapsed - booted
        spider, settings = Spider(), settings_of(concurrency=concurrency, delay=delay)
        spider.limits = {
            name: Limit(concurrency=limit.concurrency, delay=limit.delay)
            for name, limit in (limits or {}).items()
        }
        pages = PageLimit(max_pages=max_pages, unlimited_hosts=set(unlimited), full_hosts=self.full)
        self.frontier = Frontier(
            spider,
            settings,
            task_leases=self.held,
            page_limit=pages,
            clock=lambda: self.now,
            ledger_now=self.ledger_now,
        )
        self.frontier.is_seeded = True
        self.causes = Causes(
            self.frontier,
            ProxyPool(settings),
            call_next=None,
            ledger=ledger,
            stats=self.stats,
            rests=Rests(),
            stop=lambda _: None,
        )

    def ledger_now(self) -> datetime:
        return START + timedelta(seconds=self.now + self._offset)

    def at(self, seconds: float) -> datetime:
        """Return the ledger's time in *seconds* seconds."""
        return self.ledger_now() + timedelta(seconds=seconds)

    # Operations of the coordinator.

    def begin(self, name: str = HOST, *, clean: bool = True, **state: Any) -> FrontierHost:
        """Lease a host with *state* in the ledger."""
        lease = lease_of(Host(name=name, **state), clean=clean)
        return self.frontier.add_leased(lease, sent_at=self.now)

    def open(
        self,
        name: str = HOST,
        *,
        crawl_delay: float = 0.0,
        robots: RobotsRecord | None = None,
        asked: bool = False,
    ) -> None:
        host = self.frontier.hosts[name]
        host.open(crawl_delay=crawl_delay, robots=robots, was_fetched=asked)

    def serve(self, name: str = HOST, *, clean: bool = True, **state: Any) -> FrontierHost:
        """Lease and open a host."""
        host = self.begin(name, clean=clean, **state)
        self.open(name)
        return host

    def claim(self, number: int = 1, *, host: str = HOST) -> list[Lease]:
        """Claim *number* tasks of a host."""
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

    def follow(self, *, concurrency: int = 8, delay: float = 0.0) -> None:
        """Ask hosts by other settings from now on."""
        self.frontier.use_settings(settings_of(concurrency=concurrency, delay=delay))

    # Operations of the fetchers and the committer.

    def fetched(self, lease: Lease) -> None:
        """End a request; its task stays held."""
        self.frontier.queues.request_ended(lease.task.host, now=self.now)

    def commit(self, *leases: Lease) -> None:
        self.held.end(leases)

    def work(self, lease: Lease, *, latency: float = 0.1) -> None:
        """Fetch and commit a page."""
        self.answered(lease.task.host, latency=latency)
        self.fetched(lease)
        self.commit(lease)

    def answered(
        self,
        name: str = HOST,
        *,
        latency: float = 0.1,
        sent: datetime | None = None,
        page: bool = True,
    ) -> None:
        """Record a good answer to a request that was sent now, or at *sent*."""
        url = f"http://{name}/"
        self.causes.answered_well(name, url, latency=latency, sent=sent or self.ledger_now())
        if page:
            self.causes.finished(make_task(url), probe_page=None, size=0)

    def failed(
        self,
        name: str = HOST,
        reason: Reason = Reason.CONNECT,
        *,
        sent: datetime | None = None,
        retry_after: float | None = None,
        scheme: str = "http",
    ) -> Defer:
        """Record a failure of the host for a request that was sent now, or at *sent*."""
        error = FetchError(reason, retry_after=retry_after)
        return self.causes.origin_failed(
            name, f"{scheme}://{name}/", error, sent=sent or self.ledger_now()
        )

    def occupy(self, host: FrontierHost, *, busy: bool = True) -> None:
        """Let something be done about a host in the background, or be done with."""
        host.is_busy = busy
        host.poll(is_stale=host.is_stale)

    def leave(self, host: FrontierHost) -> None:
        host.enter(Phase.LEAVING)

    def given_back(self) -> list[Lease]:
        """Take the tasks that must be released to the ledger."""
        return self.frontier.pending.take_to_release()

    def lose(self, name: str = HOST) -> None:
        self.frontier.lose(name)

    def forget(self, name: str = HOST) -> Host:
        return self.frontier.forget(self.frontier.hosts[name])

    def may_ask(self, name: str = HOST) -> bool:
        return self.frontier.may_ask(make_task(f"http://{name}/"), now=self.now)

    def idle(self) -> list[str]:
        return [host.name for host in self.frontier.idle_hosts()]

    def resting(self, name: str = HOST) -> float:
        """Return the seconds until the next request may start."""
        return max(0.0, self.frontier.hosts[name].queue.next_start - self.now)
