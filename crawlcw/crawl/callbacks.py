"""Run a spider's callbacks, which yield items and requests for new tasks.

The crawl continues whatever a callback does: it may be any kind of function, it may raise, it may
yield a hundred thousand links.
"""

import asyncio
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
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime, timedelta
from traceback import FrameSummary
from types import GeneratorType
from typing import Any

from crawlcw.api.links import TrapPolicy
from crawlcw.api.request import Request
from crawlcw.api.response import NOFOLLOW, TOO_MANY_LINKS, Response
from crawlcw.api.rules import requests
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider, callback_named
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
from crawlcw.model.counters import DroppedLinks
from crawlcw.model.sanitize import format_frames, printable, text_of
from crawlcw.model.task import Task
from crawlcw.model.transitions import Failed, too_deep
from crawlcw.model.urls import Refusal
from crawlcw.model.values import cleaned_item, is_item

#: A refresh after a longer time is no link: it shows the end of a session, for example.
LONGEST_REFRESH = timedelta(seconds=100)
#: Maximum number of different reasons. A reason may contain crawled text, so their number has no
#: natural limit.
MOST_REASONS = 100
OTHER_REASONS = "other reasons"
_EMPTY_HOOK = "item() yielded nothing"
_MAX_REASON_LENGTH = 120
#: Number of things that the callback of a list of URLs yields between two writes.
SLICE = 500
_OUR_FILES = (__file__, values.__file__)
#: Seconds that a callback may run until other coroutines have their turn.
_STEP_S = 0.05
#: Maximum number of seconds that count for one step. If a step is longer, the event loop stalled.
_MAX_STEP_S = 1.0
#: Seconds that callbacks may run in one turn of the event loop. A turn costs about as much as a
#: small page.
_SLICE_SECONDS = 0.03

Hook = Callable[[Any, Response | None], Any]
#: Adds the links to follow, and the links that are too deep, while a callback runs.
WriteLinks = Callable[[list[Task], list[Task]], Awaitable[None]]


