"""Run a spider's callbacks, and make items and new tasks from the yielded values.

The crawl continues even if a callback fails. A callback may be any kind of function, may raise, and
may yield a hundred thousand links.
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
    Sequence,
)
from contextlib import nullcontext
from copy import copy
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from traceback import FrameSummary
from types import GeneratorType
from typing import Any, Protocol

from crawlcw.api.attempt import Attempt
from crawlcw.api.links import TrapPolicy
from crawlcw.api.request import Request
from crawlcw.api.response import NOFOLLOW, TOO_MANY_LINKS, Response
from crawlcw.api.rules import requests
from crawlcw.api.settings import Settings
from crawlcw.api.spider import FILE_CALLBACK, Spider, callback_named
from crawlcw.api.user_code import Called, Cancellation, Raised, calls_user_code, time_limit
from crawlcw.crawl.item_keys import DUPLICATE, Keys
from crawlcw.crawl.kept_state import KeptState
from crawlcw.crawl.parsing import Parsing
from crawlcw.engine.watchdog import Watchdog
from crawlcw.errors import (
    DropItem,
    FetchError,
    FilesUnwritableError,
    InvalidItemError,
    ParseRefusedError,
    Reason,
    SpiderError,
    StopCrawl,
)
from crawlcw.model import referrers, urls, values
from crawlcw.model.counters import DroppedLinks
from crawlcw.model.sanitize import format_frames, printable, text_of
from crawlcw.model.task import Task
from crawlcw.model.tracking_parameters import without_tracking
from crawlcw.model.transitions import Failed, too_deep
from crawlcw.model.urls import Location, Refusal
from crawlcw.model.values import InvalidItem, ItemFile, cleaned_item, is_item

#: Maximum delay of a page's Refresh that counts as a link; a longer one may log the visitor out.
LONGEST_REFRESH = timedelta(seconds=100)
#: Maximum number of different reasons to drop items. The limit is needed because a reason may
#: contain crawled text.
MOST_REASONS = 100
OTHER_REASONS = "other reasons"
_EMPTY_HOOK = "item() yielded nothing"
_MAX_REASON_LENGTH = 120
#: Number of values that a `url_list` callback yields between two writes of links.
SLICE = 500
#: Prefixes of our files; the frames of the room `scrapy` stand before those of a project.
_OUR_FILES = (__file__, values.__file__, str(Path(__file__).parents[1] / "scrapy"))
#: Seconds that a callback may run before it pauses for other coroutines.
_STEP_S = 0.05
#: Between two pauses at most this number of seconds counts; a longer time may be a stall.
_MAX_STEP_S = 1.0
#: Seconds that callbacks may run in one iteration of the event loop. An iteration costs about as
#: much CPU time as a small page.
_SLICE_SECONDS = 0.03

Hook = Callable[[Any, Response | None], Any]
#: A function that adds to the ledger the links to follow and the links that are too deep.
WriteLinks = Callable[[list[Task], list[Task]], Awaitable[None]]


class Fetch(Protocol):
    """A function that sends a request of a page's callback."""

    def __call__(
        self, request: Request, source: Response, /, *, page: Attempt
    ) -> Awaitable[Response]:
        """See `Response.fetch`; *page* is the page's attempt, *source* the calling response."""


