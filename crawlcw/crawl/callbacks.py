"""Running a spider's callbacks, which yield items and requests for new tasks.

Whatever a callback does is contained here: it may be any kind of function, it
may raise, it may yield a hundred thousand links. The crawl goes on.
"""

import asyncio
import heapq
import inspect
import time
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Container,
    Generator,
    Iterable,
    Iterator,
)
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from traceback import FrameSummary
from types import GeneratorType
from typing import Any

from crawlcw.api.request import Request
from crawlcw.api.response import NOFOLLOW, TOO_MANY_LINKS, Response
from crawlcw.api.rules import requests
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider, callback_named
from crawlcw.api.url_traps import TrapPolicy
from crawlcw.api.user_code import Called, Cancellation, Raised, calls_user_code, time_limit
from crawlcw.crawl.kept_state import KeptState
from crawlcw.crawl.parsing import Parsing
from crawlcw.engine.watchdog import Watchdog
from crawlcw.errors import (
    DropItem,
    FetchError,
    InvalidItemError,
    ParseRefusedError,
    Reason,
    SpiderError,
    StopCrawl,
)
from crawlcw.model import urls, values
from crawlcw.model.dropped import DroppedLinks
from crawlcw.model.sanitize import printable
from crawlcw.model.task import Task
from crawlcw.model.tracebacks import format_frames, text_of
from crawlcw.model.transitions import Failed, too_deep
from crawlcw.model.urls import Refusal
from crawlcw.model.values import cleaned_item, is_item

#: A page that sends its reader on later than that has something else in mind: the end of a session.
LONGEST_REFRESH = timedelta(seconds=100)
#: So many reasons are told apart: a reason may have crawled text in it.
MOST_REASONS = 100
OTHER_REASONS = "other reasons"
_NOTHING_GIVEN = "item() yielded nothing"
_LONGEST_REASON = 120
#: Things that the callback of a list of URLs yields between two writes.
SLICE = 500
_OUR_FILES = (__file__, values.__file__)
#: Seconds after which a generator is left alone until all else has had its turn.
_SLICE = 0.05
#: The most seconds of one step that count: in a longer one the loop stood still.
_LONGEST_STEP = 1.0
#: Seconds of callbacks in one turn of the loop: each turn costs about as much as a small page's
#: bookkeeping, and lets the thread of a ledger take the interpreter's lock.
_SLICE_SECONDS = 0.03
_NO_SLICE = float("-inf")
#: So many callbacks are woken for one slice.
_MOST_WOKEN = 64

Hook = Callable[[Any, Response | None], Any]
#: Adds links while a callback runs: those to follow, and those that lie too deep.
WriteLinks = Callable[[list[Task], list[Task]], Awaitable[None]]


@dataclass(slots=True, kw_only=True)
class Produced:
    """The products of a page."""

    items: list[dict[str, Any]] = field(default_factory=list)
    items_dropped: Counter[str] = field(default_factory=Counter)  #: by reason
    tasks: list[Task] = field(default_factory=list)
    too_deep: list[Task] = field(default_factory=list)  #: kept for a crawl that goes deeper
    dropped: DroppedLinks = field(default_factory=DroppedLinks)
    stop: str | None = None  #: why the crawl is to end, where the spider wants it to
    #: The callback's changes of the spider's state.
    state: dict[str, Any] = field(default_factory=dict)
    retired: str | None = None  #: why the page's session is of no use, where the callback says so


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
        """Return the scope of *hosts* with the limits of *settings*."""
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
        trap = self.traps.why(location.canonical)
        if trap is not None:
            raise FetchError(trap, f"{location.url} looks like a trap")


