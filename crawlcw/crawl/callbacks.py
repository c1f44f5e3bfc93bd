"""Running a spider's callbacks: what they yield becomes items and new tasks.

Whatever a callback does is contained here: it may be any kind of function, it
may raise, it may yield a hundred thousand links. The crawl goes on.
"""

import inspect
from collections.abc import AsyncIterator, Callable, Container, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.api.url_traps import TrapPolicy
from crawlcw.api.user_code import Called, Cancellation, calls_user_code, time_limit
from crawlcw.errors import FetchError, ParseRefusedError, Reason, SpiderError, StopCrawl
from crawlcw.model import urls, values
from crawlcw.model.dropped import DroppedLinks
from crawlcw.model.sanitize import printable
from crawlcw.model.task import Task
from crawlcw.model.tracebacks import describe_error, format_traceback, text_of, where
from crawlcw.model.transitions import Failed, too_deep

#: A link that was dropped for the number of links, beside the reasons of `Reason`.
TOO_MANY_LINKS = "max-links-per-page"
_OUR_FILES = (__file__,)


@dataclass(slots=True, kw_only=True)
class Produced:
    """What came out of a page."""

    items: list[dict[str, Any]] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    too_deep: list[Task] = field(default_factory=list)  #: kept for a crawl that goes deeper
    dropped: DroppedLinks = field(default_factory=DroppedLinks)
    stop: str | None = None  #: why the crawl is to end, where the spider wants it to


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised(Failed):
    """The callback raised, which is its own error and says nothing of the page's host."""

    error: str = ""  #: the name of the exception's type
    where: str = ""  #: the spider's own file and line


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Which links of a crawl are followed."""

    hosts: set[str]  #: those of the seeds and `allowed_hosts`
    max_depth: int | None
    max_links: int
    traps: TrapPolicy
    full: set[str] = field(default_factory=set)  #: hosts that had their `max_pages_per_host`

    @classmethod
    def of(cls, hosts: Iterable[str], settings: Settings) -> "Scope":
        """Return the scope that *settings* make of *hosts*."""
        return cls(
            hosts=set(hosts),
            max_depth=settings.max_depth,
            max_links=settings.max_links_per_page,
            traps=settings.trap_policy,
        )

    def admit(self, host: str) -> None:
        """Raise `FetchError` (`refused-scope`) for a host that is not crawled."""
        if not urls.in_scope(host, self.hosts):
            raise FetchError(Reason.REFUSED_SCOPE, f"{host} is not among the allowed hosts")

    def admit_url(self, url: str) -> None:
        """Raise `FetchError` for a URL whose host is not crawled, or that looks like a trap."""
        location = urls.locate(url)
        self.admit(location.host)
        trap = self.traps.why(location.url)
        if trap is not None:
            raise FetchError(trap, f"{location.url} looks like a trap")


@calls_user_code
async def run(
    callback: Callable[..., Any],
    *arguments: object,
    task: Task,
    scope: Scope,
    now: datetime,
    seen: Container[bytes] = frozenset(),
    name: str = "",
    within: float = 0.0,
    stalled: Callable[[float], float] = lambda _: 0.0,
) -> Produced | Failed:
    """Run *callback* and sort what it yields; a `Failed` where it raises.

    Requests become tasks one link deeper than *task*; those in *seen* are in
    the ledger already and are left out. *name* is the callback's, where it has
    another one than the function. One that awaits is cancelled after *within*
    seconds (0: never), not counting those that the loop has *stalled* since then.
    Nothing is raised but a cancellation of the running task.
    """
    sorter = _Sorter(task, scope, now, seen)
    cancellation = Cancellation()
    # The watchdog reads it from the frame.
    called = Called(name=name or getattr(callback, "__name__", ""), subject=task.url)
    try:
        result = callback(*arguments)
        if inspect.isawaitable(result) or isinstance(result, AsyncIterator):
            async with time_limit(called, within, stalled=stalled):
                result = await _awaited(result, sorter)
        for thing in _things(result):
            sorter.take(thing)
    except ParseRefusedError as error:
        return Failed(reason=error.reason, message=error.message)
    except StopCrawl as told:
        sorter.produced.stop = printable(text_of(told))
    except BaseException as error:  # the spider's code may raise anything
        if cancellation.passes(error):
            raise
        return Raised(
            reason=Reason.PARSE_ERROR,
            message=describe_error(error),
            traceback=format_traceback(error, own=_OUR_FILES),
            error=type(error).__name__,
            where=where(error, own=_OUR_FILES, function=callback),
        )
    for argument in arguments:
        if isinstance(argument, Response):
            sorter.produced.dropped.add(argument.dropped)
    return sorter.produced


async def _awaited(result: Any, sorter: "_Sorter") -> Any:
    """Sort what is yielded asynchronously; return what is left, which can be had at once."""
    if inspect.isawaitable(result):
        result = await result
    if not isinstance(result, AsyncIterator):
        return result
    async for thing in result:
        sorter.take(thing)
    return None


def _things(result: Any) -> Iterable[object]:
    """Return what a callback returned as the things in it."""
    if result is None:
        return ()
    if isinstance(result, Request) or values.is_item(result) or not isinstance(result, Iterable):
        return (result,)
    return result


class _Sorter:
    """Turns what a callback yields into items and tasks."""

    def __init__(self, task: Task, scope: Scope, now: datetime, seen: Container[bytes]) -> None:
        self._task = task
        self._scope = scope
        self._now = now
        self._seen = seen
        self._too_deep = scope.max_depth is not None and task.depth >= scope.max_depth
        self._links = 0
        self._yielded: set[bytes] = set()
        self.produced = Produced()

    def take(self, thing: object) -> None:
        if isinstance(thing, Request):
            self._take_request(thing)
        elif thing is not None:
            self.produced.items.append(values.item(thing))

    def _take_request(self, request: Request) -> None:
        self._links += 1
        if self._links > self._scope.max_links:
            self._drop(request, TOO_MANY_LINKS)
            return
        try:
            # A page that is parsed again yields its requests in the same order,
            # so the number makes the same task of the same request.
            salt = b"%s %d" % (self._task.id, self._links) if request.dont_filter else b""
            location, task_id = request.identity(salt)
            self._scope.admit(location.host)
        except FetchError as error:
            self._drop(request, error.reason, where=error.message)
            return
        # Before traps are looked for: a start URL may look as it likes.
        if task_id in self._seen or task_id in self._yielded:
            return
        trap = self._scope.traps.why(location.url)
        if trap is not None:
            self._drop(request, trap)
            return
        if location.host in self._scope.full:
            self._drop(request, Reason.HOST_FULL)
            return
        self._yielded.add(task_id)
        task = request.task(
            now=self._now, depth=self._task.depth + 1, parent=self._task.id, salt=salt
        )
        if self._too_deep:
            self._drop(request, Reason.REFUSED_DEPTH)
            self.produced.too_deep.append(too_deep(task))
        else:
            self.produced.tasks.append(task)

    def _drop(self, request: Request, reason: str, *, where: str = "") -> None:
        """Count a link that is not followed; *where* tells of one that has no text of its own."""
        self.produced.dropped.note(reason, request.url or where)


def missing(error: SpiderError) -> Failed:
    """Return the outcome of a task whose callback the spider no longer has."""
    return Raised(reason=Reason.PARSE_ERROR, message=str(error), error=type(error).__name__)
