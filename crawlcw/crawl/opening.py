"""Permit requests: open hosts, and admit URLs that have no task of their own.

A page is requested only after the robots.txt of its host is known. It comes from the ledger, or the
host's owner requests it once a day for all processes. If a host has pages of its other scheme too,
a fetcher of each process requests the robots.txt of that scheme in the turn of the first page with
that scheme. If the breaker of a host is half-open, the host is first asked for a probe page: only a
host that is down does not answer it.

Hops are the further requests of an attempt: targets of redirects, logins, and repeated requests of
a user's layers. Each hop takes a slot of its host, keeps the host's delay and waits for the end of
its rest. Parts of rendered pages and the requests that open a host take slots but keep no delay.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import KW_ONLY, InitVar, dataclass
from datetime import timedelta

import anyio
import anyio.abc

from crawlcw.api.attempt import Attempt, Purpose
from crawlcw.api.response import Response
from crawlcw.crawl.callbacks import Scope
from crawlcw.crawl.causes import Causes, PageAttempt
from crawlcw.crawl.host_queues import CLAIM_AHEAD_S, HostQueue
from crawlcw.crawl.hosts import Frontier, FrontierHost
from crawlcw.crawl.robots import VALID, Robots
from crawlcw.engine.watchdog import Watchdog
from crawlcw.errors import Defer, FetchError, ProxiesAwayError, Reason, StopCrawl
from crawlcw.fetch.redirects import status_error
from crawlcw.fetch.user_layers import SpiderFaultError
from crawlcw.model import urls
from crawlcw.model.hosts import Host, RobotsRecord
from crawlcw.model.sanitize import printable, text_of

#: Maximum number of other processes' hosts whose last read is remembered.
_MAX_READ_HOSTS = 1000
#: Seconds between two reads of a host that is not ours, and between two tries to get a slot.
_RECHECK_S = 1.0
#: Seconds that an attempt waits in its fetcher for a slot, and for the end of a rest.
_MAX_WAIT_S, _MAX_REST_S = 30.0, CLAIM_AHEAD_S
#: Seconds that a part of a rendered page waits for the previous part.
_MAX_PART_WAIT_S = 5.0
#: Maximum number of sitemaps that are recorded for a host.
_MAX_SITEMAPS = 100


@dataclass
class Opening:
    """Opens and probes hosts."""

    frontier: Frontier
    robots: Robots
    causes: Causes
    _: KW_ONLY
    max_parallel: InitVar[int]  #: maximum of hosts that are opened at a time: some will hang
    watchdog: Watchdog  #: tells which failures a stall caused: these do not count

    def __post_init__(self, at_once: int) -> None:
        """Start without hosts."""
        self._opening_slots = anyio.Semaphore(at_once)
        self.robots.learned = self._learned

    def open(self, host: FrontierHost, url: str, background: anyio.abc.TaskGroup) -> bool:
        """Open a host that has *url* among its tasks; return whether it is already open.

        If it is not open yet, its tasks are read again after it has been opened.
        """
        rules = self.robots.known_rules(url, host.state.robots)
        if self.probe(host, background):
            return False
        if rules is not None:
            host.open(crawl_delay=self.robots.crawl_delay(host.name))
            return True
        self._start(host, f"{urls.origin_of(url)}/robots.txt", self._ask_robots, background)
        return False

    def probe(self, host: FrontierHost, background: anyio.abc.TaskGroup) -> bool:
        """Ask a half-open host for its probe page; return whether there is one."""
        url = host.probe_url()
        if url is None:
            return False
        self._start(host, url, self._probe, background)
        return True

    def _start(
        self,
        host: FrontierHost,
        url: str,
        ask: Callable[[FrontierHost, str], Awaitable[None]],
        background: anyio.abc.TaskGroup,
    ) -> None:
        async def in_turn() -> None:
            frontier, causes = self.frontier, self.causes
            queue = host.queue
            await anyio.sleep(max(0.0, queue.next_start - frontier.clock()))
            # While the network is away no failure counts: the host would be asked repeatedly.
            await causes.uplink_known()

            async def check() -> None:
                if frontier.clock() >= queue.deadline:
                    raise Defer("the host's lease has ended")

            async with self._opening_slots:
                try:
                    await self.wait_for_slot(queue, check, takes_slot=True, is_paced=False)
                except Defer:
                    return
                sent, started_at = frontier.ledger_now(), frontier.clock()
                try:
                    await ask(host, url)
                except StopCrawl as stop:
                    causes.stop(printable(text_of(stop)))
                except FetchError as error:
                    says_nothing_of_host = (
                        self.watchdog.explains(error, started_at)
                        or causes.proxies.may_be_to_blame(error, url, is_fixed=False)
                        # The request has waited for a proxy, and will wait again.
                        or isinstance(error, ProxiesAwayError)
                    )
                    if not says_nothing_of_host:
                        await causes.unanswered(
                            host.name, url, error, sent=sent, started_at=started_at
                        )
                finally:
                    frontier.queues.end_hop(queue, now=frontier.clock(), frees_slot=True)

        host.work(background, in_turn)

    async def wait_for_slot(
        self,
        queue: HostQueue,
        check: Callable[[], Awaitable[None]],
        *,
        takes_slot: bool,
        is_paced: bool = True,
    ) -> None:
        """Wait until a request may be sent to a host; *check* may raise before each try.

        A request that *is_paced* keeps the host's delay, and so does the next request.
        """
        queues, event = self.frontier.queues, asyncio.Event()
        # A hop with a slot goes first, because other hops may wait for that slot.
        queue.hops.insert(len(queue.hops) if takes_slot else 0, event)
        queues.changed.add(queue.host)
        try:
            while True:
                await check()
                now, is_first = self.frontier.clock(), queue.hops[0] is event
                if is_first and queues.start_hop(
                    queue, now=now, takes_slot=takes_slot, is_paced=is_paced
                ):
                    return
                event.clear()
                wait = queue.next_start - now if is_first else _RECHECK_S
                with anyio.move_on_after(wait if 0 < wait < _RECHECK_S else _RECHECK_S):
                    await event.wait()
        finally:
            queue.hops.remove(event)
            queues.end_hop(queue, now=self.frontier.clock(), frees_slot=False)

    async def _probe(self, host: FrontierHost, url: str) -> None:
        """Ask a probe page; the host is opened if it answers."""
        causes, sent, started_at = self.causes, self.frontier.ledger_now(), self.frontier.clock()
        origin = host.state.origins[urls.scheme_of(url)]
        try:
            response = await causes.request_probe(url)
        except SpiderFaultError:
            # The spider's code raises for this page, so let the next page test the host instead.
            origin.probes.pop(url, None)
            return
        except FetchError as error:
            if error.status is not None:
                causes.answered()
                origin.probes[url] = origin.probes.get(url, 0) + 1
            raise
        finally:
            self.frontier.note_request(host.name, sent_at=started_at)
        causes.proxies.note_fetched(url, response.proxy)
        causes.answered()
        origin.probes[url] = origin.probes.get(url, 0) + 1
        latency = response.elapsed.total_seconds() - self.watchdog.stall_since(started_at)
        causes.answered_well(host.name, url, latency=latency, sent=sent)

    async def _ask_robots(self, host: FrontierHost, url: str) -> None:
        try:
            rules = await self.robots.rules(url)
        except FetchError as error:
            is_refused = error.reason in (Reason.REFUSED_ADDRESS, Reason.REFUSED_PORT)
            if not (is_refused or isinstance(error, SpiderFaultError)):
                raise
            # The pages fail for the same reason, each with its own outcome.
            host.open(was_fetched=not is_refused)
            return
        self.causes.answered()
        self.causes.resolved(host.name, url)
        record = RobotsRecord(
            origin=urls.origin_of(url),
            body=rules.body,
            sitemaps=rules.sitemaps[:_MAX_SITEMAPS],
            expires=self.frontier.ledger_now() + VALID,
        )
        host.open(crawl_delay=self.robots.crawl_delay(host.name), robots=record, was_fetched=True)

    def _learned(self, origin: str) -> None:
        """Note the Crawl-delay of an origin whose robots.txt has been fetched."""
        if host := self.frontier.hosts.get(urls.locate(origin).host):
            host.crawl_delay = self.robots.crawl_delay(host.name)
            host.pace()


def _check_wait(queue: HostQueue, *, now: float, started_at: float) -> None:
    """Raise `Defer` if a host rests for long or its slots have been in use for long."""
    rest_s = max(queue.rests_until, queue.hops_rest_until) - now
    if rest_s > _MAX_REST_S:
        raise Defer(f"{queue.host} rests", due=timedelta(seconds=rest_s))
    if not queue.delay and now - started_at > _MAX_WAIT_S:
        raise Defer(f"{queue.host} has no free slot")


class Admission:
    """Scope, robots.txt and the turns of hosts; implements `redirects.Admission`.

    If a person tries a page, there is neither a scope nor a turn, because a person does not ask
    often.
    """

    # Both are set later, because they ask through layers that have this object.
    robots: Robots
    opening: Opening | None = None
    # The coordinator's methods: poll for ready hosts, and give free slots to tasks.
    wake: Callable[[], None]
    dispatch: Callable[[], None]

    def __init__(self, scope: Scope | None = None) -> None:
        self._scope = scope
        self._read_at: dict[str, float] = {}  #: when the hosts of other processes were last read

    async def admit(self, attempt: Attempt, url: str) -> None:
        """See `redirects.Admission.admit`."""
        if attempt.purpose is Purpose.ROBOTS:
            # RFC 9309, section 2.3.1.2: the rules belong to the origin that redirects, so
            # robots.txt of the target is not checked.
            try:
                await self.enter(attempt, url)
            except Defer as deferral:
                raise FetchError(Reason.ROBOTS_UNAVAILABLE, deferral.cause) from None
            return
        if self.robots.known_rules(url) is None:
            await self.enter(attempt, url)
        if self._scope is not None and attempt.purpose is Purpose.PAGE:
            task = attempt.lease.task if isinstance(attempt, PageAttempt) else None
            self._scope.admit_url(url, redirected=task)
        await self.robots.admit(url)
        await self.enter(attempt, url)

    @asynccontextmanager
    async def part(
        self, attempt: Attempt, url: str, *, is_document: bool, turn: asyncio.Lock
    ) -> AsyncIterator[None]:
        """See `redirects.Admission.part`."""
        if self._scope is not None and is_document:
            self._scope.admit_url(url)
        await self.robots.admit(url)
        async with AsyncExitStack() as slot_stack:
            if self.opening is not None:
                queues, host = self.opening.frontier.queues, urls.locate(url).host
                is_full = self._is_full(host)
                if is_full:
                    # Limit the wait: the previous part may be a request that stays open.
                    with anyio.move_on_after(_MAX_PART_WAIT_S):
                        await slot_stack.enter_async_context(turn)
                # A page waits for its parts, so one part may use the page's slot.
                if not (is_full and attempt.slot is not None and attempt.slot_host == host):
                    queue = queues.hop_queue(host, now=self.opening.frontier.clock())
                    queue.active += 1
                    slot_stack.callback(self._leave, queue, frees_slot=True)
            yield

    def _is_full(self, host: str) -> bool:
        """Return whether a host has no free slot; the user's limit counts if it is not our host."""
        assert self.opening is not None
        frontier = self.opening.frontier
        if (frontier_host := frontier.hosts.get(host)) is not None:
            return frontier_host.queue.is_full
        queue = frontier.queues.unowned.get(host)
        return queue is not None and 0 < frontier.host_limit(host).concurrency <= queue.active

    async def enter(self, attempt: Attempt, url: str) -> None:
        """Wait for a turn at the host of *url*, and for a slot unless the attempt already has one.

        A slot at another host is freed first. Raises `Defer` if the wait takes too long.
        """
        if self.opening is None:
            return
        host = urls.locate(url).host
        if attempt.slot_host != host:
            attempt.free()
        takes_slot = attempt.slot is None
        # The crawl causes this wait, not the server, so no timeout counts it.
        with attempt.deadline:
            queue = await self._wait_for_slot(attempt, host, takes_slot=takes_slot)
        if takes_slot:
            attempt.slot, attempt.slot_host = self._slot(queue), host

    def _slot(self, queue: HostQueue) -> Callable[[], None]:
        """Return a function that frees a slot once, because copies of an attempt share it."""
        is_free = False

        def free() -> None:
            nonlocal is_free
            if not is_free:
                is_free = True
                self._leave(queue, frees_slot=True)

        return free

    def _leave(self, queue: HostQueue, *, frees_slot: bool) -> None:
        assert self.opening is not None
        frontier = self.opening.frontier
        frontier.queues.end_hop(queue, now=frontier.clock(), frees_slot=frees_slot)
        self.dispatch()

    async def turn(self, attempt: Attempt, url: str) -> None:
        """See `redirects.Admission.turn`."""
        if self.opening is not None:
            await self._wait_for_slot(attempt, urls.locate(url).host, takes_slot=False)

    async def _wait_for_slot(self, attempt: Attempt, host: str, *, takes_slot: bool) -> HostQueue:
        """Wait until a request of an attempt may be sent to a host; return the host's queue."""
        assert self.opening is not None
        frontier = self.opening.frontier
        started_at = frontier.clock()
        queue = frontier.queues.hop_queue(host, now=started_at)

        async def check() -> None:
            if (frontier_host := frontier.hosts.get(host)) is None:
                await self._read(queue)
            elif not frontier_host.is_open:
                frontier_host.crawl_delay = self.robots.crawl_delay(host)
                frontier_host.pace()
            if attempt.purpose is not Purpose.PROBE:
                _check_wait(queue, now=frontier.clock(), started_at=started_at)

        try:
            await self.opening.wait_for_slot(queue, check, takes_slot=takes_slot)
        finally:
            self.dispatch()
        return queue

    async def _read(self, queue: HostQueue) -> None:
        """Read how long a host that is not ours rests; have it leased if it needs more slots."""
        assert self.opening is not None
        frontier, ledger, host = self.opening.frontier, self.opening.causes.ledger, queue.host
        now = frontier.clock()
        if now - self._read_at.get(host, -_RECHECK_S) < _RECHECK_S:
            return
        if len(self._read_at) >= _MAX_READ_HOSTS:
            self._read_at.clear()
        self._read_at[host] = now
        state = (await ledger.hosts.get([host])).get(host, Host(name=host))
        if host in frontier.hosts:
            return  # the host has been leased meanwhile
        queue.delay = max(
            frontier.host_limit(host).delay, self.robots.crawl_delay(host), state.delay
        )
        if state.not_before is not None:
            rest_s = (state.not_before - frontier.ledger_now()).total_seconds()
            queue.rests_until = max(queue.rests_until, now + rest_s)
            queue.next_start = max(queue.next_start, queue.rests_until)
        if state.owner is None and queue.active:
            await ledger.hosts.wake({host: frontier.ledger_now()})
            self.wake()

    def throttled(self, response: Response) -> None:
        """See `redirects.Admission.throttled`."""
        if self.opening is not None:
            frontier = self.opening.frontier
            host, now = urls.locate(response.url).host, frontier.clock()
            queue = frontier.queues.hop_queue(host, now=now)
            retry_after = status_error(response, now=frontier.ledger_now()).retry_after
            rest_s = frontier.policy.rest(1, retry_after=retry_after)
            queue.hops_rest_until = max(queue.hops_rest_until, now + rest_s)

    def note_request(self, url: str) -> None:
        """Note that *url* was requested just now."""
        if self.opening is not None:
            frontier = self.opening.frontier
            frontier.note_request(urls.locate(url).host, sent_at=frontier.clock())

    async def is_innocent(self, url: str, error: FetchError, *, started_at: float) -> bool:
        """Return whether a login may have failed because of a proxy or our own network."""
        if self.opening is None:
            return False
        causes, host = self.opening.causes, urls.locate(url).host
        if isinstance(error, ProxiesAwayError):
            return True
        if causes.proxies.may_be_to_blame(error, url, is_fixed=True):
            return True
        # After a redirect, the failed host is not the host of the login.
        return error.hop <= 1 and await causes.blames_uplink(
            host, url, error.underlying, started_at=started_at
        )
