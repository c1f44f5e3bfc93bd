"""Which pages were throttled last, and whether they themselves were to blame."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from crawlcw.model import hosts
from crawlcw.model.hosts import Host
from crawlcw.model.task import Task

#: So many throttled pages are remembered, the last ones.
_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttling:
    """The last time that a page was throttled."""

    host: str
    at: datetime
    own: bool  #: whether the page itself was to blame
    proven: bool = False  #: so a page shows that its host has answered since


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """Pages were throttled at a host that seemed well: a page it answered before tells why.

    Where that one is answered, the pages were to blame; else the host was.
    """

    scheme: str  #: of the origin
    sent: datetime  #: when the first of them was
    since: datetime
    pages: tuple[bytes, ...]  #: their tasks
    retry_after: float | None  #: the longest that one of them asked for, in seconds
    rested: bool  #: whether the host rests before it is asked for that page
    slows: bool  #: whether the host, which has a delay, is slowed down in any case
    mixed: bool = False  #: whether it answered what was sent after the first of them

    def joined(self, task: Task, *, retry_after: float | None) -> "Doubt":
        """Return the doubt where one more page was throttled, which was under way as well."""
        longest = max(self.retry_after or 0.0, retry_after or 0.0) or None
        return replace(self, pages=(*self.pages, task.id), retry_after=longest)

    @property
    def together(self) -> bool:
        """Whether the pages make a limit of their host likely, even if that page is answered.

        A host that has reached its limit refuses all that it is asked for. A moment later it
        may answer again, and after a rest it does.
        """
        enough = 2 if self.rested else 3
        return len(set(self.pages)) >= enough and not self.mixed


class Throttlings:
    """The throttled pages of one process, by task."""

    def __init__(self) -> None:
        self._last: OrderedDict[bytes, Throttling] = OrderedDict()

    def of(self, task: Task) -> Throttling | None:
        """Return when a page was throttled last; None: never, or too long ago."""
        return self._last.get(task.id)

    def note(self, task: Task, *, at: datetime, own: bool) -> None:
        """Note that a page was throttled, and whether it was to blame."""
        self._last[task.id] = Throttling(host=task.host, at=at, own=own)
        self._last.move_to_end(task.id)
        while len(self._last) > _REMEMBERED:
            self._last.popitem(last=False)

    def excuse_host(self, task_ids: Iterable[bytes]) -> None:
        """Note that pages which were throttled were to blame, for their host is well."""
        for task_id in task_ids:
            if last := self._last.get(task_id):
                self._last[task_id] = replace(last, own=True, proven=True)

    def is_own(self, task: Task, host: Host, *, scheme: str) -> bool:
        """Return whether a page that is throttled once more is to blame for that itself.

        It is where its origin has answered another page well since the last time. It
        stays so while all throttled pages of its host are known to be so:
        where it is the last one, nothing else would be asked that could be answered well.
        """
        last = self.of(task)
        if last is None:
            return False
        if hosts.is_the_pages_own(host, scheme=scheme, throttled=last.at):
            return True
        return last.own and not self.of_others(task, since=last.at)

    def of_others(self, task: Task, *, since: datetime, blamed: bool = False) -> bool:
        """Return whether another page of a task's host was throttled after a time.

        Those that were *blamed* themselves count only if that is true.
        """
        for task_id, each in reversed(self._last.items()):
            if each.at <= since:
                return False
            if each.host == task.host and task_id != task.id and (blamed or not each.own):
                return True
        return False