class Turns:
    """Bounds the time that callbacks take in one turn of the loop, so that all else has its turns.

    A slice of that time begins with a callback; its timer fires in the next turn after its end.
    """

    def __init__(self) -> None:
        self._until = _NO_SLICE  #: the end of the slice
        self._waiting: list[tuple[int, asyncio.Future[bool]]] = []  #: a heap, the first come first
        self._order = count()

    async def take(self) -> None:
        """Wait for a slice with time left, behind those that came before."""
        now = time.monotonic()
        if now < self._until and not self._waiting:
            return
        loop = asyncio.get_running_loop()
        if self._until == _NO_SLICE:
            self._until = now + _SLICE_SECONDS
            loop.call_later(_SLICE_SECONDS, self._next)
            return
        number, is_first = next(self._order), False
        while not (is_first or time.monotonic() < self._until):
            turn = loop.create_future()
            heapq.heappush(self._waiting, (number, turn))
            is_first = await turn

    def _next(self) -> None:
        """Begin a slice with those that wait; end the last one where none does."""
        self._until, woken = time.monotonic() + _SLICE_SECONDS, 0
        while self._waiting and woken < _MOST_WOKEN:
            turn = heapq.heappop(self._waiting)[1]
            if not turn.done():
                # The first goes on in any case, however long all else has taken.
                turn.set_result(woken == 0)
                woken += 1
        if woken:
            asyncio.get_running_loop().call_soon(self._next)  # behind them
        else:
            self._until = _NO_SLICE


@dataclass(frozen=True, kw_only=True)
class Runner:
    """Runs the methods of one spider."""

    spider: Spider
    scope: Scope
    seen: Container[bytes]
    now: Callable[[], datetime]
    watch: Watchdog
    parsing: Parsing
    state: KeptState
    write: WriteLinks | None  #: of callbacks that read a list of URLs; None: these are as others
    turns: Turns = field(default_factory=Turns)

    async def run(self, callback: str, *arguments: object, task: Task) -> Produced | Failed:
        """Return the products of the spider's method named *callback* for *arguments*.

        *task* is the one whose page or failure it is about. A `Failed` where the
        method raises, or the spider has none of that name.
        """
        try:
            method = callback_named(self.spider, callback)
        except SpiderError as error:
            name = type(error).__name__
            return Raised(reason=Reason.PARSE_ERROR, message=str(error), error=name)
        called = Called(name=callback, subject=task.url)
        # The base class's `on_error` looks at nothing.
        looks = getattr(method, "__func__", None) is not Spider.on_error
        is_list = self.write is not None and getattr(method, "is_url_list", False) is True
        with self.state.running(task) as running:
            async with self.parsing.ready(arguments if looks else ()) as given:
                await self.turns.take()
                self.watch.begun = called
                produced = await CallbackRun(
                    # A list is no page: its links lie as deep as the list.
                    task=replace(task, depth=task.depth - 1) if is_list else task,
                    scope=self.scope,
                    now=self.now(),
                    seen=self.seen,
                    name=callback,
                    within=self.watch.limit,
                    stalled=self.watch.stalled,
                    spider=self.spider,
                    turn=self.turns.take,
                    write=partial(self._written, called) if is_list else None,
                ).result(method, *(given or arguments))
            if isinstance(produced, Produced) and produced.retired is None:
                produced.state = running.keep()
            return produced

    async def _written(self, called: Called, tasks: list[Task], too_deep: list[Task]) -> None:
        assert self.write is not None
        await self.write(tasks, too_deep)
        await self.turns.take()
        self.watch.begun = called


