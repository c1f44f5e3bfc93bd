"""End tasks whose pages redirect, and add tasks for the targets of redirects.

A redirect ends its task, and the redirect's target becomes a new task. The target is recorded
before the redirecting task ends, so no target is lost if the process dies between these two writes.
"""

from collections import OrderedDict
from dataclasses import KW_ONLY, dataclass, field, replace
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
from crawlcw.errors import Defer, FetchError, Reason
from crawlcw.fetch.redirects import loop_message, onward
from crawlcw.model import urls
from crawlcw.model.health import remember
from crawlcw.model.task import WAITING, Lease, Record, Status, Task, task_id
from crawlcw.model.transitions import Moved, is_quarantined

#: A page with a refresh (`<meta http-equiv=refresh>`) after at most this time is a redirect.
_REDIRECTING = timedelta(seconds=5)
#: How long a page waits for the outcome of its canonical page.
_CANONICAL_WAIT = timedelta(seconds=2)
#: Maximum number of tasks to follow in the search for a redirect loop.
_LONGEST_LOOP = 100


@dataclass(frozen=True, slots=True)
class MovedPages:
    """Finishes tasks whose pages redirect to another URL."""

    session: WorkerSession
    outcomes: Outcomes
    _: KW_ONLY
    adder: TaskAdder  #: adds the targets
    robots: Robots
    scope: Scope
    #: Ids of the last tasks that got the page of another URL, so that they are no aliases.
    _homes: OrderedDict[bytes, None] = field(init=False, default_factory=OrderedDict)
    #: Ids of the last tasks that have waited for their canonical pages.
    _delayed: OrderedDict[bytes, None] = field(init=False, default_factory=OrderedDict)

    def follows(self, attempt: PageAttempt, url: str) -> bool:
        """Return whether an attempt without a session itself requests a redirect's target.

        The attempt requests the target in these cases:
        - The target is another spelling of the task's URL, so both URLs belong to the same task.
        - The request is a form or has `dont_filter`, so its URL cannot identify the request.
        - The target is on the same host, and a pool of proxies is used. One proxy must send all
          hops. If a site redirects each proxy to another URL, the hops of two proxies would never
          end.
        """
        task, request = attempt.lease.task, attempt.request
        if not _is_plain(attempt):
            return True
        location = urls.locate(url)
        if self._id_at(request.retargeted(url)) == task.id:
            return True
        proxies = self.outcomes.causes.proxies
        return location.host == task.host and proxies.asks_for(request.url)

    async def redirected(self, attempt: PageAttempt, response: Response) -> Done:
        """End a task that redirects; the owner of the target's host requests the target later."""
        lease = attempt.lease
        await self.outcomes.keep(attempt)
        try:
            home = self.scope.addressed(onward(attempt.request, response))
            target, record = await self._target(lease, home)
            if await self._leads_back(lease.task, record):
                raise FetchError(Reason.REDIRECT_LOOP, loop_message(lease.task.url))
        except FetchError as error:
            error.response = response
            return await self.outcomes.failed(attempt, error)
        return self._moved_outcome(lease, response, target.url, target)

    async def refreshed(
        self, attempt: PageAttempt, response: Response, refresh: Refresh
    ) -> Done | None:
        """End a page whose refresh is a redirect; return None if the page must be parsed.

        The page must be parsed if the crawl may not request the refresh's target, or if the target
        is already another page's task.
        """
        lease = attempt.lease
        if refresh.delay > _REDIRECTING or not _is_plain(attempt):
            return None
        try:
            self._check_robots(refresh.url)
            home = self.scope.addressed(onward(attempt.request, response, target=refresh.url))
            target, record = await self._target(lease, home)
        except FetchError:
            return None
        # A target whose parent is this task was added by an earlier attempt, which then died.
        if record is not None and record.task.parent != lease.task.id:
            return None
        await self.outcomes.keep(attempt)
        return self._moved_outcome(lease, response, target.url, target)

    async def parsed(self, attempt: PageAttempt, response: Response) -> Done:
        """Record the last page of a chain of redirects under the task of the page's own URL.

        The page is parsed only if this process can claim the task of the page's URL, and only if
        that task's request equals the request that was sent. In any case the redirecting task is
        finished.
        """
        lease = attempt.lease
        target_request = self.scope.addressed(
            onward(attempt.request, response, target=response.url)
        )
        for redirect in attempt.redirects:
            # Keep only headers that no redirect has dropped, because the last hop sent only these.
            kept_headers = onward(attempt.request, redirect, target=response.url).headers
            target_request.headers = tuple(
                pair for pair in target_request.headers if pair in kept_headers
            )
        target = self._task_at(lease.task, target_request, hops=0)
        if target.id == lease.task.id or not _is_plain(attempt):
            # The target is another spelling of the same resource, or the request has `dont_filter`.
            return await self.outcomes.parsed(attempt, response)
        return await self._parsed_as(target, attempt, response)

    async def canonical(self, attempt: PageAttempt, response: Response) -> Done | None:
        """Record a page under the task of its canonical URL; return None if it is its own.

        A canonical URL of another host does not count, because the page of one site must not
        decide about the pages of another. Raises `Defer` until the canonical page is finished.
        """
        lease, url = attempt.lease, response.canonical
        if url is None or not _is_plain(attempt):
            return None
        home = self.scope.addressed(onward(attempt.request, response, target=url))
        own_ids = (lease.task.id, self._id_at(attempt.request.retargeted(response.url)))
        try:
            self.scope.admit_url(home.url, redirected=lease.task)
            self._check_robots(home.url)
        except FetchError:
            return None
        target = self._task_at(lease.task, home, hops=0)
        if target.id in own_ids or target.host != urls.locate(response.url).host:
            return None
        record = await self.session.ledger.tasks.get(target.id)
        # Two pages may name each other, and a canonical URL may be a page that has failed.
        if await self._leads_back(lease.task, record) or (
            record is not None and record.task.status is Status.IGNORED
        ):
            return None
        if record is None or record.task.status in WAITING:
            lease_there = await self._claim(target)
            if lease_there is not None:
                return await self._parsed_at(lease_there, target, attempt, response)
            record = await self.session.ledger.tasks.get(target.id)
        if record is not None and (
            record.task.status is Status.FINISHED or target.id in self._homes
        ):
            return await self._alias(target, attempt, response)
        if lease.task.id in self._delayed and target.id > lease.task.id:
            return None  # its canonical page may wait too, because two pages may name each other
        # Wait, because the canonical URL may redirect to this page, or have no page.
        remember(self._delayed, lease.task.id, None)
        raise Defer("its canonical page is not finished", due=_CANONICAL_WAIT)

    def _id_at(self, request: Request) -> bytes:
        """Return the id of the task for a GET of a request's URL."""
        return task_id(urls.locate(self.scope.addressed(request).url))

    async def _parsed_as(self, target: Task, attempt: PageAttempt, response: Response) -> Done:
        """Record a page under the task *target* if this process can claim it, else as its alias."""
        home = await self._claim(target)
        if home is None:
            return await self._alias(target, attempt, response)
        return await self._parsed_at(home, target, attempt, response)

    async def _alias(self, target: Task, attempt: PageAttempt, response: Response) -> Done:
        """Record that the page of a task belongs to the task *target*."""
        if attempt.exchanges:
            del attempt.exchanges[-1]  # another task stores the page
        await self.outcomes.keep(attempt)
        return self._moved_outcome(attempt.lease, response, target.url)

    async def _parsed_at(
        self, home: Lease, target: Task, attempt: PageAttempt, response: Response
    ) -> Done:
        """Record a page under the task *target*, which *home* has claimed."""
        remember(self._homes, target.id, None)
        at_home = replace(attempt, lease=home, request=Request.of(home.task))
        # Count the response for the target's origin, because a redirect may lead to another origin.
        self.outcomes.answered(at_home, response)
        try:
            page = await self.outcomes.parsed(at_home, response)
        except BaseException:
            # The fetcher releases only the lease of the redirecting task, so let the session
            # release the lease of the target's task.
            self.outcomes.state.undo(home)
            self.session.leases.orphans.append(home)
            raise
        alias_result = self._moved_outcome(attempt.lease, response, target.url)
        return replace(page, settlements=(*page.settlements, *alias_result.settlements))

    async def _claim(self, target: Task) -> Lease | None:
        """Add and claim the task of a fetched page, if the task's request equals the sent one."""
        # Shield the claim, because a cancelled claim could leave a lease that no process knows.
        with anyio.CancelScope(shield=True):
            # Write cookies before the task, because other processes may request the task's page as
            # soon as the task is written.
            await self.adder.add(())
            await self.adder.put({target.id: target})
            record = await self.session.ledger.tasks.get(target.id)
            if record is None or record.task.status not in WAITING or is_quarantined(record.task):
                return None
            if self._exchange(record.task) != self._exchange(target):
                return None  # the task's own request may get another response
            settings = self.outcomes.settings
            claimed = await self.session.ledger.leases.claim(
                [record.task],
                worker=self.session.worker,
                lease=settings.lease,
                max_lost=settings.max_lost,
            )
            self.session.leases.add(claimed.leases)
        return next(iter(claimed.leases), None)

    def _exchange(self, task: Task) -> tuple[object, ...]:
        """Return the parts of a task's request, without the URL, that determine the response."""
        options, headers = task.options, task.headers
        if self.outcomes.settings.referer != "off":
            # Several pages lead to one task, so the Referer of the first page must not decide.
            headers = tuple(pair for pair in headers if pair[0] != "Referer")
        fetch_options = (
            options.browser,
            options.save_to,
            options.truncate,
            options.accept_statuses,
            options.max_body,
        )
        return *fetch_options, options.session, options.proxy, options.cookies, headers

    async def _target(self, lease: Lease, home: Request) -> tuple[Task, Record | None]:
        """Return the task of a redirect's target, and the target's record if the ledger has it.

        Raises `FetchError` if the target may not be requested.
        """
        settings = self.outcomes.settings
        self.scope.admit_url(home.url, redirected=lease.task)
        target = self._task_at(lease.task, home, hops=lease.task.hops + 1)
        if target.host == lease.task.host:
            # Only a host's owner checks the robots.txt of the host, because the outcome of a page
            # must not depend on which process has requested the page.
            self._check_robots(home.url)
        max_depth = lease.task.options.max_depth
        if max_depth is None:
            max_depth = settings.max_depth
        if max_depth is not None and target.depth > max(max_depth, lease.task.depth):
            raise FetchError(Reason.REFUSED_DEPTH, f"the redirect to {home.url} is too deep")
        record, limit = await self.session.ledger.tasks.get(target.id), settings.max_redirects
        # Without this limit, a chain of pages could redirect for ever.
        if record is None and target.hops > limit:
            message = f"more than {limit} redirects, the last one to {target.url}"
            raise FetchError(Reason.REDIRECT_LIMIT, message)
        return target, record

    def _check_robots(self, url: str) -> None:
        """Raise `FetchError` for a URL that its robots.txt disallows, if the rules are known."""
        rules = self.robots.known_rules(url)
        if rules is not None:
            rules.check(url)

    def _task_at(self, task: Task, home: Request, *, hops: int) -> Task:
        """Return the task for the target of a redirect of *task*; both have the same due time.

        A target on another host is one link deeper than *task*, unless *task* is a start URL, which
        may redirect to its page on another host. Any other target is as deep as *task*. If *task*
        is a repeated visit, the target is requested again too.
        """
        home.changed = EACH_RUN if task.settled and task.visit is None else None
        now = self.outcomes.now()
        target = home.task(now=now, depth=task.depth, parent=task.id, hops=hops)
        depth = task.depth + (task.depth > 0 and target.host != task.host)
        return replace(target, due=task.due, depth=depth)

    async def _leads_back(self, task: Task, target: Record | None) -> bool:
        """Return whether the redirects from *target* lead back to *task*."""
        # If *task* was reopened, ignore tasks that ended earlier, because their visits are older.
        reopened_at = task.update_time if task.settled and not task.retry else None
        record = target
        for _ in range(_LONGEST_LOOP):
            if record is None or (
                reopened_at is not None and record.task.update_time < reopened_at
            ):
                return False
            is_origin = task.hops > 0 and record.task.id == task.parent
            if is_origin and record.task.status is Status.PROCESSING:
                return True  # the redirect of *task*'s parent has just added *task*
            next_id = record.leads_to
            if next_id is None or next_id == task.id:
                return next_id is not None
            record = await self.session.ledger.tasks.get(next_id)
        return False

    def _moved_outcome(
        self, lease: Lease, response: Response, final_url: str, *new_tasks: Task
    ) -> Done:
        """Return the outcome of a task whose page belongs to the task of *final_url*."""
        visit, revisit = self.outcomes.revisits.of_alias(lease.task, now=self.outcomes.now())
        info = replace(info_of(response), final_url=final_url)
        outcome = Moved(response=info, visit=visit, revisit=revisit)
        return Done(
            settlements=(self.outcomes.settled(lease, outcome),),
            produced=Produced(tasks=[*new_tasks]),
        )


def _is_plain(attempt: PageAttempt) -> bool:
    """Return whether the attempt's request is a GET whose URL alone identifies the task."""
    request = attempt.request
    return request.method == "GET" and attempt.lease.task.id == request.identity()[1]