@dataclass(slots=True, kw_only=True)
class Produced:
    """The items, new tasks, dropped links and other results of a callback for one page."""

    items: list[dict[str, Any]] = field(default_factory=list)
    items_dropped: Counter[str] = field(default_factory=Counter)  #: dropped items, by reason
    #: Map from the digest of an item's key to the item's position in `items`.
    item_keys: dict[str, int] = field(default_factory=dict)
    tasks: list[Task] = field(default_factory=list)
    too_deep: list[Task] = field(default_factory=list)  #: links too deep for this crawl
    dropped: DroppedLinks = field(default_factory=DroppedLinks)
    stop: str | None = None  #: the callback's reason to end the crawl, or None
    #: The callback's changes of the spider's state.
    state: dict[str, Any] = field(default_factory=dict)
    retired: str | None = None  #: the callback's reason to retire (end) the page's session, or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The hosts and limits that decide which links a crawl follows."""

    hosts: set[str]  #: hosts of the seeds and of `allowed_hosts`
    max_depth: int | None
    max_links: int
    traps: TrapPolicy
    drops_tracking: bool = False  #: whether to remove tracking parameters from URLs
    #: Whether a page belongs to the URL of its canonical link.
    uses_canonical: bool = False
    referer: str = "off"  #: the setting `referer`
    full: set[str] = field(default_factory=set)  #: the set `PageLimit.full_hosts`

    @classmethod
    def of(cls, hosts: Iterable[str], settings: Settings) -> "Scope":
        """Return the scope of *hosts* with the limits of *settings*."""
        return cls(
            hosts=set(hosts),
            max_depth=settings.max_depth,
            max_links=settings.max_links_per_page,
            traps=settings.trap_policy,
            drops_tracking="tracking" in settings.url_rules,
            uses_canonical="canonical" in settings.url_rules,
            referer=settings.referer,
        )

    def with_referer(
        self, headers: Sequence[tuple[str, str]], url: str, *, page: Response
    ) -> tuple[tuple[str, str], ...]:
        """Return the *headers* of a request for *url* that *page* leads to, with its Referer."""
        if self.referer == "off" or any(name.lower() == "referer" for name, _ in headers):
            return tuple(headers)
        policy = page.referrer_policy if self.referer == "policy" else self.referer
        referer = referrers.referer(page.url, url, policy=policy)
        return (*headers, *(() if referer is None else [("Referer", referer)]))

    def addressed(self, request: Request) -> Request:
        """Return *request* with the URL that the crawl requests for it, see `url_rules`."""
        if not self.drops_tracking or "?" not in request.url or request.fingerprint is not None:
            return request
        url = without_tracking(request.url)
        location = request if url == request.url else urls.located(url)
        return request.with_location(location) if isinstance(location, Location) else request

    def admit_url(self, url: str, *, redirected: Task | None = None) -> None:
        """Raise `FetchError` if the crawl excludes *url*'s host, or if *url* looks like a trap.

        *redirected* is the task that redirects to *url*. A start URL may redirect from
        `www.a.example` to `a.example`, because sites use both names.
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
        """Return whether the scope contains the host whose name is `www.` before *host*."""
        return urls.in_scope(f"www.{host}", self.hosts)


class TimeSlices:
    """Limits the time of all callbacks together in one iteration of the event loop."""

    def __init__(self) -> None:
        self._slice_end: float | None = None  #: monotonic time of the slice's end
        self._slice_ended = asyncio.Event()

    async def take(self) -> None:
        """Wait until callbacks may run; the caller that has waited longest continues first."""
        while self._slice_end is not None and time.monotonic() >= self._slice_end:
            await self._slice_ended.wait()
        if self._slice_end is None:
            self._slice_end = time.monotonic() + _SLICE_SECONDS
            asyncio.get_running_loop().call_later(_SLICE_SECONDS, self._end_slice)

    def _end_slice(self) -> None:
        """End a time slice, so that the first waiting caller starts the next time slice."""
        self._slice_end = None
        self._slice_ended.set()
        self._slice_ended = asyncio.Event()


@dataclass(slots=True)
class Runner:
    """Runs the callbacks of one spider."""

    spider: Spider
    _: KW_ONLY
    scope: Scope
    known_ids: Container[bytes]  #: ids of tasks in the ledger; links to these tasks are dropped
    now: Callable[[], datetime]
    watchdog: Watchdog
    parsing: Parsing
    state: KeptState
    #: Writes the links of callbacks that read a list of URLs; None if `run` returns these links.
    write: WriteLinks | None
    #: Sends a request for a page's callback; None: callbacks send nothing.
    fetch: Fetch | None = None
    time_slices: TimeSlices = field(default_factory=TimeSlices)
    hook: Hook | None = field(init=False)  #: the spider's own `item`
    hook_waits: bool = field(init=False)  #: whether `hook` is asynchronous
    keys: Keys | None = field(init=False)  #: finds the keys of items; None: items have no keys

    def __post_init__(self) -> None:
        spider = self.spider
        self.hook = spider.item if type(spider).item is not Spider.item else None
        async_checks = inspect.iscoroutinefunction, inspect.isasyncgenfunction
        self.keys = None if spider.item_key is None else Keys(spider)
        self.hook_waits = any(check(self.hook) for check in async_checks)

    async def run(
        self, callback: str, *arguments: object, task: Task, attempt: Attempt | None = None
    ) -> Produced | Failed:
        """Return the results of the spider's method *callback*, or a `Failed` if the method raises.

        The last value in *arguments* is the response to *task*, or the `FetchError` of the attempt.
        Without an *attempt*, `Response.fetch` raises.
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
            # The base class's `on_error` uses no response, so do not parse the response for it.
            needs_response = getattr(method, "__func__", None) is not Spider.on_error
            if isinstance(response, Response) and needs_response:
                async with self.parsing.ready(response) as run.response:
                    if attempt is not None and self.fetch is not None:
                        # `sends` must not have the response, because of the reference cycle.
                        run.response.sends = partial(self.fetch, page=attempt)
                    if self.spider.invalid_items == "item":
                        run.response.invalid_item_reasons = []
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
    """One run of a callback, which makes items and tasks from the yielded values.

    The watchdog's time limit holds for every callback; the time of event loop stalls does not
    count. A callback that awaits is cancelled after the watchdog's limit. A callback that yields
    for a long time pauses repeatedly, so that other coroutines can run.

    If a callback reads a list of URLs (such as a sitemap), the number of links is not limited. The
    links get the same depth as the page that contains the list. Links of a list are written in
    slices, and each slice has the full time limit. Therefore a list of 50,000 links takes no more
    memory than a list of 500 links. The links of the last slice are returned, and written with the
    outcome.
    """

    def __init__(
        self, runner: Runner, method: Callable[..., Any], *, name: str, task: Task
    ) -> None:
        """*name* is the callback's name, which may differ from the function's name."""
        #: The response that the callback gets, as an argument or inside a `FetchError`.
        self.response: Response | None = None
        self.page: Response | None = None  #: the response, unless the callback gets an error
        self._runner = runner
        self._method = method
        self._task = task
        self._user_call = Called(name=name, subject=task.url)
        is_list = getattr(method, "is_url_list", False) is True
        self._write = runner.write if is_list else None
        self._slice_size = SLICE if self._write is not None else 0  #: size of a slice (0: no limit)
        self._depth = task.depth + (self._write is None)  #: depth of the links' tasks
        self._now = runner.now()
        self._produced = Produced()
        #: The values that the callback yields; None until the first slice begins.
        self._products: Iterator[object] | AsyncIterator[object] | None = None
        self._spent_s = 0.0  #: seconds that the callback has used in this slice
        self._pause_at = 0.0  #: monotonic time at which other coroutines must run
        self._link_count = 0
        self._admitted_host = ""  #: the last admitted host
        self._yielded_ids: set[bytes] = set()
        #: Map from a link's URL to the reason why the link was dropped; None: it was accepted.
        self._drop_reasons: dict[str, str | None] = {}

    @calls_user_code
    async def result(self, *arguments: object) -> Produced | Failed:
        """Return the results of the callback, or a `Failed` if the callback raises."""
        # Keep the local variable `called`, because the watchdog reads the variable from this frame.
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
            except (FilesUnwritableError, ParseRefusedError) as error:
                failed = Failed(reason=error.reason, message=error.message)
            except StopCrawl as stop_request:
                self._produced.stop, is_over = printable(text_of(stop_request)), True
            except BaseException as error:  # a spider may raise any exception
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
        response = self.response
        if response is not None and (response.dropped.counts or response.invalid_item_reasons):
            self._produced.dropped.add(response.dropped)
            for reason in response.invalid_item_reasons or ():
                self._drop_item(reason)
        return self._produced

    async def _run_slice(self, called: Called, result: Any) -> bool:
        """Make items and tasks from a slice of *result*; return whether the slice was the last."""
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
            max_links = self._runner.scope.max_links
            spider = self._runner.spider
            await self._sort(requests(rules, self.page, owner=spider, max_links=max_links))
        return is_over

    async def _sort(self, products: Iterable[object] | AsyncIterator[object]) -> bool:
        """Make items and tasks from the values of a slice; return whether it was the last slice."""
        number = 0
        if isinstance(products, AsyncIterator):
            async for product in products:
                if (hook_call := self._accept(product)) is not None:
                    await hook_call
                # Pause in this loop, because a callback may await only objects that are ready.
                # `time_limit` limits the callback's time.
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
        """Write the links of a slice of a URL list, and reset the time limit."""
        if self._write is not None and self._products is not None:
            await self._write(self._produced.tasks, self._produced.too_deep)
            self._produced.tasks, self._produced.too_deep = [], []
            self._yielded_ids.clear()
            self._drop_reasons.clear()
            self._spent_s = 0.0

    def _accept(self, product: object) -> Awaitable[None] | None:
        """Make a task or an item from a value, or drop it; return the `item` hook's awaitable."""
        if not isinstance(product, Request):
            if product is None:
                return None
            if isinstance(product, InvalidItem):
                self._refuse_item(product.invalid_item_error)
                return None
            if (hook := self._runner.hook) is not None:
                return self._run_hook(hook, product)
            self._keep_item(product)
            return None
        if self._has_room(product):
            # Handle a repeated link quickly, because most links of a page occur several times.
            url = product.plain_url
            if url is None:
                self._accept_request(product, depth=self._depth)
            elif url not in self._drop_reasons:
                self._drop_reasons[url] = self._accept_request(product, depth=self._depth)
            elif (reason := self._drop_reasons[url]) is not None:
                self._drop(product, reason)
        return None

    def _has_room(self, request: Request) -> bool:
        """Count a link; if the page has too many links, drop the link and return False."""
        self._link_count += 1
        max_links = self._runner.scope.max_links
        if self._link_count >= max_links and self._write is None:
            if self.response is not None:
                self.response.following.is_over = True
            if self._link_count > max_links:
                self._drop(request, TOO_MANY_LINKS)
                return False
        return True

    def _file_of(self, source: Request) -> ItemFile:
        """Make the task of a request in an item, and return the item's value for its file."""
        # Change a copy, because the spider may use its request again.
        request = self._runner.scope.addressed(copy(source))
        if request.callback == "parse":
            request.callback = FILE_CALLBACK
        reason: str | None = TOO_MANY_LINKS
        if self._has_room(request):
            # A file may have any depth, because `max_depth` must not cut an item in two.
            reason = self._accept_request(request, depth=self._task.depth, is_file=True)
        identity = request.locate(self._salt(request))
        if reason is not None or isinstance(identity, Refusal):
            return ItemFile(values.text(request.url), task_id=None, reason=str(reason))
        location, task_id = identity
        return ItemFile(location.url, task_id=task_id)

    def _salt(self, request: Request) -> bytes:
        """Return the salt of a request's task, see `Request.identity`."""
        # Identify a request with `dont_filter` by its position in the page, because a page that is
        # parsed again yields its requests in the same order.
        return b"%s %d" % (self._task.id, self._link_count) if request.dont_filter else b""

    def _follow_refresh(self, response: Response) -> None:
        """Follow a page's Refresh (header or meta tag) as a link that has the page's callback."""
        refresh = response.refresh
        if refresh is None or refresh.delay > LONGEST_REFRESH:
            return
        if response.following.obey_robots and response.robots.nofollow:
            self._produced.dropped.note(NOFOLLOW, refresh.url)
            return
        self._accept(response.request.retargeted(refresh.url))

    def _accept_request(self, request: Request, *, depth: int, is_file: bool = False) -> str | None:
        """Make a task from a request; return the reason to drop later equal requests, or None."""
        scope = self._runner.scope
        if scope.drops_tracking:
            request = scope.addressed(request)
        identity = request.locate(self._salt(request))
        if isinstance(identity, Refusal):
            return self._drop(request, identity.reason, where=identity.message)
        location, task_id = identity
        # Skip the check for the host of the last admitted link: most links of a page have one host.
        if location.host != self._admitted_host:
            is_home = location.host == self._task.host  # for redirected start URLs
            if not urls.in_scope(location.host, scope.hosts) and not (
                is_home and scope.is_apex(location.host)
            ):
                return self._drop(request, Reason.REFUSED_SCOPE)
            self._admitted_host = location.host
        # Drop repeated links first, because a repeated link to a start URL may look like a trap. Do
        # not drop a known request that has a date `changed`, because the ledger compares this date
        # with the last visit.
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
        task = request.task(now=self._now, depth=depth, parent=self._task.id, identity=identity)
        if scope.referer != "off" and self.page is not None and self._write is None:
            headers = scope.with_referer(task.headers, task.url, page=self.page)
            task = replace(task, headers=headers)
        depth_limit = request.options.max_depth
        if depth_limit is None and (depth_limit := self._task.options.max_depth) is not None:
            task = replace(task, options=replace(task.options, max_depth=depth_limit))
        max_depth = scope.max_depth if depth_limit is None else depth_limit
        if max_depth is None or task.depth <= max_depth or is_file:
            self._produced.tasks.append(task)
            return None
        self._drop(request, Reason.REFUSED_DEPTH)
        if depth_limit is None:
            # Keep the link for a later crawl with more depth, unless the request limits the depth.
            self._produced.too_deep.append(too_deep(task))
        return None

    def _drop(self, request: Request, reason: str, *, where: str = "") -> str:
        """Count a link that is not followed; if the link has no URL, *where* describes the link."""
        self._produced.dropped.note(reason, request.url or where)
        return reason

    async def _run_hook(self, hook: Hook, product: object) -> None:
        """Call the hook for a yielded item, and keep the items that the hook returns."""
        is_empty = True
        try:
            result = hook(product, self.page)
            if inspect.isawaitable(result):
                result = await result
            if result is None:
                # A forgotten `return` would lose every item silently, so None is an error.
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
            item = cleaned_item(product, file_of=self._file_of)
        except InvalidItemError as error:
            return self._refuse_item(error)
        if self._runner.keys is None or (key := self._runner.keys.key_of(item)) is None:
            return self._produced.items.append(item)
        if key not in self._produced.item_keys:
            self._produced.item_keys[key] = len(self._produced.items)
            return self._produced.items.append(item)
        if self._runner.keys.last_wins:
            self._produced.items[self._produced.item_keys[key]] = item
        count_dropped(self._produced.items_dropped, DUPLICATE)
        return None

    def _refuse_item(self, error: InvalidItemError) -> None:
        if self._runner.spider.invalid_items != "item":
            raise error
        self._drop_item(error.reason)

    def _drop_item(self, reason: str) -> None:
        reason = printable(reason, limit=_MAX_REASON_LENGTH) or "no reason given"
        count_dropped(self._produced.items_dropped, reason)


