"""Add pages to a spider's ledger from outside its crawl, also while the crawl runs."""

import secrets
import time
from collections import Counter
from collections.abc import AsyncIterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count

from crawlcw.api.request import Request
from crawlcw.api.spider import Spider, callback_named
from crawlcw.crawl.link_checks import LinkChecks
from crawlcw.errors import FetchError, SpiderError, UsageError
from crawlcw.ledger.protocol import Ledger
from crawlcw.model.task import ChangedTask, Task

#: Number of requests in a transaction. In large batches SQLite writes fewer index pages. For a
#: million tasks SQLite wrote 8 GiB in these batches, and 24 GiB in batches of 1,000.
BATCH_SIZE = 5_000
#: Minimum seconds between two signals in the ledger, because each makes a crawl check all hosts.
_SIGNAL_EVERY = 0.5


@dataclass(slots=True, kw_only=True)
class AddedPages:
    """The result of adding pages to a crawl."""

    new: int = 0  #: number of new tasks
    existing: int = 0  #: number of requests whose task the ledger had already
    reopened: int = 0  #: number of existing tasks that will run again
    refused: Counter[str] = field(default_factory=Counter)  #: number of refused requests, by reason
    examples: dict[str, str] = field(default_factory=dict)  #: one refused URL for each reason


class PageAdder:
    """Adds requests to a ledger in batches, in constant memory."""

    def __init__(self, ledger: Ledger, spider: Spider | None, checks: LinkChecks | None) -> None:
        """*spider* is None if its code is missing; then scope and callbacks are not checked."""
        self._ledger = ledger
        self._spider = spider
        self._checks = checks
        self._callbacks: set[str] = set()
        # This random salt gives a repeated request with `dont_filter` a new task id.
        self._salt = secrets.token_hex(8)
        self._dont_filter_numbers = count()
        self._signalled_at = float("-inf")
        self.counts = AddedPages()

    async def add_all(self, batches: AsyncIterable[Sequence[Request]]) -> None:
        """Add each batch as soon as *batches* yields it, and signal running crawls.

        Raises `UsageError` for an invalid request or a callback that the spider does not have. All
        requests before the invalid request are added.
        """
        try:
            async for batch in batches:
                await self._add(batch)
        except UsageError as error:
            if self.counts == AddedPages():
                raise
            raise UsageError(f"{error}; the requests before it are added") from None
        finally:
            if self.counts.new or self.counts.reopened:
                await self._signal_crawls()

    async def _add(self, requests: Sequence[Request]) -> None:
        now = self._ledger.now()
        tasks = [task for request in requests if (task := self._task(request, now)) is not None]
        if not tasks:
            return
        result = await self._ledger.tasks.add(tasks)
        for task, reason in result.rejected:
            self._count_refusal("store-rejected", f"{task.url}: {reason}")
        self.counts.new += result.new
        self.counts.existing += result.existing
        if result.existing:
            self.counts.reopened += await self._ledger.tasks.admit_nearer(tasks)
            if changed_tasks := [task for task in tasks if isinstance(task, ChangedTask)]:
                self.counts.reopened += await self._ledger.tasks.reopen_changed(changed_tasks)
        # Wake the hosts after adding the tasks, because a host that wakes too early finds no task.
        await self._ledger.hosts.wake({task.host: now for task in tasks})
        if time.monotonic() - self._signalled_at >= _SIGNAL_EVERY:
            await self._signal_crawls()

    async def _signal_crawls(self) -> None:
        self._signalled_at = time.monotonic()
        await self._ledger.notes.set_control({"fed": secrets.token_hex(8)})

    def _task(self, request: Request, now: datetime) -> Task | None:
        """Return the task of a request, or None if the request is refused."""
        self._check_callback(request.callback)
        if request.errback is not None:
            self._check_callback(request.errback)
        refusal = None
        if self._checks is not None:
            request = self._checks.scope.addressed(request)
            refusal = self._checks.refusal(request.url)
        if refusal is not None:
            self._count_refusal(refusal.reason, request.url)
            return None
        try:
            return request.task(
                now=now, salt=f"{self._salt} {next(self._dont_filter_numbers)}".encode()
            )
        except FetchError as error:
            self._count_refusal(error.reason, request.url)
            return None

    def _check_callback(self, name: str) -> None:
        if self._spider is None or name in self._callbacks:
            return
        try:
            callback_named(self._spider, name)
        except SpiderError as error:
            raise UsageError(str(error)) from None
        self._callbacks.add(name)

    def _count_refusal(self, reason: str, url: str) -> None:
        self.counts.refused[str(reason)] += 1
        self.counts.examples.setdefault(str(reason), url)
