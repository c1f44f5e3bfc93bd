"""Add pages to a spider's ledger from outside, also while it is crawled."""

import secrets
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count

from crawlcw.api.request import Request
from crawlcw.api.spider import Spider, callback_named
from crawlcw.cli.chunks import in_chunks
from crawlcw.crawl.link_checks import LinkChecks
from crawlcw.errors import FetchError, SpiderError, UsageError
from crawlcw.ledger.protocol import Ledger
from crawlcw.model.task import ChangedTask, Task

#: Requests a transaction. Tasks of many hosts are spread over SQLite's indexes, and most index
#: pages are written for one task: a million tasks of 1,000 hosts wrote 24 GiB in transactions
#: of 1,000, and 8 GiB in these.
_AT_ONCE = 5_000
#: Seconds between two signals to running crawls; each makes them check all their hosts.
_TELL_EVERY = 0.5


@dataclass(slots=True, kw_only=True)
class Fed:
    """Counts of added and refused requests."""

    new: int = 0
    known: int = 0
    again: int = 0  #: known ones that were reopened
    refused: Counter[str] = field(default_factory=Counter)  #: by reason
    examples: dict[str, str] = field(default_factory=dict)  #: one URL of each reason


class PageAdder:
    """Adds requests to a ledger in batches, in constant memory."""

    def __init__(self, ledger: Ledger, spider: Spider | None, checks: LinkChecks | None) -> None:
        """*spider* is None if its code is not available: then scope and callbacks are unchecked."""
        self._ledger = ledger
        self._spider = spider
        self._checks = checks
        self._callbacks: set[str] = set()
        # The salt makes each request with `dont_filter` a new task, in this call too.
        self._salt = secrets.token_hex(8)
        self._numbers = count()
        self._told_at = float("-inf")
        self.fed = Fed()

    async def add_all(self, requests: Iterator[Request]) -> None:
        """Add each request as soon as *requests* yields it, and signal running crawls.

        Raises `UsageError` for an invalid request or a callback that the spider does not
        have. The requests before it are added.
        """
        try:
            async for batch in in_chunks(requests, at_once=_AT_ONCE):
                await self._add(batch)
        except UsageError as error:
            if self.fed == Fed():
                raise
            raise UsageError(f"{error}; the requests before it are added") from None
        finally:
            if self.fed.new or self.fed.again:
                await self._tell()

    async def _add(self, requests: Sequence[Request]) -> None:
        now = self._ledger.now()
        tasks = [task for request in requests if (task := self._task(request, now)) is not None]
        if not tasks:
            return
        result = await self._ledger.tasks.add(tasks)
        for task, reason in result.rejected:
            self._refuse("store-rejected", f"{task.url}: {reason}")
        self.fed.new += result.new
        self.fed.known += result.existing
        if result.existing:
            self.fed.again += await self._ledger.tasks.admit_nearer(tasks)
            if changed_tasks := [task for task in tasks if isinstance(task, ChangedTask)]:
                self.fed.again += await self._ledger.tasks.reopen_changed(changed_tasks)
        # After the tasks, because a host that woke up before would find nothing.
        await self._ledger.hosts.wake({task.host: now for task in tasks})
        if time.monotonic() - self._told_at >= _TELL_EVERY:
            await self._tell()

    async def _tell(self) -> None:
        self._told_at = time.monotonic()
        await self._ledger.notes.set_control({"fed": secrets.token_hex(8)})

    def _task(self, request: Request, now: datetime) -> Task | None:
        """Return the task of a request; None: refused."""
        self._check_callback(request.callback)
        if request.errback is not None:
            self._check_callback(request.errback)
        refusal = None if self._checks is None else self._checks.refusal(request.url)
        if refusal is not None:
            self._refuse(refusal.reason, request.url)
            return None
        try:
            return request.task(now=now, salt=f"{self._salt} {next(self._numbers)}".encode())
        except FetchError as error:
            self._refuse(error.reason, request.url)
            return None

    def _check_callback(self, name: str) -> None:
        if self._spider is None or name in self._callbacks:
            return
        try:
            callback_named(self._spider, name)
        except SpiderError as error:
            raise UsageError(str(error)) from None
        self._callbacks.add(name)

    def _refuse(self, reason: str, url: str) -> None:
        self.fed.refused[str(reason)] += 1
        self.fed.examples.setdefault(str(reason), url)