@dataclass(slots=True, kw_only=True)
class Produced:
    """The products of a page."""

    items: list[dict[str, Any]] = field(default_factory=list)
    items_dropped: Counter[str] = field(default_factory=Counter)  #: number of items, by reason
    tasks: list[Task] = field(default_factory=list)
    too_deep: list[Task] = field(default_factory=list)  #: kept for a deeper crawl
    dropped: DroppedLinks = field(default_factory=DroppedLinks)
    stop: str | None = None  #: why the spider ends the crawl, if it does
    #: The callback's changes of the spider's state.
    state: dict[str, Any] = field(default_factory=dict)
    retired: str | None = None  #: why the callback retires the page's session, if it does


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The links that a crawl follows; the seeder adds hosts, and `PageLimit` adds full hosts."""

    hosts: set[str]  #: hosts of the seeds and of `allowed_hosts`
    max_depth: int | None
    max_links: int
    traps: TrapPolicy
    full: set[str] = field(default_factory=set)  #: the set `PageLimit.full_hosts`

    @classmethod
    def of(cls, hosts: Iterable[str], settings: Settings) -> "Scope":
        """Return the scope of *hosts* with the limits of *settings*."""
        return cls(
            hosts=set(hosts),
            max_depth=settings.max_depth,
            max_links=settings.max_links_per_page,
            traps=settings.trap_policy,
        )

    def admit_url(self, url: str, *, redirected: Task | None = None) -> None:
        """Raise `FetchError` for a URL whose host is not crawled, or that looks like a trap.

        *redirected* is the task that leads to the URL. A start URL may redirect from
        `www.a.example` to `a.example`, because the site spells its name that way.
        """
        location = urls.locate(url)
        host = location.host
        is_home = redirected is not None and (
            redirected.host == host or (redirected.depth == 0 and redirected.host == f"www.{host}")
        )
        if not urls.in_scope(host, self.hosts) and not (is_home and self.is_apex(host)):
            message = f"{host} is not in allowed_hosts: add it there to crawl its pages"
            raise FetchError(Reason.REFUSED_SCOPE, message)
        trap_reason = self.traps.refusal_reason(location.canonical)
        if trap_reason is not None:
            raise FetchError(trap_reason, f"{location.url} looks like a crawler trap")

    def is_apex(self, host: str) -> bool:
        """Return whether a host is crawled with `www.` before its name."""
        return urls.in_scope(f"www.{host}", self.hosts)


class TimeSlices:
    """Limits the time of callbacks in one turn of the event loop, so that other coroutines run."""

    def __init__(self) -> None:
        self._slice_end: float | None = None  #: the end of the slice
        self._slice_ended = asyncio.Event()

    async def take(self) -> None:
        """Wait for a slice with time left, after earlier callers."""
        while self._slice_end is not None and time.monotonic() >= self._slice_end:
            await self._slice_ended.wait()
        if self._slice_end is None:
            self._slice_end = time.monotonic() + _SLICE_SECONDS
            asyncio.get_running_loop().call_later(_SLICE_SECONDS, self._end_slice)

    def _end_slice(self) -> None:
        """End a slice: the first waiting caller starts the next one."""
        self._slice_end = None
        self._slice_ended.set()
        self._slice_ended = asyncio.Event()


@dataclass(slots=True)
class Runner:
    """Runs the methods of one spider."""

    spider: Spider
    _: KW_ONLY
    scope: Scope
    known_ids: Container[bytes]  #: tasks whose links are dropped, because the ledger has them
    now: Callable[[], datetime]
    watchdog: Watchdog
    parsing: Parsing
    state: KeptState
    #: for callbacks that read a list of URLs; None: treat them like other callbacks
    write: WriteLinks | None
    time_slices: TimeSlices = field(default_factory=TimeSlices)
    hook: Hook | None = field(init=False)  #: the spider's own `item`
    hook_waits: bool = field(init=False)  #: whether `hook` is asynchronous

    def __post_init__(self) -> None:
        spider = self.spider
        self.hook = spider.item if type(spider).item is not Spider.item else None
        async_checks = inspect.iscoroutinefunction, inspect.isasyncgenfunction
        self.hook_waits = any(check(self.hook) for check in async_checks)

    async def run(self, callback: str, *arguments: object, task: Task) -> Produced | Failed:
        """Return the products of the spider's method named *callback*; a `Failed` if it raises.

        The last of the *arguments* is the page or the failure of *task*.
        """
        try:
            method = callback_named(self.spider, callback)
        except SpiderError as error:
            name = type(error).__name__
            return Raised(reason=Reason.PARSE_ERROR, message=str(error), error=name)
        run = CallbackRun(self, method, name=callback, task=task)
        with self.state.running(task) as page:
            argument = arguments[-1]
            response = argument.response if isinstance(argument, FetchError) else argument
            # The base class's `on_error` does not use the response.
            needs_response = getattr(method, "__func__", None) is not Spider.on_error
            if isinstance(response, Response) and needs_response:
                async with self.parsing.ready(response) as run.response:
                    if isinstance(argument, FetchError):
                        argument.response = run.response
                    else:
                        run.page, arguments = run.response, (*arguments[:-1], run.response)
                    produced = await run.result(*arguments)
            else:
                produced = await run.result(*arguments)
            if isinstance(produced, Produced) and produced.retired is None:
                page.is_kept = True
                produced.state = self.state.changes(page) if page.values or page.sums else {}
            return produced


class CallbackRun:
    """One run of a callback: its yields become items and tasks.

    A callback that awaits is cancelled after the watchdog's limit, which does not count stalls of
    the loop. A callback that yields for a long time pauses now and then; this limit holds for it
    too.

    If a callback reads a list of URLs, its links are not limited in number and have the depth of
    the list. They are written in slices, and each slice has the full time limit. So 50,000 links
    take no more memory than some hundred. The links of the last slice are returned, and written
    with the outcome.
    """

    def __init__(
        self, runner: Runner, method: Callable[..., Any], *, name: str, task: Task
    ) -> None:
        """*name* is the callback's name, which may differ from the function's name."""
        #: The response that the callback gets, or that its error has.
        self.response: Response | None = None
        self.page: Response | None = None  #: response of the callback, but not of an error
        self._runner = runner
        self._method = method
        self._task = task
        self._user_call = Called(name=name, subject=task.url)
        is_list = getattr(method, "is_url_list", False) is True
        self._write = runner.write if is_list else None
        self._slice_size = SLICE if self._write is not None else 0  #: things per slice; 0: all
        self._depth = task.depth + (self._write is None)  #: the depth of its links
        self._now = runner.now()
        self._produced = Produced()
        #: Kept between slices: if sorting raises, the open generator shows the place of the error.
        self._products: Iterator[object] | AsyncIterator[object] | None = None
        self._spent_s = 0.0  #: seconds used in this slice
        self._pause_at = 0.0  #: when other coroutines must run
        self._link_count = 0
        self._admitted_host = ""  #: the last admitted host
        self._yielded_ids: set[bytes] = set()
        #: Why each plain link was dropped, by address; None if the link was accepted.
        self._drop_reasons: dict[str, str | None] = {}

    @calls_user_code
    async def result(self, *arguments: object) -> Produced | Failed:
        """Return the products of the callback; a `Failed` if it raises."""
        # The watchdog reads `called` from this frame.
        called, page, result = self._user_call, self.page, None
        failed: Failed | None = None
        is_over = False
        while not is_over and failed is None:
            await self._flush()
            await self._pause()
            cancellation = Cancellation()
            try:
                if self._products is None:
                    result = self._method(*arguments)
                is_over = await self._run_slice(called, result)
                await cancellation.raise_pending()
            except ParseRefusedError as error:
                failed = Failed(reason=error.reason, message=error.message)
            except StopCrawl as stop_request:
                self._produced.stop, is_over = printable(text_of(stop_request)), True
            except BaseException as error:  # the spider's code may raise anything
                if cancellation.passes(error):
                    raise
                await cancellation.raise_pending_after(error)
                failed = _raised(error, self._method, result)
        if page is not None and page.session.retired:
            return Produced(retired=page.session.retired)
        if failed is not None:
            await self._flush()
            return failed
        if page is not None and self._write is None:
            self._follow_refresh(page)
        if self.response is not None and self.response.dropped.counts:
            self._produced.dropped.add(self.response.dropped)
        return self._produced

    async def _run_slice(self, called: Called, result: Any) -> bool:
        """Sort the next slice of *result* into items and tasks; return whether no slice follows."""
        watch, waits = self._runner.watchdog, _may_wait(result)
        limited = time_limit(called, watch.limit, stalled=watch.stall_since)
        async with limited if waits or self._runner.hook_waits else nullcontext():
            if self._products is None:
                if waits and inspect.isawaitable(result):
                    result = await result
                self._products = things(result)
            is_over = await self._sort(self._products)
        rules = self._runner.spider.rules if self._write is None else ()
        if rules and self.page is not None:
            await self._sort(requests(rules, self.page))
        return is_over

    async def _sort(self, products: Iterable[object] | AsyncIterator[object]) -> bool:
        """Sort the things of one slice into items and tasks; return whether no slice follows."""
        number = 0
        if isinstance(products, AsyncIterator):
            async for product in products:
                if (hook_call := self._accept(product)) is not None:
                    await hook_call
                # The callback may never really await, so this loop pauses. The callback has a time
                # limit of its own.
                if time.monotonic() >= self._pause_at:
                    await self._pause()
                number += 1
                if number == self._slice_size:
                    return False
            return True
        limit_s = self._runner.watchdog.limit
        for product in products:
            if (hook_call := self._accept(product)) is not None:
                await hook_call
            if (now := time.monotonic()) >= self._pause_at:
                self._spent_s += min(now - self._pause_at + _STEP_S, _MAX_STEP_S)
                if limit_s and self._spent_s > limit_s:
                    raise TimeoutError(f"{self._user_call.name} did not end within {limit_s:g} s")
                await self._pause()
            number += 1
            if number == self._slice_size:
                return False
        return True

    async def _pause(self) -> None:
        await self._runner.time_slices.take()
        self._runner.watchdog.last_user_call = self._user_call
        self._pause_at = time.monotonic() + _STEP_S

    async def _flush(self) -> None:
        """Write the links of a list of URLs so far; the next slice has the full time limit."""
        if self._write is not None and self._products is not None:
            await self._write(self._produced.tasks, self._produced.too_deep)
            self._produced.tasks, self._produced.too_deep = [], []
            self._yielded_ids.clear()
            self._drop_reasons.clear()
            self._spent_s = 0.0

    def _accept(self, product: object) -> Awaitable[None] | None:
        """Make a task or an item from a yielded thing, or drop it; return any call to await."""
        if not isinstance(product, Request):
            if product is None:
                return None
            if (hook := self._runner.hook) is not None:
                return self._run_hook(hook, product)
            self._keep_item(product)
            return None
        self._link_count += 1
        max_links = self._runner.scope.max_links
        if self._link_count >= max_links and self._write is None:
            if self.response is not None:
                self.response.following.is_over = True
            if self._link_count > max_links:
                self._drop(product, TOO_MANY_LINKS)
                return None
        # Most links of a page occur several times.
        url = product.plain_url
        if url is None:
            self._accept_request(product)
        elif url not in self._drop_reasons:
            self._drop_reasons[url] = self._accept_request(product)
        elif (reason := self._drop_reasons[url]) is not None:
            self._drop(product, reason)
        return None

    def _follow_refresh(self, response: Response) -> None:
        """Follow the refresh of a page like any other link, with the same callback."""
        refresh = response.refresh
        if refresh is None or refresh.delay > LONGEST_REFRESH:
            return
        if response.following.obey_robots and response.robots.nofollow:
            self._produced.dropped.note(NOFOLLOW, refresh.url)
            return
        self._accept(response.request.retargeted(refresh.url))

    def _accept_request(self, request: Request) -> str | None:
        """Accept or drop a request; return the reason if its repetitions must be dropped too."""
        # A page that is parsed again yields its requests in the same order. So the number of a
        # repeated request identifies its task.
        salt = b"%s %d" % (self._task.id, self._link_count) if request.dont_filter else b""
        identity = request.locate(salt)
        if isinstance(identity, Refusal):
            return self._drop(request, identity.reason, where=identity.message)
        location, task_id = identity
        scope = self._runner.scope
        # Most links of a page lead to one host, and an admitted host stays admitted.
        if location.host != self._admitted_host:
            is_home = location.host == self._task.host  # a start URL has redirected to this host
            if not urls.in_scope(location.host, scope.hosts) and not (
                is_home and scope.is_apex(location.host)
            ):
                return self._drop(request, Reason.REFUSED_SCOPE)
            self._admitted_host = location.host
        # Drop repeated links before the check for traps, because a start URL may look like a trap.
        # Only the ledger knows whether a known task has changed.
        if task_id in self._yielded_ids or (
            request.changed is None and task_id in self._runner.known_ids
        ):
            return None
        trap_reason = scope.traps.refusal_reason(location.canonical)
        if trap_reason is not None:
            return self._drop(request, trap_reason)
        if location.host in scope.full:
            return self._drop(request, Reason.HOST_FULL)
        self._yielded_ids.add(task_id)
        task = request.task(
            now=self._now, depth=self._depth, parent=self._task.id, identity=identity
        )
        depth_limit = request.options.max_depth
        if depth_limit is None and (depth_limit := self._task.options.max_depth) is not None:
            task = replace(task, options=replace(task.options, max_depth=depth_limit))
        max_depth = scope.max_depth if depth_limit is None else depth_limit
        if max_depth is None or task.depth <= max_depth:
            self._produced.tasks.append(task)
            return None
        self._drop(request, Reason.REFUSED_DEPTH)
        if depth_limit is None:
            # A deeper crawl must not fetch a link that its own limit forbids.
            self._produced.too_deep.append(too_deep(task))
        return None

    def _drop(self, request: Request, reason: str, *, where: str = "") -> str:
        """Count a link that is not followed; *where* describes a link without its own text."""
        self._produced.dropped.note(reason, request.url or where)
        return reason

    async def _run_hook(self, hook: Hook, product: object) -> None:
        """Keep the hook's result for an item: one item, or any number of items."""
        is_empty = True
        try:
            result = hook(product, self.page)
            if inspect.isawaitable(result):
                result = await result
            if result is None:
                # A forgotten `return` would lose every item silently, so it is an error.
                message = 'item() returned None: return the item, or raise DropItem("why")'
                return self._refuse_item(InvalidItemError(message))
            products = things(result)
            if isinstance(products, AsyncIterator):
                async for item in products:
                    is_empty = False
                    self._keep_item(item)
            else:
                for item in products:
                    is_empty = False
                    self._keep_item(item)
            if is_empty:
                self._drop_item(_EMPTY_HOOK)
        except DropItem as drop:
            self._drop_item(text_of(drop))

    def _keep_item(self, product: object) -> None:
        if isinstance(product, Request):
            raise SpiderError("item() returned a Request: yield it in the callback")
        try:
            self._produced.items.append(cleaned_item(product))
        except InvalidItemError as error:
            self._refuse_item(error)

    def _refuse_item(self, error: InvalidItemError) -> None:
        if self._runner.spider.invalid_items != "item":
            raise error
        self._drop_item(text_of(error))

    def _drop_item(self, reason: str) -> None:
        reason = printable(reason, limit=_MAX_REASON_LENGTH) or "no reason given"
        count_dropped(self._produced.items_dropped, reason)


