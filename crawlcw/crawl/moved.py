"""Redirects, and the tasks of the pages where they lead.

A redirect ends its task, and its target is a task of its own: a process that dies between two
hops has recorded the target before the end of the task that led there. Tasks that redirect to one
another have no page: the one whose redirect closes the circle fails.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

import anyio

from crawlcw.api.request import EACH_RUN, Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.crawl.adding import TaskAdder
from crawlcw.crawl.callbacks import Scope
from crawlcw.crawl.outcomes import Failed, Finished, Moved, PageAttempt, Pages, info_of
from crawlcw.crawl.robots import Robots
from crawlcw.engine.leases import HeldLeases
from crawlcw.errors import Defer, FetchError, Reason
from crawlcw.fetch.proxies import ProxyPool
from crawlcw.fetch.redirects import loop_message, onward, portable_headers
from crawlcw.ledger.protocol import Ledger
from crawlcw.model import transitions, urls
from crawlcw.model.task import WAITING, Lease, Record, Status, Task, task_id
from crawlcw.model.transitions import is_quarantined

#: A page that sends its reader on within this time is a redirect by other means.
_REDIRECTING = timedelta(seconds=5)
#: So many redirects to known tasks are remembered before those are forgotten that have ended.
_REMEMBERED = 10_000
#: Pages that lead to one another are looked for among so many.
_LONGEST_LOOP = 100
#: So often a redirect is put off, twice as long each time, while its target is another process's.
_MOST_WAITED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """The tasks of this process, and claims of those whose pages are in hand."""

    ledger: Ledger
    held: HeldLeases
    adder: TaskAdder
    settings: Settings
    worker: str

    def is_elsewhere(self, task: Task) -> bool:
        """Return whether another process works on a task."""
        lock = task.lock or ""
        return task.status is Status.PROCESSING and lock.partition(":")[0] != self.worker

    async def claim(self, task: Task) -> Lease | None:
        """Add a task and lease it, unless it is leased or done."""
        # A cancelled claim would leave a lease that no process knows of.
        with anyio.CancelScope(shield=True):
            await self.adder.add([task])
            self.adder.seen.add([task.id])
            record = await self.ledger.tasks.get(task.id)
            if record is None or record.task.status not in WAITING:
                return None
            if is_quarantined(record.task):
                return None  # to be worked on by itself
            # Sent again by itself: what the first one got looks taken to everybody else.
            claimed = await self.ledger.leases.claim(
                [record.task],
                worker=self.worker,
                lease=self.settings.lease,
                max_lost=self.settings.max_lost,
            )
            self.held.add(claimed.leases)
        return next(iter(claimed.leases), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedPages:
    """Ends tasks whose pages are elsewhere.

    Redirects that are followed in place (see `follows`) end at a page in hand, which is recorded
    once, under the URL where it really is.
    """

    pages: Pages
    claims: Claims
    robots: Robots
    scope: Scope
    proxies: ProxyPool
    #: The leases of tasks that redirect, and where they lead, until their outcome is recorded.
    led: dict[bytes, tuple[Lease, bytes]] = field(default_factory=dict)
    #: How often a task was put off because another process worked on its target.
    waited: Counter[bytes] = field(default_factory=Counter)

    def follows(self, attempt: PageAttempt) -> Callable[[str], bool] | None:
        """Return a test for targets that the attempt itself asks for, or None where it asks all.

        Another spelling of its own URL cannot be another task. With a session the way to a page
        may be what matters, and the target shows a session that is logged out; a form, or a
        request that is to be repeated, is not a page. Through a pool of proxies one proxy asks
        for all hops within a host: two that are sent to different places lead in a circle.
        """
        # Of most pages it is never asked.
        return None if attempt.session is not None else partial(self._follows, attempt)

    def _follows(self, attempt: PageAttempt, url: str) -> bool:
        task, request = attempt.lease.task, attempt.request
        if request.method != "GET" or task.id != request.identity()[1]:
            return True
        location = urls.locate(url)
        if task_id(location) == task.id:
            return True
        return location.host == task.host and self.proxies.asks_for(request.url)

    async def redirected(self, attempt: PageAttempt, response: Response) -> Moved | Failed:
        """End a task whose page is elsewhere; the target is asked for by the owner of its host."""
        lease, refusal = attempt.lease, None
        try:
            target = self._target(lease, onward(attempt.request, response))
            # Before the ledger is asked: of two that lead to each other the later one finds this.
            self.led.pop(lease.task.id, None)
            self.led[lease.task.id] = (lease, target.id)
            if len(self.led) > _REMEMBERED:
                del self.led[next(iter(self.led))]
            known = await self._known(target)
            if known is not None and await self._leads_back(lease.task, known):
                raise FetchError(Reason.REDIRECT_LOOP, loop_message(lease.task.url))
        except FetchError as error:
            refusal = error
        await self.pages.recorder.keep(attempt)
        if refusal is None:
            return Moved(outcome=self._alias(lease, response, target.url), target=target)
        refusal.response = response
        failed = self.pages.outcomes.failure(refusal, info_of(response))
        return await self.pages.outcomes.failed(attempt, failed, refusal)

    async def refreshed(self, attempt: PageAttempt, response: Response) -> Moved | None:
        """Hand on a page that sends its reader on at once; None where it is a page itself.

        Unlike a redirect it has content of its own, so it is one wherever its
        target may not be asked for, or is known by another way: two pages that
        lead to each other are two pages.
        """
        refresh = response.refresh
        if refresh is None or refresh.after > _REDIRECTING:
            return None
        lease, request = attempt.lease, attempt.request
        if request.method != "GET" or lease.task.id != request.identity()[1]:
            return None
        try:
            target = self._target(lease, onward(request, response, refresh=refresh.url))
            self._check_robots(refresh.url)
            known = await self._known(target)
        except FetchError:
            return None
        # Its own child is what an earlier attempt handed on, and crashed before it ended.
        if known is not None and known.task.parent != lease.task.id:
            return None
        await self.pages.recorder.keep(attempt)
        return Moved(outcome=self._alias(lease, response, target.url), target=target)

    async def parsed(self, attempt: PageAttempt, response: Response) -> Finished | Failed | Moved:
        """Record a page that redirects followed in place led to, under the URL where it is.

        That URL is a task like any other. Where this process can claim it, the
        response in hand is parsed as its page; where it is known and taken,
        it is somebody else's. Either way the task that led here is finished.
        """
        lease, request = attempt.lease, attempt.request
        # Of another origin that is no secret: it may be asked again.
        headers = portable_headers(request, url=response.url)
        target = self._at(lease.task, request.elsewhere(response.url, headers=headers), hops=0)
        if target.id == lease.task.id or lease.task.id != request.identity()[1]:
            # The same resource by another spelling, or a `dont_filter` request.
            return await self.pages.parsed(attempt, response)
        alias = self._alias(lease, response, response.url)
        home = await self.claims.claim(target)
        if home is None:
            await self.pages.recorder.keep_redirects(attempt)
            return Moved(outcome=alias)
        at_home = replace(attempt, lease=home, request=Request.of(home.task))
        # Its origin may be another one than that of the task which led here.
        self.pages.answered(at_home, response)
        try:
            page = await self.pages.parsed(at_home, response)
        except BaseException:
            # Only the lease of the task that led here is known to be lost.
            self.claims.held.orphans.append(home)
            raise
        return Moved(outcome=alias, in_hand=(home, page))

    def _target(self, lease: Lease, home: Request) -> Task:
        """Return the task of a redirect's target; raises `FetchError` where it may not be asked."""
        self.scope.admit_url(home.url)
        target = self._at(lease.task, home, hops=lease.task.hops + 1)
        if target.host == lease.task.host:
            # The rules of another host are its owner's to read: the outcome of a page is
            # not to depend on the process that has asked for it.
            self._check_robots(home.url)
        deepest = lease.task.options.max_depth
        if deepest is None:
            deepest = self.claims.settings.max_depth
        if deepest is not None and target.depth > max(deepest, lease.task.depth):
            raise FetchError(Reason.REFUSED_DEPTH, f"the redirect to {home.url} is too deep")
        return target

    def _check_robots(self, url: str) -> None:
        """Raise `FetchError` for a URL that the rules disallow, where they are known here."""
        rules = self.robots.known(url)
        if rules is not None and not rules.allows(url):
            raise FetchError(Reason.REFUSED_ROBOTS, f"robots.txt disallows {url}")

    async def _known(self, target: Task) -> Record | None:
        """Return the record of a target; raises `FetchError` for a new one after too many hops."""
        known = await self.claims.ledger.tasks.get(target.id)
        # Pages that lead to one another for ever have no other end than this number.
        if known is None and target.hops > self.claims.settings.max_redirects:
            message = f"more than {self.claims.settings.max_redirects} redirects, the last one to "
            raise FetchError(Reason.REDIRECT_LIMIT, message + target.url)
        return known

    def _at(self, task: Task, home: Request, *, hops: int) -> Task:
        """Return the task of the page that *task* leads to, due in its place.

        Within a host it is as deep as *task*, for a redirect is no link. On another host it is one
        link deeper.
        """
        home.changed = _like(task)
        now = self.pages.outcomes.now()
        target = home.task(now=now, depth=task.depth, parent=task.id, hops=hops)
        due = now if task.due is None else min(now, task.due)
        return replace(target, due=due, depth=task.depth + (target.host != task.host))

    async def _leads_back(self, task: Task, known: Record) -> bool:
        """Return whether a known task, where *task* leads, leads to *task* again.

        The chain ends at a task that has not ended: its own redirect will see this one. Raises
        `Defer` where another process works on that one, and may just have seen as little: a few
        times are enough, for each try is a request.
        """
        # What ended before this task was brought back, to be visited again, has been then.
        since = task.update_time if task.settled and not task.retry else None
        record: Record | None = known
        target = known.task.id
        for _ in range(_LONGEST_LOOP):
            lease, following = self.led.get(target, (None, None))
            if lease is None or not self.claims.held.holds(lease):
                if record is None or record.task.id != target:
                    record = await self.claims.ledger.tasks.get(target)
                if record is None or (since is not None and record.task.update_time < since):
                    return False
                self._check_elsewhere(record.task, task)
                following = record.leads_to
            if following is None:
                return False
            if following == task.id:
                del self.led[task.id]
                return True
            target = following
        return False

    def _check_elsewhere(self, target: Task, task: Task) -> None:
        """Raise `Defer` where another process works on *target*, a few times a task."""
        if not self.claims.is_elsewhere(target):
            return
        if len(self.waited) > _REMEMBERED:
            self.waited.clear()
        self.waited[task.id] += 1
        if self.waited[task.id] <= _MOST_WAITED:
            # Two processes that wait for each other are not to come back together.
            wait = timedelta(seconds=random.uniform(0.5, 1.5) * 2 ** self.waited[task.id])
            raise Defer("the target is being worked on", until=self.pages.outcomes.now() + wait)
        del self.waited[task.id]

    def _alias(self, lease: Lease, response: Response, final_url: str) -> transitions.Moved:
        """Return the end of a task whose page is another one's."""
        visit, revisit = self.pages.outcomes.revisits.of_alias(
            lease.task, now=self.pages.outcomes.now()
        )
        info = replace(info_of(response), final_url=final_url)
        return transitions.Moved(response=info, visit=visit, revisit=revisit)


def _like(task: Task) -> datetime | None:
    """Return when the page behind a redirect is to have changed: one done again leads to one.

    Where this one is only visited again, so is that one, when its own time has come.
    """
    return EACH_RUN if task.settled and task.visit is None else None
