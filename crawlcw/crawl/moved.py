"""Redirects, and the tasks of their targets.

A redirect ends its task, and its target becomes another task. The target is recorded before the
task of the redirect ends, so no target is lost if the process dies between two hops.
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

#: A page with a refresh within this time is a redirect in another form.
_REDIRECTING = timedelta(seconds=5)
#: Maximum number of tasks that are followed to find a loop.
_LONGEST_LOOP = 100


@dataclass(frozen=True, slots=True)
class MovedPages:
    """Ends tasks that redirect to another URL."""

    session: WorkerSession
    outcomes: Outcomes
    _: KW_ONLY
    adder: TaskAdder  #: adds the targets
    robots: Robots
    scope: Scope

    def follows(self, attempt: PageAttempt, url: str) -> bool:
        """Return whether an attempt without a session itself asks for the target of a redirect.

        It does in these cases:
        - The target is another spelling of the task's URL, so it cannot be another task.
        - The request is a form or a repeated request (`dont_filter`), so it is not a page.
        - A pool of proxies is used within a host. One proxy must ask for all hops, because a site
          that redirects two proxies to different places would lead in a circle.
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
        """End a task that redirects; the owner of the target's host requests the target."""
        lease = attempt.lease
        await self.outcomes.keep(attempt)
        try:
            target, record = await self._target(lease, onward(attempt.request, response))
            if await self._leads_back(lease.task, record):
                raise FetchError(Reason.REDIRECT_LOOP, loop_message(lease.task.url))
        except FetchError as error:
            error.response = response
            return await self.outcomes.failed(attempt, error)
        return self._moved(lease, response, target)

    async def refreshed(
        self, attempt: PageAttempt, response: Response, refresh: Refresh
    ) -> Done | None:
        """Redirect a page by its refresh; return None if it is a page itself.

        It is a page itself if the crawl may not request the target, or has its URL from elsewhere.
        """
        lease = attempt.lease
        if refresh.delay > _REDIRECTING or not _is_plain(attempt):
            return None
        try:
            self._check_robots(refresh.url)
            home = onward(attempt.request, response, target=refresh.url)
            target, record = await self._target(lease, home)
        except FetchError:
            return None
        # If the target is the task's own child, an earlier attempt added the target and died before
        # its end.
        if record is not None and record.task.parent != lease.task.id:
            return None
        await self.outcomes.keep(attempt)
        return self._moved(lease, response, target)

    async def parsed(self, attempt: PageAttempt, response: Response) -> Done:
        """Record a page behind redirects that were followed in place, once, under its own URL.

        If this process can claim the task of that URL, and that task's own request equals the
        request that was sent, the response is parsed as its page. In both cases the redirecting
        task is finished.
        """
        lease = attempt.lease
        target_request = onward(attempt.request, response, target=response.url)
        for redirect in attempt.redirects:
            # If one hop dropped a header, no later hop sent it.
            kept_headers = onward(attempt.request, redirect, target=response.url).headers
            target_request.headers = tuple(
                pair for pair in target_request.headers if pair in kept_headers
            )
        target = self._at(lease.task, target_request, hops=0)
        if target.id == lease.task.id or not _is_plain(attempt):
            # The target is another spelling of the same resource, or the request has `dont_filter`.
            return await self.outcomes.parsed(attempt, response)
        home = await self._claim(target)
        if home is None:
            if attempt.exchanges:
                del attempt.exchanges[-1]  # the page belongs to another task
            await self.outcomes.keep(attempt)
            return self._moved(lease, response)
        at_home = replace(attempt, lease=home, request=Request.of(home.task))
        # Its origin may differ from the origin of the redirecting task.
        self.outcomes.answered(at_home, response)
        try:
            page = await self.outcomes.parsed(at_home, response)
        except BaseException:
            # Release this lease too: only the lease of the redirecting task is known to be lost.
            self.outcomes.state.undo(home)
            self.session.leases.orphans.append(home)
            raise
        alias_result = self._moved(lease, response)
        return replace(page, settlements=(*page.settlements, *alias_result.settlements))

    async def _claim(self, target: Task) -> Lease | None:
        """Add the task of a fetched page and lease it, if it waits for a response like this one."""
        # Otherwise a cancelled claim could leave a lease that no process knows.
        with anyio.CancelScope(shield=True):
            # Other processes may request the page from now on, so its cookies are written first, as
            # with links.
            await self.adder.add(())
            await self.adder.put({target.id: target})
            record = await self.session.ledger.tasks.get(target.id)
            if record is None or record.task.status not in WAITING or is_quarantined(record.task):
                return None
            if _exchange(record.task) != _exchange(target):
                return None  # the response to its own request may differ
            settings = self.outcomes.settings
            claimed = await self.session.ledger.leases.claim(
                [record.task],
                worker=self.session.worker,
                lease=settings.lease,
                max_lost=settings.max_lost,
            )
            self.session.leases.add(claimed.leases)
        return next(iter(claimed.leases), None)

    async def _target(self, lease: Lease, home: Request) -> tuple[Task, Record | None]:
        """Return the task of a redirect's target, and its record if the target is known.

        Raises `FetchError` if it may not be asked for.
        """
        settings = self.outcomes.settings
        self.scope.admit_url(home.url, redirected=lease.task)
        target = self._at(lease.task, home, hops=lease.task.hops + 1)
        if target.host == lease.task.host:
            # The owner of another host reads its rules: the outcome of a page must
            # not depend on which process asked for it.
            self._check_robots(home.url)
        max_depth = lease.task.options.max_depth
        if max_depth is None:
            max_depth = settings.max_depth
        if max_depth is not None and target.depth > max(max_depth, lease.task.depth):
            raise FetchError(Reason.REFUSED_DEPTH, f"the redirect to {home.url} is too deep")
        record, limit = await self.session.ledger.tasks.get(target.id), settings.max_redirects
        # Only this limit ends a chain of pages that redirect for ever.
        if record is None and target.hops > limit:
            message = f"more than {limit} redirects, the last one to {target.url}"
            raise FetchError(Reason.REDIRECT_LIMIT, message)
        return target, record

    def _check_robots(self, url: str) -> None:
        """Raise `FetchError` for a URL that the rules disallow, if this process knows them."""
        rules = self.robots.known_rules(url)
        if rules is not None:
            rules.check(url)

    def _at(self, task: Task, home: Request, *, hops: int) -> Task:
        """Return the task of the page that *task* leads to, with the same due time.

        Within a host it is as deep as *task*; on another host it is one link deeper. If *task* is
        done again, the target is done again too.
        """
        home.changed = EACH_RUN if task.settled and task.visit is None else None
        now = self.outcomes.now()
        target = home.task(now=now, depth=task.depth, parent=task.id, hops=hops)
        return replace(target, due=task.due, depth=task.depth + (target.host != task.host))

    async def _leads_back(self, task: Task, target: Record | None) -> bool:
        """Return whether the task that *task* leads to has ended, and leads back to *task*."""
        # If this task was reopened, tasks that ended before the reopening belong to an earlier
        # visit.
        reopened_at = task.update_time if task.settled and not task.retry else None
        record = target
        for _ in range(_LONGEST_LOOP):
            if record is None or (
                reopened_at is not None and record.task.update_time < reopened_at
            ):
                return False
            is_origin = task.hops > 0 and record.task.id == task.parent
            if is_origin and record.task.status is Status.PROCESSING:
                return True  # its redirect has just added *task*, and is being recorded
            next_id = record.leads_to
            if next_id is None or next_id == task.id:
                return next_id is not None
            record = await self.session.ledger.tasks.get(next_id)
        return False

    def _moved(self, lease: Lease, response: Response, target: Task | None = None) -> Done:
        """Return the outcome of a task whose page belongs to *target*, or to the response's URL."""
        visit, revisit = self.outcomes.revisits.of_alias(lease.task, now=self.outcomes.now())
        final_url = response.url if target is None else target.url
        info = replace(info_of(response), final_url=final_url)
        outcome = Moved(response=info, visit=visit, revisit=revisit)
        return Done(
            settlements=(self.outcomes.settled(lease, outcome),),
            produced=Produced(tasks=[] if target is None else [target]),
        )


def _exchange(task: Task) -> tuple[object, ...]:
    """Return the parts of a task's request that change its response, besides its URL."""
    options = task.options
    fetch_options = (
        options.browser,
        options.save_to,
        options.truncate,
        options.accept_statuses,
        options.max_body,
    )
    return *fetch_options, options.session, options.proxy, options.cookies, task.headers


def _is_plain(attempt: PageAttempt) -> bool:
    """Return whether the URL alone identifies the task: it is no form and no repeated request."""
    request = attempt.request
    return request.method == "GET" and attempt.lease.task.id == request.identity()[1]