def _may_wait(result: object) -> bool:
    """Return whether a callback's result must be awaited, as a whole or in its parts."""
    if isinstance(result, GeneratorType):  # check the usual type first, because ABC checks are slow
        return bool(result.gi_code.co_flags & inspect.CO_ITERABLE_COROUTINE)
    return inspect.isawaitable(result) or isinstance(result, AsyncIterator)


def _raised(error: BaseException, callback: Callable[..., Any], result: Any) -> Raised:
    """Return the failure of a callback; *result* shows the place if the error does not."""
    failure = Raised.by(error, own_prefixes=_OUR_FILES, function=callback)
    if failure.where or (frame := _frame_of(result)) is None:
        return failure
    where = f"{frame.filename}:{frame.lineno}"
    return replace(failure, where=where, traceback=format_frames([frame], error))


def _frame_of(result: Any) -> FrameSummary | None:
    """Return the current place of a generator, for an error that was raised outside it."""
    frame = getattr(result, "gi_frame", None) or getattr(result, "ag_frame", None)
    if frame is None:
        return None  # a finished generator has no place
    return FrameSummary(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def things(result: Any) -> Iterator[object] | AsyncIterator[object]:
    """Return an iterator over the things in the result of a callback, or of the spider's `item`."""
    if isinstance(result, GeneratorType | Generator):
        return _yields_of(result)
    if isinstance(result, AsyncIterator):
        return result
    if result is None:
        return iter(())
    if isinstance(result, Request | str | bytes) or is_item(result):
        return iter((result,))
    return iter(result if isinstance(result, Iterable) else (result,))


def _yields_of(generator: Generator[object, None, object]) -> Iterator[object]:
    """Yield from a generator; raises `SpiderError` if it returns a value as well."""
    value = yield from generator
    if value is not None:
        raise SpiderError(
            "a callback that yields must not return a value, which would be lost: yield the "
            f"returned value of type {type(value).__name__}, or use `yield from` for a collection"
        )


def count_dropped(counts: Counter[str], reason: str, number: int = 1) -> None:
    """Count *number* items dropped for *reason*; over a limit, count new reasons together."""
    has_own_counter = reason in counts or len(counts) < MOST_REASONS
    counts[reason if has_own_counter else OTHER_REASONS] += number
