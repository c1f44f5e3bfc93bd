"""Define an attempt at a request, and the layers between the request and the server.

All layers of an attempt share the attempt's purpose, session, proxy, deadline and memory, and the
resources that are closed when the attempt ends.

Users add layers by the spider's attribute `layers` and by the setting `layers`. The setting names a
layer as `package.module:Layer`, or by its entry point in the group `crawlcw.layers`. A crawl uses
no layer of an installed package unless the spider or the setting names it.
"""

import asyncio
import importlib
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, Self

import yarl

from crawlcw.api.request import Request
from crawlcw.api.response import PageSession, Response
from crawlcw.errors import SettingsError, SpiderError, UsageError
from crawlcw.model.identities import Identity
from crawlcw.model.proxies import Proxy
from crawlcw.model.sanitize import describe_error
from crawlcw.model.values import frozen


class Purpose(StrEnum):
    """The reason for a request."""

    PAGE = "page"  #: a request that fetches a page, or checks whether a session is logged in
    ROBOTS = "robots"  #: a request for an origin's robots.txt
    LOGIN = "login"  #: from the spider's `login`
    PROBE = "probe"  #: a request to test whether a server responds
    FETCH = "fetch"  #: from `Response.fetch` or `Spider.fetch`


@dataclass(slots=True, eq=False)
class Deadline:
    """The deadline of an attempt, which counts only the time spent waiting for servers.

    A `with` block pauses the deadline. Such blocks may overlap.
    """

    timeout: asyncio.Timeout | None = None  #: the timer that cancels the attempt
    _pause_count: int = field(default=0, init=False)
    _paused_since: float = field(default=0.0, init=False)
    _end: float | None = field(default=None, init=False)

    def pause(self) -> None:
        """Pause the deadline; each call of `pause` needs one call of `resume`."""
        self._pause_count += 1
        if self._pause_count == 1 and self.timeout is not None and not self.timeout.expired():
            self._end = self.timeout.when()
            if self._end is not None:
                self._paused_since = asyncio.get_running_loop().time()
                self.timeout.reschedule(None)

    def resume(self) -> None:
        """End one `pause`; the deadline runs again when all pauses have ended."""
        self._pause_count -= 1
        if not self._pause_count and self._end is not None and self.timeout is not None:
            self.timeout.reschedule(
                self._end + asyncio.get_running_loop().time() - self._paused_since
            )
            self._end = None

    def restart(self, seconds: float) -> None:
        """Let the deadline end *seconds* from now if there is a deadline that is not paused."""
        if self.timeout is not None and self.timeout.when() is not None:
            self.timeout.reschedule(asyncio.get_running_loop().time() + seconds)

    def __enter__(self) -> None:
        self.pause()

    def __exit__(self, *_: object) -> None:
        self.resume()


class Jar(Protocol):
    """The cookies of one session, see `cookies.SiteCookies`."""

    def keep(self, headers: Iterable[str], url: yarl.URL) -> None:
        """Keep the cookies of `Set-Cookie` headers of *url*."""

    def sent_to(self, url: yarl.URL) -> list[tuple[str, str]]:
        """Return the names and values of the cookies to send to *url*."""


class Share(Protocol):
    """The memory reserved for one body, see `body.Share`."""

    def shrink(self, size: int) -> None:
        """Reduce the share to *size* bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A session for one attempt: its state from the ledger, and its cookies in memory."""

    identity: Identity
    jar: Jar | None  #: None: cookies are ignored
    proxy: Proxy | None = None  #: the session's own proxy, if any

    @property
    def may_be_banned(self) -> bool:
        """Whether a ban ends the session: it ends a pool's session, and one with its own proxy."""
        return self.proxy is not None or self.identity.is_pooled

    def page_session(self) -> PageSession:
        """Return the session in the form that a callback gets as `Response.session`."""
        return PageSession(self.identity.name, frozen(self.identity.data))


