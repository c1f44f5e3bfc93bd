"""Admit a request without a task if scope and robots.txt allow it and its host has a free slot.

Hops are an attempt's further requests: for redirect targets, for logins, and those of a user's
layers. Each hop takes a slot of its host, and waits for the host's delay and for the end of the
host's pause after failures. Subresources of rendered pages take slots but wait for no delay.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta

import anyio

from crawlcw.api.attempt import Attempt, Purpose
from crawlcw.api.response import Response
from crawlcw.crawl.callbacks import Scope
from crawlcw.crawl.causes import PageAttempt
from crawlcw.crawl.host_queues import CLAIM_AHEAD_S, HostQueue
from crawlcw.crawl.opening import Opening
from crawlcw.crawl.robots import Robots
from crawlcw.errors import Defer, FetchError, ProxiesAwayError, Reason
from crawlcw.fetch.redirects import status_error
from crawlcw.model import urls
from crawlcw.model.hosts import Host

#: Maximum number of hosts in `_read_at`, which has the times of reads of other workers' hosts.
_MAX_READ_HOSTS = 1000
#: Seconds between two reads of a host that another worker has leased.
_REREAD_S = 1.0
#: Maximum seconds to wait for a slot of a host, and maximum seconds to wait for the end of a rest.
_MAX_WAIT_S, _MAX_REST_S = 30.0, CLAIM_AHEAD_S
#: Seconds that a subresource of a rendered page waits for the previous subresource.
_MAX_PART_WAIT_S = 5.0


class Admission:
    """Implements `redirects.Admission`: checks scope and robots.txt, and waits for slots of hosts.

    In `crawlcw fetch`, `opening` (which opens hosts) is None, so no request waits for a slot.
    """

    # `robots` and `opening` are set later, because both send requests through this object.
    robots: Robots
    opening: Opening | None = None
    # The coordinator's methods to poll for ready hosts, and to give free slots to tasks.
    wake: Callable[[], None]
    dispatch: Callable[[], None]

    def __init__(self, scope: Scope | None = None) -> None:
        self._scope = scope
        self._read_at: dict[str, float] = {}  #: monotonic time of the last read of each host

    async def admit(self, attempt: Attempt, url: str) -> None:
        """See `redirects.Admission.admit`."""
        if attempt.purpose is Purpose.ROBOTS:
            # If an origin redirects its robots.txt, the target has the rules of the redirecting
            # origin (RFC 9309, section 2.3.1.2). So do not check the robots.txt of the target's
            # origin.
            try:
                await self.enter(attempt, url)
            except Defer as deferral:
                raise FetchError(Reason.ROBOTS_UNAVAILABLE, deferral.cause) from None
            return
        if self.robots.known_rules(url) is None:
            await self.enter(attempt, url)
        if self._scope is not None and attempt.purpose in (Purpose.PAGE, Purpose.FETCH):
            page = attempt.page or attempt
            task = page.lease.task if isinstance(page, PageAttempt) else None
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
                    # Limit the wait, because the previous request may stay open for ever.
                    with anyio.move_on_after(_MAX_PART_WAIT_S):
                        await slot_stack.enter_async_context(turn)
                # One subresource may use the page's slot, because the page waits for subresources.
                if not (is_full and attempt.slot is not None and attempt.slot_host == host):
                    queue = queues.hop_queue(host, now=self.opening.frontier.clock())
                    queue.active += 1
                    slot_stack.callback(self._leave, queue, frees_slot=True)
            yield

    def _is_full(self, host: str) -> bool:
        """Return whether all slots of a host are in use."""
        assert self.opening is not None
        frontier = self.opening.frontier
        if (frontier_host := frontier.hosts.get(host)) is not None:
            return frontier_host.queue.is_full
        # At a host that another worker owns, the user's limit of concurrent requests applies.
        queue = frontier.queues.unowned.get(host)
        return queue is not None and 0 < frontier.host_limit(host).concurrency <= queue.active

    async def enter(self, attempt: Attempt, url: str) -> None:
        """Wait until the host of *url* may get a request; take a slot if *attempt* has no slot.

        A slot that *attempt* has at another host is freed first. Raises `Defer` if the wait for a
        slot takes too long.
        """
        if self.opening is None:
            return
        host = urls.locate(url).host
        if attempt.slot_host != host:
            attempt.free()
        takes_slot = attempt.slot is None
        # Exclude the wait from the timeouts, because the crawl, not the server, causes the wait.
        with attempt.deadline:
            queue = await self._wait_for_slot(attempt, host, takes_slot=takes_slot)
        if takes_slot:
            attempt.slot, attempt.slot_host = self._slot(queue), host

    def _slot(self, queue: HostQueue) -> Callable[[], None]:
        """Return a function that frees a slot once, because copies of an attempt share the slot."""
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
        """Read from the ledger a host of another worker, and wake the host if no worker owns it."""
        assert self.opening is not None
        frontier, ledger, host = self.opening.frontier, self.opening.causes.ledger, queue.host
        now = frontier.clock()
        if now - self._read_at.get(host, -_REREAD_S) < _REREAD_S:
            return
        if len(self._read_at) >= _MAX_READ_HOSTS:
            self._read_at.clear()
        self._read_at[host] = now
        state = (await ledger.hosts.get([host])).get(host, Host(name=host))
        if host in frontier.hosts:
            return  # this worker leased the host during the read
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
        """Note the time of a request for *url*, from which the host's delay counts."""
        if self.opening is not None:
            frontier = self.opening.frontier
            frontier.note_request(urls.locate(url).host, sent_at=frontier.clock())

    async def is_innocent(self, url: str, error: FetchError, *, started_at: float) -> bool:
        """Return whether a proxy or this machine's network may have caused a login's failure."""
        if self.opening is None:
            return False
        causes, host = self.opening.causes, urls.locate(url).host
        if isinstance(error, ProxiesAwayError):
            return True
        if causes.proxies.may_be_to_blame(error, url, is_fixed=True):
            return True
        # Return False after a redirect, because then the failed host is not the login's host.
        return error.hop <= 1 and await causes.blames_uplink(
            host, url, error.underlying, started_at=started_at
        )


def _check_wait(queue: HostQueue, *, now: float, started_at: float) -> None:
    """Raise `Defer` if a host rests for too long, or the wait for a slot took too long."""
    rest_s = max(queue.rests_until, queue.hops_rest_until) - now
    if rest_s > _MAX_REST_S:
        raise Defer(f"{queue.host} rests", due=timedelta(seconds=rest_s))
    if not queue.delay and now - started_at > _MAX_WAIT_S:
        raise Defer(f"{queue.host} has no free slot")
