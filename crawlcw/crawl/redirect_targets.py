"""Targets of redirects: a page is asked for by one way only, and redirects in a circle have none.

A page that has a task of its own is that task's to ask for. Of a page that no task is known
of, the attempt that is redirected to it first is told to go on; until that has
ended, no other fetcher of this process begins with the page. Tasks that lead to one another
have no page: the one whose redirect closes the circle fails.
"""

from typing import Self

from crawlcw.downloader.memory_budget import deadline_paused
from crawlcw.engine.leases import HeldLeases
from crawlcw.ledger.protocol import Ledger
from crawlcw.model import urls
from crawlcw.model.task import Status, Task, task_id

#: So many redirects to other tasks are remembered before those are forgotten that have ended.
_REMEMBERED = 10_000
#: Pages that lead to one another are looked for among so many.
_LONGEST_LOOP = 100


class RedirectTargets:
    """The pages that redirects lead to just now, in one process.

    It contains the ids of the tasks that are not to be begun with otherwise.
    """

    def __init__(self, ledger: Ledger, held: HeldLeases, *, worker: str) -> None:
        self._ledger = ledger
        self._held = held
        self._worker = worker
        self._coming: set[bytes] = set()
        #: Of tasks that this process holds, where their redirects lead.
        self._led: dict[bytes, bytes] = {}
        self._waited: set[bytes] = set()

    def __contains__(self, task_id: object) -> bool:
        return task_id in self._coming

    def way(self, begin: bytes) -> "Way":
        """Return the way of one attempt at the task *begin*."""
        self._led.pop(begin, None)
        if len(self._led) > _REMEMBERED:
            self._led = {each: target for each, target in self._led.items() if each in self._held}
        if len(self._waited) > _REMEMBERED:
            self._waited.clear()
        return Way(self._ledger, coming=self._coming)

    async def lead_back(self, task: Task, target: bytes) -> bool | None:
        """Note that *task* leads to *target*; return whether that leads to *task* again.

        The chain ends at a task that has not ended: its own redirect will see this one. None
        where another process works on that one, and may just have seen as little: *task* is to
        be tried again. Once is enough, for each try is a request.
        """
        # What ended before this task was brought back, to be visited again, has been then.
        since = task.update_time if task.settled and not task.retry else None
        # Before the ledger is asked: of two that lead to each other the later one finds this.
        self._led[task.id] = target
        for _ in range(_LONGEST_LOOP):
            if target == task.id:
                del self._led[task.id]
                return True
            following = self._led.get(target)
            if target not in self._held:
                record = await self._ledger.tasks.get(target)
                if record is None or (since is not None and record.task.update_time < since):
                    return False
                if self._is_elsewhere(record.task) and task.id not in self._waited:
                    self._waited.add(task.id)
                    return None
                following = record.leads_to
            if following is None:
                return False
            target = following
        return False

    def _is_elsewhere(self, task: Task) -> bool:
        """Return whether another process works on a task."""
        lock = task.lock or ""
        return task.status is Status.PROCESSING and lock.partition(":")[0] != self._worker


class Way:
    """The redirects of one attempt; what it leads to is free at the end of the block."""

    def __init__(self, ledger: Ledger, *, coming: set[bytes]) -> None:
        self._ledger = ledger
        self._coming = coming
        self.taken: set[bytes] = set()  #: ids of what it was first to be led to
        self.known: set[bytes] = set()  #: ids of what is asked for by another way

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._coming -= self.taken

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
            if record is None or record.leads_to is not None:
                # What only leads on itself has no page of its own.
                return True
            self._coming.discard(target)
            self.taken.discard(target)
        self.known.add(target)
        return False