def _may_wait(result: object) -> bool:
    """Return whether a callback's result, or each value that it yields, must be awaited."""
    if isinstance(result, GeneratorType):  # check the usual type first, because ABC checks are slow
        return bool(result.gi_code.co_flags & inspect.CO_ITERABLE_COROUTINE)
    return inspect.isawaitable(result) or isinstance(result, AsyncIterator)


def _raised(error: BaseException, callback: Callable[..., Any], result: Any) -> Raised:
    """Return a callback's failure and its line of code, from *error* or a generator *result*."""
    failure = Raised.by(error, own_prefixes=_OUR_FILES, function=callback)
    if failure.where or (frame := _frame_of(result)) is None:
        return failure
    where = f"{frame.filename}:{frame.lineno}"
    return replace(failure, where=where, traceback=format_frames([frame], error))


def _frame_of(result: Any) -> FrameSummary | None:
    """Return the line at which *result* is suspended; None if *result* is no open generator."""
    frame = getattr(result, "gi_frame", None) or getattr(result, "ag_frame", None)
    if frame is None:
        return None  # a finished generator has no current line
    return FrameSummary(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def things(result: Any) -> Iterator[object] | AsyncIterator[object]:
    """Return an iterator over the values that a callback or the method `item` returned."""
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
    """Yield the values of a generator; raises `SpiderError` if the generator returns a value."""
    value = yield from generator
    if value is not None:
        raise SpiderError(
            "a callback that yields must not return a value, which would be lost: yield the "
            f"returned value of type {type(value).__name__}, or use `yield from` for a collection"
        )


def count_dropped(counts: Counter[str], reason: str, number: int = 1) -> None:
    """Count items dropped for *reason*; one counter has all reasons after the first 100."""
    has_own_counter = reason in counts or len(counts) < MOST_REASONS
    counts[reason if has_own_counter else OTHER_REASONS] += number