class LoggedOutError(Exception):
    """Raised if a response shows that its session is logged out."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response = response


@dataclass(slots=True, kw_only=True, eq=False)
class Attempt:
    """One attempt at a request; the end of its `async with` block closes its resources.

    A layer may read `request`, `number`, `purpose`, `session` and `proxy`. All other fields are
    internal.
    """

    request: Request  #: the request before any redirect or layer
    purpose: Purpose = Purpose.PAGE
    session: Session | None = None
    proxy: Proxy | None = None  #: the last exchange's proxy
    kept_proxy: Proxy | None = None  #: the proxy for all exchanges
    deadline: Deadline = field(default_factory=Deadline)
    redirects: list[Response] = field(default_factory=list)  #: followed redirects, in order
    url: str = ""  #: the current hop's URL before hooks and layers change the URL
    #: A function that returns whether the attempt follows a redirect; with None it follows all.
    follows: Callable[[str], bool] | None = None
    is_conditional: bool = False  #: whether a 304 means that the page is unchanged
    #: A function that gets a response with its body's first bytes, and returns whether to save it.
    accepts_file: Callable[[Response], bool] | None = None
    exchanges: list[Any] | None = None  #: exchanges for the WARC files
    cleanup: AsyncExitStack | None = None  #: resources to close
    #: Whether the first body of this attempt may wait for memory. `may_wait` is False if a page
    #: that holds memory waits for this attempt, because the two could wait for each other for ever.
    may_wait: bool = True
    #: Memory of bodies until the attempt ends; None: only until the exchange of a body ends.
    memory: list[Share] | None = None
    slot: Callable[[], None] | None = None  #: frees the held slot
    slot_host: str = ""  #: the slot's host
    #: The page whose callback sends the request of this attempt by `Response.fetch`.
    page: "Attempt | None" = None
    fetch_count: int = 0  #: requests that the page's callbacks have sent by `Response.fetch`
    #: Lock of the requests that use the slot of this attempt, one after the other.
    slot_lock: asyncio.Lock | None = None

    @property
    def number(self) -> int:
        """The number of the attempt at its page: 1 for the first attempt, 2 after one failure."""
        return 1

    @property
    def waits_for_memory(self) -> bool:
        """Whether the next body may wait for memory: False if the attempt already holds memory."""
        return self.may_wait and not self.memory

    def keep(self, share: Share) -> None:
        """Hold *share* until the attempt ends, or free *share* at once if `memory` is None."""
        if self.memory is None:
            share.shrink(0)
        else:
            self.memory.append(share)

    def free(self) -> None:
        """Free the attempt's slot, if any, so that the next request to the host may begin."""
        if (slot := self.slot) is not None:
            self.slot = None
            slot()

    async def __aenter__(self) -> Self:
        self.memory = []
        return self

    async def __aexit__(self, *raised: Any) -> None:
        shares, self.memory = self.memory or (), None
        # Break the reference cycle, which would stay in memory until the next garbage collection.
        self.follows = None
        try:
            if self.cleanup is not None:
                await self.cleanup.__aexit__(*raised)
        finally:
            if self.slot is not None:
                self.free()
            for share in shares:
                share.shrink(0)


#: The attempt that runs the user's code, and that may have a slot of its host.
user_attempt: ContextVar[Attempt] = ContextVar("user_attempt")


class Downloader(Protocol):
    """Fetches pages from servers."""

    async def fetch(self, request: Request, *, url: str) -> Response:
        """Send *request* to *url*, and return the response with its decoded and bounded body.

        - *url* is the request's own URL, or the target of a redirect.
        - A redirect is returned, not followed. The redirect's header `location` is made from the
          raw bytes that the server sent.
        - A body over the limit is cut, and `truncated` gives the reason.
        - A response of any status is returned.
        - If the request has `options.save_to`, the method may stream the body to `Response.file`.
          If the method returns the body in memory instead, the crawl saves the body.

        Raises `FetchError` for every failure, and no other error; cancellation passes through.
        """

    async def close(self) -> None:
        """Close all connections; the crawl cancels `close` if it takes longer than `grace`."""


class Next(Protocol):
    """A function that passes a request to the inner layers, and then to the server."""

    def __call__(self, attempt: Attempt, request: Request, /) -> Awaitable[Response]:
        """Return the response to *request*; raises `FetchError`."""


