"""Redirects, and the tasks of the pages where they lead.

A redirect ends its task, and its target is a task of its own: a process that dies between two
hops has recorded the target before the end of the task that led there.
"""

from dataclasses import KW_ONLY, dataclass, replace
from datetime import timedelta

import anyio

from crawlcw.api.page_head import Refresh
from crawlcw.api.request import EACH_RUN, Request
from crawlcw.api.response import Response
from crawlcw.crawl.callbacks import Produced, Scope
from crawlcw.crawl.causes import PageAttempt
from crawlcw.crawl.committer import TaskAdder
from crawlcw.crawl.outcomes import Done, Outcomes, info_of
from crawlcw.crawl.robots import Robots
from crawlcw.engine.session import WorkerSession
from crawlcw.errors import FetchError, Reason
from crawlcw.fetch.redirects import loop_message, onward
from crawlcw.model import urls
from crawlcw.model.task import WAITING, Lease, Record, Status, Task, task_id
from crawlcw.model.transitions import Moved, is_quarantined

#: A page that sends its reader on within this time is a redirect by other means.
_REDIRECTING = timedelta(seconds=5)
#: Pages that lead to one another are looked for among so many.
_LONGEST_LOOP = 100


@dataclass(frozen=True, slots=True)
class MovedPages:
    """Ends tasks whose pages are elsewhere."""

    session: WorkerSession
    outcomes: Outcomes
    _: KW_ONLY
    adder: TaskAdder  #: adds the targets
    robots: Robots
    scope: Scope

    def follows(self, attempt: PageAttempt, url: str) -> bool:
        """Return whether an attempt without a session itself asks for the target of a redirect.

        Another spelling of its own URL cannot be another task; a form, or a request that is to be
        repeated, is not a page. One proxy of a pool asks for all hops within a host: two proxies
        that are sent to different places lead in a circle.
        """
        task, request = attempt.lease.task, attempt.request
        if not _is_plain(attempt):
            return True
        location = urls.locate(url)
        if task_id(location) == task.id:
            return True
        proxies = self.outcomes.causes.proxies
        return location.host == task.host and proxies.asks_for(request.url)

    async def redirected(self, attempt: PageAttempt, response: Response) -> Done:
        """End a task whose page is elsewhere; the target is asked for by the owner of its host."""
        lease = attempt.lease
        await self.outcomes.keep(attempt)
        try:
            target, known = await self._target(lease, onward(attempt.request, response))
            if await self._leads_back(lease.task, known):
                raise FetchError(Reason.REDIRECT_LOOP, loop_message(lease.task.url))
        except FetchError as error:
            error.response = response
            return await self.outcomes.failed(attempt, error)
        return self._moved(lease, response, target)

    async def refreshed(
        self, attempt: PageAttempt, response: Response, refresh: Refresh
    ) -> Done | None:
        """Hand on a page that sends its reader on at once; None where it is a page itself.

        It is one if its target may not be asked for, or is known by another way.
        """
        lease = attempt.lease
        if refresh.after > _REDIRECTING or not _is_plain(attempt):
            return None
        try:
            self._check_robots(refresh.url)
            home = onward(attempt.request, response, target=refresh.url)
            target, known = await self._target(lease, home)
        except FetchError:
            return None
        # Its own child is what an earlier attempt handed on, and crashed before it ended.
        if known is not None and known.task.parent != lease.task.id:
            return None
        await self.outcomes.keep(attempt)
        return self._moved(lease, response, target)

    async def parsed(self, attempt: PageAttempt, response: Response) -> Done:
        """Record a page that redirects followed in place led to, once, under the URL where it is.

        If this process can claim the task of that URL, and its own request is the one that was
        sent, the response in hand is parsed as its page. Either way the task that led here is
        finished.
        """
        lease = attempt.lease
        there = onward(attempt.request, response, target=response.url)
        for redirect in attempt.redirects:
            # A header that one hop has dropped was not sent to any later one.
            passed = onward(attempt.request, redirect, target=response.url).headers
            there.headers = tuple(pair for pair in there.headers if pair in passed)
        target = self._at(lease.task, there, hops=0)
        if target.id == lease.task.id or not _is_plain(attempt):
            # The same resource by another spelling, or a `dont_filter` request.
            return await self.outcomes.parsed(attempt, response)
        home = await self._claim(target)
        if home is None:
            if attempt.exchanges:
                del attempt.exchanges[-1]  # the page is another task's
            await self.outcomes.keep(attempt)
            return self._moved(lease, response)
        at_home = replace(attempt, lease=home, request=Request.of(home.task))
        # Its origin may be another one than that of the task which led here.
        self.outcomes.answered(at_home, response)
        try:
            page = await self.outcomes.parsed(at_home, response)
        except BaseException:
            # Only the lease of the task that led here is known to be lost.
            self.outcomes.state.undo(home)
            self.session.held.orphans.append(home)
            raise
        moved = self._moved(lease, response)
        return replace(page, settlements=(*page.settlements, *moved.settlements))

    async def _claim(self, target: Task) -> Lease | None:
        """Add the task of a page in hand and lease it, if it waits for an answer like this one."""
        # A cancelled claim would leave a lease that no process knows of.
        with anyio.CancelScope(shield=True):
            # Other processes may ask for it from here on: as with links, its cookies come first.
            await self.adder.add(())
            await self.adder.put({target.id: target})
            record = await self.session.ledger.tasks.get(target.id)
            if record is None or record.task.status not in WAITING or is_quarantined(record.task):
                return None
            if _exchange(record.task) != _exchange(target):
                return None  # the answer to its own request may be another one
            settings = self.outcomes.settings
            claimed = await self.session.ledger.leases.claim(
                [record.task],
                worker=self.session.worker,
                lease=settings.lease,
                max_lost=settings.max_lost,
            )
            self.session.held.add(claimed.leases)
        return next(iter(claimed.leases), None)

    async def _target(self, lease: Lease, home: Request) -> tuple[Task, Record | None]:
        """Return the task of a redirect's target, and its record where it is known.

        Raises `FetchError` where it may not be asked for.
        """
        settings = self.outcomes.settings
        self.scope.admit_url(home.url, redirected=lease.task)
        target = self._at(lease.task, home, hops=lease.task.hops + 1)
        if target.host == lease.task.host:
            # The rules of another host are its owner's to read: the outcome of a page is
            # not to depend on the process that has asked for it.
            self._check_robots(home.url)
        deepest = lease.task.options.max_depth
        if deepest is None:
            deepest = settings.max_depth
        if deepest is not None and target.depth > max(deepest, lease.task.depth):
            raise FetchError(Reason.REFUSED_DEPTH, f"the redirect to {home.url} is too deep")
        known, most = await self.session.ledger.tasks.get(target.id), settings.max_redirects
        # Pages that lead to one another for ever have no other end than this number.
        if known is None and target.hops > most:
            message = f"more than {most} redirects, the last one to {target.url}"
            raise FetchError(Reason.REDIRECT_LIMIT, message)
        return target, known

    def _check_robots(self, url: str) -> None:
        """Raise `FetchError` for a URL that the rules disallow, where they are known here."""
        rules = self.robots.known(url)
        if rules is not None:
            rules.check(url)

    def _at(self, task: Task, home: Request, *, hops: int) -> Task:
        """Return the task of the page that *task* leads to, due in its place.

        Within a host it is as deep as *task*; on another host it is one link deeper. If *task* is
        done again, so is it.
        """
        home.changed = EACH_RUN if task.settled and task.visit is None else None
        now = self.outcomes.now()
        target = home.task(now=now, depth=task.depth, parent=task.id, hops=hops)
        return replace(target, due=task.due, depth=task.depth + (target.host != task.host))

    async def _leads_back(self, task: Task, target: Record | None) -> bool:
        """Return whether the task where *task* leads has ended, and leads to *task* again."""
        # What ended before this task was brought back, to be visited again, has been then.
        since = task.update_time if task.settled and not task.retry else None
        record = target
        for _ in range(_LONGEST_LOOP):
            if record is None or (since is not None and record.task.update_time < since):
                return False
            is_origin = task.hops > 0 and record.task.id == task.parent
            if is_origin and record.task.status is Status.PROCESSING:
                return True  # its redirect has just added *task*, and is being recorded
            following = record.leads_to
            if following is None or following == task.id:
                return following is not None
            record = await self.session.ledger.tasks.get(following)
        return False

    def _moved(self, lease: Lease, response: Response, target: Task | None = None) -> Done:
        """Return the end of a task whose page is that of *target*, or of the response's URL."""
        visit, revisit = self.outcomes.revisits.of_alias(lease.task, now=self.outcomes.now())
        final_url = response.url if target is None else target.url
        info = replace(info_of(response), final_url=final_url)
        outcome = Moved(response=info, visit=visit, revisit=revisit)
        return Done(
            settlements=(self.outcomes.settled(lease, outcome),),
            produced=Produced(tasks=[] if target is None else [target]),
        )


def _exchange(task: Task) -> tuple[object, ...]:
    """Return the parts of a task's request that change its answer, beside its URL."""
    own = task.options
    how = own.browser, own.save_to, own.truncate, own.accept_statuses, own.max_body
    return *how, own.session, own.proxy, own.cookies, task.headers


def _is_plain(attempt: PageAttempt) -> bool:
    """Return whether the URL alone makes the task: it is no form, and no repeated request."""
    request = attempt.request
    return request.method == "GET" and attempt.lease.task.id == request.identity()[1]