@dataclass(slots=True, kw_only=True)
class CallbackRun:
    """One run of a callback, whose yields become items and tasks.

    Requests become tasks one link deeper than *task*; those in *seen* are in
    the ledger already and are left out. A callback that awaits is cancelled after *within*
    seconds (0: never), not counting those that the loop has *stalled* since then.
    One that yields for long waits for its next *turn* now and then, for thousands of links must
    not keep the loop, and may take as many seconds itself.

    With *write* the callback reads a list of URLs, whose links are not bounded. They are written
    slice by slice, each of which may take its time: 50,000 links take no more memory than
    some hundred, and no write counts. The last slice's links are returned: no page of them is
    taken before it is noted that the callback has ended well. Where it raises, the links
    before that are written all the same.
    """

    name: str  #: the callback's, which may be another one than the function's
    task: Task
    scope: Scope
    now: datetime
    spider: Spider  #: its `item` takes the items, its `rules` follow links besides
    seen: Container[bytes] = frozenset()
    within: float = 0.0
    stalled: Callable[[float], float] = lambda _: 0.0
    turn: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0)
    write: WriteLinks | None = None
    produced: Produced = field(default_factory=Produced)
    _hook: Hook | None = None  #: the spider's own `item`
    _responses: list[Response] = field(default_factory=list)
    _page: Response | None = None  #: the callback's own, and not an error's
    _is_writing: bool = False
    _spent: float = 0.0
    _over: float = 0.0  #: when it is the turn of all else
    _things: int = 0  #: of a list of URLs
    _slice_began: float = 0.0  #: by the loop's clock
    _links: int = 0
    _admitted: str = ""  #: the host that was admitted last
    _yielded: set[bytes] = field(default_factory=set)
    #: Why each plain link was dropped, by address; None: it was not.
    _taken: dict[str, str | None] = field(default_factory=dict)

    @calls_user_code
    async def result(self, callback: Callable[..., Any], *arguments: object) -> Produced | Failed:
        """Return the products of *callback*; a `Failed` where it raises.

        Nothing is raised but a cancellation of the running task, and what *write* raises.
        """
        # The watchdog reads it from the frame.
        called = Called(name=self.name, subject=self.task.url)
        awaits, page = self._prepare(arguments), self._page
        failed: Failed | None = None
        cancellation = Cancellation()
        result: Any = None
        try:
            result = callback(*arguments)
            waits = _may_wait(result)
            limited = time_limit(called, self.within, stalled=self._unused)
            async with limited if waits or awaits else nullcontext():
                await self._sort(result, waits=waits)
            rules = self.spider.rules if self.write is None else ()
            if rules and page is not None:
                await self._sort(requests(rules, page), waits=False)
            await cancellation.strike()
        except ParseRefusedError as error:
            failed = Failed(reason=error.reason, message=error.message)
        except StopCrawl as told:
            self.produced.stop = printable(text_of(told))
        except BaseException as error:  # the spider's code may raise anything
            if self._is_writing or cancellation.passes(error):
                raise
            await cancellation.after(error)
            failed = _raised(error, callback, result)
        if page is not None and page.session.retired:
            return Produced(retired=page.session.retired)
        if failed is not None:
            if self.write is not None:
                await self._flush(self.write)
            return failed
        if page is not None and self.write is None:
            self._take_refresh(page)
        for response in self._responses:
            if response.dropped.counts:
                self.produced.dropped.add(response.dropped)
        return self.produced

    def _prepare(self, arguments: tuple[object, ...]) -> bool:
        """Note the responses and the spider's `item`; return whether that may wait, by its form."""
        for each in arguments:
            response = each.response if isinstance(each, FetchError) else each
            if isinstance(response, Response):
                self._responses.append(response)
                self._page = self._page or (response if response is each else None)
        if type(self.spider).item is Spider.item:
            return False
        self._hook = self.spider.item
        return inspect.iscoroutinefunction(self._hook) or inspect.isasyncgenfunction(self._hook)

    async def _sort(self, result: Any, *, waits: bool) -> None:
        """Sort the things that a callback yields or returns, at once or asynchronously."""
        self._over = self._over or time.monotonic() + _SLICE
        if waits and inspect.isawaitable(result):
            result = await result
            waits = isinstance(result, AsyncIterator)
        if waits:
            async for thing in result:
                if (kept := self._take(thing)) is not None:
                    await kept
                if self.write is not None:
                    await self._end_slice(self.write)
                # It need not have awaited anything. It has a limit of its own.
                if time.monotonic() >= self._over:
                    await self._rest()
            return
        # A name for it: else an error in here would end the generator, and `_place_of` not find it.
        found = things(result)
        for thing in found:
            if (kept := self._take(thing)) is not None:
                await kept
            if self.write is not None:
                await self._end_slice(self.write)
            if (now := time.monotonic()) >= self._over:
                self._spent += min(now - self._over + _SLICE, _LONGEST_STEP)
                if self.within and self._spent > self.within:
                    raise TimeoutError(f"{self.name} did not end within {self.within:g} s")
                await self._rest()

    async def _end_slice(self, write: WriteLinks) -> None:
        self._things += 1
        if self._things % SLICE == 0:
            await self._flush(write)

    async def _flush(self, write: WriteLinks) -> None:
        """Write the links so far; the next ones have the time of a callback anew."""
        produced, self._is_writing = self.produced, True
        await write(produced.tasks, produced.too_deep)
        produced.tasks, produced.too_deep, self._is_writing = [], [], False
        self._yielded.clear()
        self._taken.clear()
        self._spent, self._over = 0.0, time.monotonic() + _SLICE
        self._slice_began = asyncio.get_running_loop().time()

    def _unused(self, began: float) -> float:
        """Return how many seconds since *began* are no time of the slice, see `time_limit`."""
        now = asyncio.get_running_loop().time()
        since = now if self._is_writing else max(began, self._slice_began)
        return since - began + self.stalled(since)

    async def _rest(self) -> None:
        await self.turn()
        self._over = time.monotonic() + _SLICE

    def _take(self, thing: object) -> Awaitable[None] | None:
        """Make a task or an item of a yielded thing, or drop it; return the rest to be awaited."""
        if not isinstance(thing, Request):
            if self._hook is not None and thing is not None:
                return self._hooked(self._hook, thing)
            if thing is not None:
                self._keep(thing)
            return None
        self._links += 1
        if self._links >= self.scope.max_links and self.write is None:
            for response in self._responses:
                response.following.is_over = True
            if self._links > self.scope.max_links:
                self._drop(thing, TOO_MANY_LINKS)
                return None
        # Most links of a page stand there several times.
        url = thing.plain_url
        if url is None:
            self._judge(thing)
        elif url not in self._taken:
            self._taken[url] = self._judge(thing)
        elif (reason := self._taken[url]) is not None:
            self._drop(thing, reason)
        return None

    def _take_refresh(self, response: Response) -> None:
        """Follow where a page sends its reader: a link like any other, to the same callback."""
        refresh = response.refresh
        if refresh is None or refresh.after > LONGEST_REFRESH:
            return
        if response.following.obey_robots and response.robots.nofollow:
            self.produced.dropped.note(NOFOLLOW, refresh.url)
            return
        self._take(response.request.elsewhere(refresh.url))

    def _judge(self, request: Request) -> str | None:
        """Take a request, or drop it; return why it is dropped each time that it is yielded."""
        # A page that is parsed again yields its requests in the same order,
        # so the number makes the same task of the same request.
        salt = b"%s %d" % (self.task.id, self._links) if request.dont_filter else b""
        place = request.place(salt)
        if isinstance(place, Refusal):
            return self._drop(request, place.reason, where=place.message)
        location, task_id = place
        # Most links of a page lead to one host; those admitted once stay so.
        if location.host != self._admitted:
            if not urls.in_scope(location.host, self.scope.hosts):
                return self._drop(request, Reason.REFUSED_SCOPE)
            self._admitted = location.host
        # Before traps are looked for: a start URL may look as it likes.
        # One that is known may have changed, which the ledger tells.
        if task_id in self._yielded or (request.changed is None and task_id in self.seen):
            return None
        trap = self.scope.traps.why(location.canonical)
        if trap is not None:
            return self._drop(request, trap)
        if location.host in self.scope.full:
            return self._drop(request, Reason.HOST_FULL)
        self._yielded.add(task_id)
        task = request.task(
            now=self.now, depth=self.task.depth + 1, parent=self.task.id, identity=place
        )
        own = request.options.max_depth
        if own is None and (own := self.task.options.max_depth) is not None:
            task = replace(task, options=replace(task.options, max_depth=own))
        deepest = self.scope.max_depth if own is None else own
        if deepest is None or task.depth <= deepest:
            self.produced.tasks.append(task)
            return None
        self._drop(request, Reason.REFUSED_DEPTH)
        if own is None:
            # No deeper crawl is to fetch a link that the request itself forbids.
            self.produced.too_deep.append(too_deep(task))
        return None

    def _drop(self, request: Request, reason: str, *, where: str = "") -> str:
        """Count a link that is not followed; *where* tells of one that has no text of its own."""
        self.produced.dropped.note(reason, request.url or where)
        return reason

    async def _hooked(self, hook: Hook, thing: object) -> None:
        """Keep the hook's result for an item: one item, or any number of them.

        Raises `InvalidItemError`, unless such items are dropped; and whatever the hook raises.
        """
        count = 0
        try:
            result = hook(thing, self._page)
            if inspect.isawaitable(result):
                result = await result
            if isinstance(result, AsyncIterator):
                async for each in result:
                    count += 1
                    self._keep(each)
            elif result is None:
                # To forget the `return` would lose every item without a word.
                why = 'item() returned None: return the item, or raise DropItem("why")'
                return self._refuse(InvalidItemError(why))
            else:
                single = is_item(result) or isinstance(result, str | bytes)
                for each in result if not single and isinstance(result, Iterable) else (result,):
                    count += 1
                    self._keep(each)
            if not count:
                self._drop_item(_NOTHING_GIVEN)
        except DropItem as told:
            self._drop_item(text_of(told))

    def _keep(self, thing: object) -> None:
        if isinstance(thing, Request):
            raise SpiderError("item() gave a Request: yield it in the callback")
        try:
            self.produced.items.append(cleaned_item(thing))
        except InvalidItemError as error:
            self._refuse(error)

    def _refuse(self, error: InvalidItemError) -> None:
        if self.spider.invalid_items != "item":
            raise error
        self._drop_item(text_of(error))

    def _drop_item(self, reason: str) -> None:
        reason = printable(reason, limit=_LONGEST_REASON) or "no reason given"
        count_dropped(self.produced.items_dropped, reason)