class Layer(Protocol):
    """Code that each request passes on its way to the server, and each response on its way back.

    A user's layer is an object with `async def __call__`, or an `async` function.

    - By default a layer is called for the requests of pages. A layer with the attribute `wire =
      True` is also called for robots.txt and logins, and sees the secrets that are sent.
    - A layer may run for the time `callback_timeout`, which is not part of the page's `timeout`.
    - `FetchError` ends the attempt, and `Defer` defers the page. Any error of a layer except
      `FetchError` and `Defer` fails the page as `parse-error`.
    """

    def __call__(self, attempt: Attempt, request: Request, call_next: Next) -> Awaitable[Response]:
        """Return the response to *request*, usually the response that *call_next* returns.

        *call_next* takes the attempt and a request to the same origin. If the request has a `proxy`
        or a `timeout`, it applies to this exchange only. The layer cannot change other options.

        A layer may call *call_next* again. The repeated call waits for the previous call's end, and
        then for the host's delay.
        """


def redirected(request: Request, url: str) -> Request:
    """Return *request* with the URL *url*, the target of a redirect, and with the same options."""
    return request if request.url == url else copied(request, url=url)


def copied(
    request: Request,
    *,
    url: str | None = None,
    more_headers: Sequence[tuple[str, str]] = (),
) -> Request:
    """Return a copy of *request*, with the same options, for one exchange (request and response).

    *url* is the address of the exchange, by default the URL of *request*; *more_headers* follow the
    headers of *request*.
    """
    copy = request.retargeted(
        request.url if url is None else url,
        method=request.method,
        headers=(*request.headers, *more_headers) if more_headers else request.headers,
        body=request.body,
    )
    copy.options = request.options
    return copy


def replaced(response: Response, **changes: Any) -> Response:
    """Return a copy of *response* with *changes*; the crawl never changes a response in place."""
    copy = object.__new__(type(response))
    vars(copy).update(vars(response), **changes)
    return copy


def layer_name(layer: Any) -> str:
    """Return the name of a layer: the name of its class or function."""
    return str(getattr(layer, "__name__", type(layer).__name__))


def check_layers(layers: object, kind: str) -> None:
    """Raise `SpiderError` if *layers* is no list of layers; messages call its owner *kind*."""
    if not isinstance(layers, list | tuple):
        raise SpiderError(f"{kind}.layers is {layers!r}: write a list of layers")
    for layer in layers:
        if (problem := _layer_refusal(layer)) is not None:
            raise SpiderError(f"{kind}.layers: {problem}")


def loaded_layers(names: Iterable[str]) -> list[Layer]:
    """Return the layers of the setting `layers`; raises `SettingsError` if loading fails."""
    return [_loaded_layer(name) for name in names]


def _loaded_layer(name: str) -> Layer:
    try:
        module, colon, attribute = name.partition(":")
        if colon:
            target: Any = importlib.import_module(module)
            for attribute_name in attribute.split("."):
                target = getattr(target, attribute_name)
        else:
            # Import `extensions` late, because the import takes 8 ms and few crawls need it.
            from crawlcw import extensions

            target = extensions.load(extensions.LAYERS, name)
            if target is None:
                known_names = ", ".join(extensions.names(extensions.LAYERS)) or "none is installed"
                raise SettingsError(
                    f"setting layers: {name!r} is neither package.module:Layer nor an entry "
                    f"point of {extensions.LAYERS} ({known_names})"
                )
        layer: Layer = target() if isinstance(target, type) else target
    except UsageError:
        raise
    except Exception as error:  # the user's code may raise anything
        message = f"setting layers: {name!r} cannot be loaded: {describe_error(error)}"
        raise SettingsError(message) from error
    if (problem := _layer_refusal(layer)) is not None:
        raise SettingsError(f"setting layers: {name!r}: {problem}")
    return layer


def _layer_refusal(layer: Any) -> str | None:
    """Return why *layer* is not a layer; None if *layer* may be a layer."""
    signature = "`async def __call__(self, attempt, request, call_next)`"
    if isinstance(layer, type):
        return f"{layer.__name__} is a class: write {layer.__name__}()"
    if not callable(layer):
        return f"{type(layer).__name__} is not a layer: it needs {signature}"
    try:
        inspect.signature(layer).bind(None, None, None)
    except (TypeError, ValueError):
        return f"{layer_name(layer)} has other arguments than a layer: write {signature}"
    if not any(map(inspect.iscoroutinefunction, (layer, type(layer).__call__))):
        return f"{layer_name(layer)} is not `async`: write {signature}"
    return None
