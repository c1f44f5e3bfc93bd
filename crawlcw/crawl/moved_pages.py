"""Pages that turn out to be somewhere else, and the tasks that they become.

Whether such a page is in hand or has yet to be asked for, it is recorded once, as one task.
The task that led to it ends as its alias.
"""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import anyio

from crawlcw.api.request import EACH_RUN, Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.crawl.adding import TaskAdder
from crawlcw.crawl.callbacks import Scope
from crawlcw.crawl.frontier import Frontier
from crawlcw.crawl.recording import Recorder
from crawlcw.crawl.redirect_targets import RedirectTargets, Way
from crawlcw.crawl.redirects import onward, portable_headers
from crawlcw.crawl.revisits import Revisits
from crawlcw.crawl.robots import Robots
from crawlcw.crawl.seen import SeenFilter
from crawlcw.crawl.settling import Attempt, Done, Settling, info_of
from crawlcw.engine.leases import HeldLeases
from crawlcw.errors import FetchError, Reason
from crawlcw.ledger.protocol import Ledger
from crawlcw.model import urls
from crawlcw.model.task import WAITING, Lease, Task, task_id
from crawlcw.model.transitions import Moved, Settlement, is_quarantined, put_off

#: A page that sends its reader on within this time is a redirect by other means.
_REDIRECTING = timedelta(seconds=5)
_A_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedPages:
    """What every fetcher of a process hands moved pages on by."""

    settings: Settings
    ledger: Ledger
    frontier: Frontier
    robots: Robots
    scope: Scope
    held: HeldLeases
    seen: SeenFilter
    targets: RedirectTargets
    revisits: Revisits
    recorder: Recorder
    adder: TaskAdder
    settling: Settling
    worker: str

    def stays(self, attempt: Attempt, way: Way) -> Callable[[str], Awaitable[bool]] | None:
        """Return what says whether a redirect is followed here, or None where all are.

        Another host has another owner, so what it is asked for is a task of
        its own; and so it is on a host that is served with a delay, for which
        it has to wait, and of a page that has a task already. But with a session the
        way through it may be what matters, and what it leads to shows who is logged
        out; and a form, or a request that is to be repeated, is not a page.
        """
        task, request = attempt.lease.task, attempt.request
        plain = request.method == "GET" and task.id == request.identity()[1]
        if attempt.means.identified is not None or not plain:
            return None

        async def stays(url: str) -> bool:
            location = urls.locate(url)
            if location.host != task.host:
                return False
            # Another spelling of its own URL cannot be another task.
            if task_id(location) == task.id:
                return True
            return not self.frontier.delay(task.host) and await way.goes_on(url)

        return stays

    async def redirected(self, attempt: Attempt, response: Response, way: Way) -> Done | Lease:
        """Hand on a page that is to be fetched by the owner of its host, later, or is anyway."""
        lease, refusal = attempt.lease, None
        try:
            target = self._target(lease, onward(attempt.request, response), way)
            leads_back = await self.targets.lead_back(lease.task, target.id)
            if leads_back is None:
                # Two processes that wait for each other are not to come back together.
                return put_off(lease, until=self.ledger.now() + random.uniform(1, 3) * _A_SECOND)
            if leads_back:
                message = f"the redirects lead back to {lease.task.url}"
                refusal = FetchError(Reason.REDIRECT_LOOP, message)
        except FetchError as error:
            refusal = error
        await self.settling.kept(self.recorder.keep(attempt.request))
        if refusal is None:
            return self._handed_on(lease, target, response)
        refusal.response = response
        failed = self.settling.failure(refusal, info_of(response))
        return await self.settling.failed(attempt, failed, refusal)

    async def refreshed(self, attempt: Attempt, response: Response) -> Done | None:
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
        rules = self.robots.known(refresh.url)
        if rules is not None and not rules.allows(refresh.url):
            return None
        try:
            home = onward(request, response, refresh=refresh.url)
            target = self._target(lease, home, None)
        except FetchError:
            return None
        known = await self.ledger.tasks.get(target.id)
        # Its own child is what an earlier attempt handed on, and crashed before it ended.
        if known is not None and known.task.parent != lease.task.id:
            return None
        await self.settling.kept(self.recorder.keep(request))
        return self._handed_on(lease, target, response)

    async def parsed(self, attempt: Attempt, response: Response) -> Done:
        """Record a page once, under the URL where it really is.

        That URL is a task like any other. Where this process can claim it, the
        response in hand is parsed as its page; where it is known and taken,
        it is somebody else's. Either way the task that led here is finished.
        """
        lease, request = attempt.lease, attempt.request
        # Of another origin that is no secret: it may be asked again.
        headers = portable_headers(request, url=response.url)
        home_request = request.elsewhere(response.url, headers=headers)
        home_request.changed = _like(lease.task)
        target = home_request.task(
            now=self.ledger.now(), depth=lease.task.depth, parent=lease.task.id
        )
        if target.id == lease.task.id or lease.task.id != request.identity()[1]:
            # The same resource by another spelling, or a `dont_filter` request.
            return await self.settling.parsed(attempt, response)
        alias = self._alias(lease, response, final_url=response.url)
        home = await self._claim(target)
        if home is None:
            await self.settling.kept(self.recorder.keep_redirects(request))
            return Done(settlements=(alias,))
        at_home = replace(attempt, lease=home, request=Request.of(home.task))
        # Its origin may be another one than that of the task which led here.
        self.settling.answered(at_home, response)
        try:
            parsed = await self.settling.parsed(at_home, response)
        except BaseException:
            # Only the lease of the task that led here is known to be lost.
            self.held.orphan(home)
            raise
        return replace(parsed, settlements=(*parsed.settlements, alias))

    def _target(self, lease: Lease, home: Request, way: Way | None) -> Task:
        """Return the task of what a redirect leads to; raises `FetchError` where it may not."""
        home.changed = _like(lease.task)
        self.scope.admit_url(home.url)
        if way is not None and home.identity()[1] in way.known:
            # Asked for by another way, or just here by another task: no link further.
            return home.task(
                now=self.ledger.now(),
                depth=lease.task.depth,
                parent=lease.task.id,
                hops=lease.task.hops,
            )
        deepest = lease.task.options.max_depth
        if deepest is None:
            deepest = self.settings.max_depth
        if deepest is not None and lease.task.depth >= deepest:
            raise FetchError(Reason.REFUSED_DEPTH, f"the redirect to {home.url} is too deep")
        # Hosts that lead to one another for ever have no other end than this number.
        hops = lease.task.hops + 1
        if hops > self.settings.max_redirects:
            message = f"more than {self.settings.max_redirects} redirects, the last one to "
            raise FetchError(Reason.REDIRECT_LIMIT, message + home.url)
        return home.task(
            now=self.ledger.now(), depth=lease.task.depth + 1, parent=lease.task.id, hops=hops
        )

    def _handed_on(self, lease: Lease, target: Task, response: Response) -> Done:
        alias = self._alias(lease, response, final_url=target.url)
        return Done(tasks=(target,), settlements=(alias,))

    def _alias(self, lease: Lease, response: Response, *, final_url: str) -> Settlement:
        """Return the end of a task whose page is another one's."""
        visit, revisit = self.revisits.of_alias(lease.task, now=self.ledger.now())
        info = replace(info_of(response), final_url=final_url)
        return self.settling.settle(lease, Moved(response=info, visit=visit, revisit=revisit))

    async def _claim(self, task: Task) -> Lease | None:
        """Add a task and lease it, if nobody has it or has done it."""
        # A cancelled claim would leave a lease that nobody knows of.
        with anyio.CancelScope(shield=True):
            await self.adder.add([task])
            self.seen.add([task.id])
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


def _like(task: Task) -> datetime | None:
    """Return when the page behind a redirect is to have changed: one done again leads to one.

    Where this one is only visited again, so is that one, when its own time has come.
    """
    return EACH_RUN if task.settled and task.visit is None else None