def _may_wait(result: object) -> bool:
    """Return whether a callback's result is to be awaited, as a whole or in its parts."""
    if isinstance(result, GeneratorType):  # most are, and ABCs take long to tell
        return bool(result.gi_code.co_flags & inspect.CO_ITERABLE_COROUTINE)
    return inspect.isawaitable(result) or isinstance(result, AsyncIterator)


def _raised(error: BaseException, callback: Callable[..., Any], result: Any) -> Raised:
    """Return the failure of a callback; *result* has its place where the error has none."""
    raised = Raised.by(error, own=_OUR_FILES, function=callback)
    if raised.where or (place := _place_of(result)) is None:
        return raised
    return replace(
        raised,
        where=f"{place.filename}:{place.lineno}",
        traceback=raised.traceback or format_frames([place], error),
    )


def _place_of(result: Any) -> FrameSummary | None:
    """Return where a generator stands, for an error that is not its own."""
    frame = getattr(result, "gi_frame", None) or getattr(result, "ag_frame", None)
    if frame is not None:
        return FrameSummary(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
    # One that has come to its end stands nowhere.
    code = getattr(result, "gi_code", None)
    if code is None:
        return None
    return FrameSummary(code.co_filename, code.co_firstlineno, code.co_name)


def things(result: Any) -> Iterable[object]:
    """Return the things in a callback's result."""
    if result is None:
        return ()
    if isinstance(result, GeneratorType | Generator):
        return _to_its_end(result)
    if isinstance(result, Request) or is_item(result) or not isinstance(result, Iterable):
        return (result,)
    return result


def _to_its_end(generator: Generator[object, None, object]) -> Iterator[object]:
    """Yield from a generator; raises `SpiderError` where it returns something as well."""
    returned = yield from generator
    if returned is not None:
        raise SpiderError(
            "a callback that yields cannot return something as well, for it would be lost: yield "
            f"what it returned, of type {type(returned).__name__}, by `yield from` if that holds "
            "several"
        )


def count_dropped(counts: Counter[str], reason: str, number: int = 1) -> None:
    """Count *number* items dropped for *reason*; those of too many reasons together."""
    known = reason in counts or len(counts) < MOST_REASONS
    counts[reason if known else OTHER_REASONS] += number
