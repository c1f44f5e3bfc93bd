"""Adding pages to a spider's ledger from outside, while crawls of it run or not."""

import secrets
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count

from crawlcw.api.request import Request
from crawlcw.api.spider import Spider, callback_named
from crawlcw.cli.reading_on import as_they_come
from crawlcw.crawl.link_checks import LinkChecks
from crawlcw.errors import FetchError, SpiderError, UsageError
from crawlcw.ledger.protocol import Ledger
from crawlcw.model.task import ChangedTask, Task

#: Tasks of many hosts lie all over SQLite's indexes, and a transaction writes most pages that it
#: touches for one task alone: a million of 1,000 hosts wrote 24 GiB by 1,000, and 8 by so many.
_AT_ONCE = 5_000
#: Seconds between two notes for the crawls that run; each lets them look at all their hosts.
_TELL_EVERY = 0.5


@dataclass(slots=True, kw_only=True)
class Fed:
    """What became of the requests."""

    new: int = 0
    known: int = 0
    again: int = 0  #: of the known ones, those that are to be done after all
    refused: Counter[str] = field(default_factory=Counter)  #: by reason
    examples: dict[str, str] = field(default_factory=dict)  #: one URL of each reason


class PageAdder:
    """Adds requests to a ledger, some hundred at a time, in flat memory."""

    def __init__(self, ledger: Ledger, spider: Spider | None, checks: LinkChecks | None) -> None:
        """*spider* is None where its code is not here: scope and callbacks are not known then."""
        self._ledger = ledger
        self._spider = spider
        self._checks = checks
        self._callbacks: set[str] = set()
        # Each request that is not to be filtered is a task of its own, of this call too.
        self._salt = secrets.token_hex(8)
        self._numbers = count()
        self._told_at = float("-inf")
        self.fed = Fed()

    async def add_all(self, requests: Iterator[Request]) -> None:
        """Add what *requests* yields as soon as it does, and tell the crawls that run.

        Raises `UsageError` for what is no request, or has a callback that the spider has not.
        What was read before is added.
        """
        try:
            async for some in as_they_come(requests, at_once=_AT_ONCE):
                await self._add(some)
        except UsageError as error:
            if self.fed == Fed():
                raise
            raise UsageError(f"{error}; what was read before is added") from None
        finally:
            if self.fed.new or self.fed.again:
                await self._tell()

    async def _add(self, requests: Sequence[Request]) -> None:
        now = self._ledger.now()
        tasks = [task for each in requests if (task := self._task(each, now)) is not None]
        if not tasks:
            return
        added = await self._ledger.tasks.add(tasks)
        for task, why in added.rejected:
            self._refuse("store-rejected", f"{task.url}: {why}")
        self.fed.new += added.new
        self.fed.known += added.known
        if added.known:
            self.fed.again += await self._ledger.tasks.admit_nearer(tasks)
            if changed := [task for task in tasks if isinstance(task, ChangedTask)]:
                self.fed.again += await self._ledger.tasks.reopen_changed(changed)
        # After the tasks: a host that is woken before finds nothing.
        await self._ledger.hosts.wake({task.host: now for task in tasks})
        if time.monotonic() - self._told_at >= _TELL_EVERY:
            await self._tell()

    async def _tell(self) -> None:
        self._told_at = time.monotonic()
        await self._ledger.notes.set_control({"fed": secrets.token_hex(8)})

    def _task(self, request: Request, now: datetime) -> Task | None:
        """Return the task of a request, None where it is refused."""
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
