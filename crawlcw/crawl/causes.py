"""Cause of a failed attempt: the page, its origin, a proxy, or our own uplink.

Only what happens at the task's own origin, before any redirect, says anything of
that origin. A failure behind a redirect belongs to the page that leads there.
"""

import logging
import time
from datetime import datetime, timedelta

from crawlcw.api.response import Response
from crawlcw.crawl.host_health import deferral
from crawlcw.crawl.hosts import Frontier
from crawlcw.crawl.uplink import UplinkWatch
from crawlcw.errors import Defer, FetchError, Reason
from crawlcw.fetch.proxies import ProxyPool
from crawlcw.ledger.protocol import Ledger
from crawlcw.model.health import HOST_FAILURES, PAST_THE_NAME, Cause
from crawlcw.model.sanitize import printable
from crawlcw.model.task import Task
from crawlcw.model.urls import scheme_of

logger = logging.getLogger(__name__)

#: Of more hosts some are worth waiting for.
_FEW_HOSTS = 100


class Causes:
    """Tells the breakers how requests ended; finds the causes of failures.

    A cause that is not the page is returned as the deferral of the page.
    """

    def __init__(
        self, ledger: Ledger, frontier: Frontier, watch: UplinkWatch, proxies: ProxyPool
    ) -> None:
        self.watch = watch
        self.proxies = proxies
        self._ledger = ledger
        self._frontier = frontier

    def may_begin(self, task: Task, *, now: float) -> bool:
        """Return whether the origin of a task may be asked *now*."""
        # A loop that stood still must not ask a host that has a new owner.
        if self.watch.uplink.is_blocked or not self._frontier.queues.may_ask(task.host, now=now):
            return False
        return self._frontier.health.may_ask(task)

    def given_up(self, task: Task) -> Reason | None:
        """Return why a task ends unasked: its origin was given up, and a method is to hear of it.

        None where that is not so.
        """
        health = self._frontier.health
        if task.host not in self._frontier or not health.calls.include(task.errback):
            return None
        return health.lost_origin(task)

    def answered(self) -> None:
        """Note that a host answered, whatever it said."""
        self.watch.answered()

    def answered_well(self, task: Task, *, latency: float, sent: datetime) -> None:
        """Note an answer that is no sign of load; the arguments are `HostHealth.answered`'s."""
        self._frontier.health.answered(
            task.host,
            latency=latency,
            scheme=scheme_of(task.url),
            sent=sent,
            now=time.monotonic(),
        )

    def finished(self, task: Task, *, good_url: str | None, size: int) -> None:
        """Note that a task's page is finished; the rest is as `HostHealth.finished` has it."""
        # A page that is visited again is no further one of its host's.
        if task.visit is None:
            self._frontier.health.finished(
                task.host,
                scheme=scheme_of(task.url),
                good_url=good_url,
                size=size,
                now=time.monotonic(),
            )
        if good_url is not None:
            self.watch.uplink.learned(task.host, good_url)

    async def failed(
        self,
        task: Task,
        error: FetchError,
        *,
        sent: datetime,
        began: float,
        has_own_proxy: bool = False,
    ) -> Defer | None:
        """Note a request that came to nothing; None: by the page's own fault.

        *sent* and *began* are when the attempt began, by the ledger's clock and the
        monotonic one; *has_own_proxy* says that it goes through its session's proxy alone.
        """
        if error.hop > 1:
            self.answered()
        if proxys := self.of_proxy(
            task, error, sent=sent, began=began, has_own_proxy=has_own_proxy
        ):
            return proxys
        if error.hop > 1:
            return None
        is_hosts, scheme = error.reason in HOST_FAILURES, scheme_of(task.url)
        # A page of its own pays once less for a silence that is over: its origin has its strikes.
        if await self.is_uplink(
            task.host,
            error.underlying,
            scheme=scheme,
            began=began,
            page=None if is_hosts else task.id,
        ):
            return deferral(Cause.UPLINK)
        if not is_hosts:
            return None
        self._log(task.host, error)
        return await self.host_failed(task.host, error, scheme=scheme, sent=sent)

    async def is_uplink(
        self, host: str, reason: Reason, *, scheme: str, began: float, page: bytes | None = None
    ) -> bool:
        """Note that a request to an origin failed; return whether our own uplink is the cause.

        That takes a check of the uplink where no host answers. The failure still shows whether
        the host's name has an address. *began* is the monotonic time of the request; *page* is a
        task that would pay for the failure.
        """
        if not await self.watch.is_to_blame(host, reason, sent=began, page=page):
            return False
        if reason in PAST_THE_NAME:
            self._frontier.health.resolved(host, scheme=scheme)
        return True

    async def host_failed(
        self, host: str, error: FetchError, *, scheme: str, sent: datetime
    ) -> Defer:
        """Note a fault of an origin itself."""
        in_haste = await self._nothing_else_waits(host, error, scheme=scheme)
        return self._frontier.health.host_failed(
            host,
            error.underlying,
            scheme=scheme,
            sent=sent,
            status=error.status,
            retry_after=error.retry_after,
            in_haste=in_haste,
            now=time.monotonic(),
        )

    async def _nothing_else_waits(self, host: str, error: FetchError, *, scheme: str) -> bool:
        """Return whether a port refuses us, never spoke, and nothing else is left of the crawl.

        Other hosts may be left that have never spoken either. To know that costs a look at the
        hosts, for such a port alone.
        """
        frontier = self._frontier
        if not error.refused or host not in frontier or not frontier.page_limit.seeded:
            return False
        if frontier[host].state.origin(scheme).good_at is not None:
            return False
        held, waiting = await self._ledger.hosts.busiest(limit=_FEW_HOSTS)
        known = {each.name: each for each in (*held, *waiting)}
        known |= {each.name: each.state for each in frontier}
        known.pop(host, None)
        return len(known) < _FEW_HOSTS and all(each.is_silent for each in known.values())

    def of_proxy(
        self,
        task: Task,
        error: FetchError,
        *,
        sent: datetime,
        began: float,
        has_own_proxy: bool,
    ) -> Defer | None:
        """Return the deferral of a page that a proxy may have failed, None: it has not.

        The arguments are those of `failed`; a refusal's *error* has its response.
        """
        wait = self.proxies.another_in(error, task.url, is_fixed=has_own_proxy)
        if not wait:
            return deferral(Cause.PROXY) if wait is not None else None
        until = sent + timedelta(seconds=time.monotonic() - began + wait)
        return deferral(Cause.PROXY, until)

    def page_failed(self, task: Task) -> None:
        """Note that a page failed by itself: of its host that says little, but not nothing."""
        self._frontier.health.page_failed(task.host, now=time.monotonic())

    def got(self, task: Task, response: Response) -> None:
        """Note that a page was got: a proxy that failed it before is to blame for that."""
        self.proxies.got(task.url, response.proxy)

    def throttled(self, task: Task, error: FetchError, *, sent: datetime) -> Defer | None:
        """Note a refusal (429, or 503 with Retry-After); None: by the page's own fault."""
        assert error.status is not None
        deferred = self._frontier.health.page_refused(
            task,
            sent=sent,
            status=error.status,
            retry_after=error.retry_after,
            now=time.monotonic(),
        )
        if deferred is not None and not self._frontier.health.is_half_open(task.host):
            self._log(task.host, error)
        return deferred

    def _log(self, host: str, error: FetchError) -> None:
        logger.info(
            "host %s failed: %s",
            printable(host),
            printable(error),
            extra={"event": "host_failed", "host": host, "reason": str(error.reason)},
        )
