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
    proven: bool = False  #: as a page shows that came behind the host's delay, and was answered


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """Pages were throttled at a host that seemed well: a page it answered before tells why.

    Where that one is answered, the pages were to blame, or it is still open; else the host was.
    """

    scheme: str  #: of the origin
    sent: datetime  #: when the first of them was
    since: datetime
    pages: tuple[bytes, ...]  #: their tasks
    retry_after: float | None  #: the longest that one of them asked for, in seconds
    rested: bool  #: whether the host rests before it is asked for that page
    first: bool  #: whether the first of them was never throttled before
    delayed: bool  #: whether the host has a delay, so it has shown that it has a limit
    mixed: bool = False  #: whether it answered what was sent after the first of them

    def joined(self, task: Task, *, retry_after: float | None) -> "Doubt":
        """Return the doubt where one more page was throttled, which was under way as well."""
        longest = max(self.retry_after or 0.0, retry_after or 0.0) or None
        return replace(self, pages=(*self.pages, task.id), retry_after=longest)

    @property
    def stays_open(self) -> bool:
        """Whether a limit of the host is likely, even if the other page is answered.

        A host that has reached its limit refuses all that it is asked for. A moment later it
        may answer again, and after a rest it does. But that is said once of a page, or some
        would never pay.
        """
        many = 2 if self.rested else 3
        together = len(set(self.pages)) >= many and not self.mixed
        return self.first and (self.delayed or together)


class Throttlings:
    """The throttled pages of one process, by task."""

    def __init__(self) -> None:
        self._last: OrderedDict[bytes, Throttling] = OrderedDict()

    def of(self, task: Task) -> Throttling | None:
        """Return when a page was throttled last; None: never, or too long ago."""
        return self._last.get(task.id)

    def note(self, task: Task, *, at: datetime, own: bool) -> None:
        """Note that a page was throttled, and whether it was to blame."""
        last = self._last.get(task.id)
        proven = own and last is not None and last.proven
        self._last[task.id] = Throttling(host=task.host, at=at, own=own, proven=proven)
        self._last.move_to_end(task.id)
        while len(self._last) > _REMEMBERED:
            self._last.popitem(last=False)

    def excuse_host(self, task_ids: Iterable[bytes], *, proven: bool) -> None:
        """Note that pages which were throttled were to blame, for their host is well.

        *proven* is that of a `Throttling`.
        """
        for task_id in task_ids:
            if last := self._last.get(task_id):
                self._last[task_id] = replace(last, own=True, proven=proven)

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
        return last.own and not self.of_others(task.host, since=last.at)

    def of_others(self, host: str, *, since: datetime) -> bool:
        """Return whether a page of a host was throttled after a time, and not by its own fault."""
        for each in reversed(self._last.values()):
            if each.at <= since:
                return False
            if each.host == host and not each.own:
                return True
        return False
