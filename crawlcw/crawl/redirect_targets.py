"""What the redirects on a host lead to: a page is asked for by one way only.

A page that has a task of its own is that task's to ask for. Of a page that nobody
knows, the attempt that is redirected to it first is told to go on; until that has
ended, nobody else of this process begins with the page.
"""

from typing import Self

from crawlcw.crawl.redirects import REDIRECTS
from crawlcw.downloader.memory_budget import deadline_paused
from crawlcw.ledger.protocol import Ledger
from crawlcw.model import urls
from crawlcw.model.task import Record, Status, task_id

#: So many redirects to known pages are remembered, until the ledger has long known of them.
_REMEMBERED = 10_000
#: Pages that lead to one another are looked for among so many.
_LONGEST_LOOP = 100


class RedirectTargets:
    """The pages that redirects lead to just now, in one process.

    It contains the ids of the tasks that are not to be begun with otherwise.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._coming: set[bytes] = set()
        self._led: dict[bytes, bytes] = {}

    def __contains__(self, task_id: object) -> bool:
        return task_id in self._coming

    def way(self, begin: bytes) -> "Way":
        """Return the way of one attempt at the task *begin*."""
        return Way(self._ledger, begin, coming=self._coming, led=self._led)


class Way:
    """The redirects of one attempt; what it leads to is free at the end of the block."""

    def __init__(
        self, ledger: Ledger, begin: bytes, *, coming: set[bytes], led: dict[bytes, bytes]
    ) -> None:
        self._ledger = ledger
        self._begin = begin
        self._coming = coming
        self._led = led
        self.taken: set[bytes] = set()  #: ids of what it was first to be led to
        self.known: set[bytes] = set()  #: ids of what is asked for by another way

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._coming -= self.taken
        while len(self._led) > _REMEMBERED:
            del self._led[next(iter(self._led))]

    async def goes_on(self, url: str) -> bool:
        """Return whether the attempt is to follow a redirect to *url* itself."""
        target = task_id(urls.locate(url))
        if target in self.taken:
            return True
        if target not in self._coming:
            # Before the ledger is asked: the next one to come is to find it here.
            self._coming.add(target)
            self.taken.add(target)
            with deadline_paused():
                record = await self._ledger.tasks.get(target)
            if record is None or not _has_its_page(record):
                return True
            self._coming.discard(target)
            self.taken.discard(target)
        if self._leads_back(target):
            # Pages that lead to one another are had by no way: the attempt is to find that out.
            return True
        self.known.add(target)
        self._led[self._begin] = target
        return False

    def _leads_back(self, target: bytes) -> bool:
        for _ in range(_LONGEST_LOOP):
            if target not in self._led:
                return False
            target = self._led[target]
            if target == self._begin:
                return True
        return False


def _has_its_page(record: Record) -> bool:
    """Return whether a task has, or will have, a page of its own."""
    if record.task.status is not Status.FINISHED or record.response is None:
        return True
    # What only leads on itself may lead back.
    leads_on = record.response.status in REDIRECTS
    return not leads_on and task_id(urls.locate(record.response.final_url)) == record.task.id
