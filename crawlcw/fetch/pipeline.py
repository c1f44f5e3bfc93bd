"""The way of a request through the crawl: the one list of its layers, in their order."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from crawlcw.api import own_layers
from crawlcw.api.attempt import (
    Attempt,
    Downloader,
    Layer,
    LoggedOutError,
    Next,
    Purpose,
    Session,
    asked_at,
    replaced,
)
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider, entry_urls
from crawlcw.engine.watchdog import Watchdog
from crawlcw.errors import FetchError, Reason
from crawlcw.fetch.addresses import Hop, PublicNames, current_hop
from crawlcw.fetch.browser import Browser
from crawlcw.fetch.credentials import Authorize, Credentials, SessionHeaders
from crawlcw.fetch.dev_cache import DevCache
from crawlcw.fetch.file_transfer import SaveFile
from crawlcw.fetch.proxies import Proxies, ProxyPool
from crawlcw.fetch.recording import Record
from crawlcw.fetch.redirects import FollowRedirects, TimeLimit
from crawlcw.fetch.rendering import AdmitPart, Render
from crawlcw.fetch.transport import AiohttpDownloader
from crawlcw.fetch.user_layers import Hooks, OwnDownloader, UserLayer, made_by
from crawlcw.model import urls
from crawlcw.model.proxies import ProxyEnvironment


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of a crawl that its layers need."""

    settings: Settings
    downloader: "DefaultDownloader"
    credentials: Credentials
    #: Waits until a URL may be asked for; raises `FetchError` where it may not.
    admit: Callable[[Attempt, str], Awaitable[None]]
    browser: Browser
    admit_part: AdmitPart
    watch: Watchdog
    #: Waits for the turn of a URL that a layer asks for once more.
    turn: Callable[[str], Awaitable[None]]
    keeps_bodies: bool = False


def layers(spider: Spider, parts: Parts) -> list[Layer]:
    """Return the layers of a crawl of *spider*, the outermost first, without those it never needs.

    A layer sees each request as those above it have made it, and the answer as those below it
    have made it. The purposes of a layer say which requests pass it; by default all do.
    """
    settings, default = parts.settings, parts.downloader
    hooks = Hooks(spider, parts.watch)
    chosen = [*own_layers.checked(spider.layers, type(spider).__name__)]
    chosen += own_layers.loaded(settings.layers)
    users = [UserLayer(each, parts.watch, turn=parts.turn) for each in chosen]
    below_own: list[Layer | None] = [
        # An answer that is kept needs no proxy.
        default.cache,
        # With `wire`: all that leaves for the network, its secrets included, before a proxy.
        *(layer for layer in users if layer.is_wire),
        # It may ask more than once: another proxy when one fails.
        default.proxies,
        Transport(default.client),
    ]
    default.ways = ways(_without_none(below_own))
    return _without_none(
        [
            # Once for an attempt: its deadline spans all hops.
            TimeLimit(settings),
            FollowRedirects(settings),
            # ---- Below: once for each hop.
            # Before anything is spent on a URL: scope, robots.txt, and the host's turn.
            Admit(parts.admit),
            # `login_when` judges the answer as hooks and browser have made it.
            CheckAnswer(),
            # The layers of the spider and the settings see the rendered page, and no secrets.
            *(layer for layer in users if not layer.is_wire),
            # Hooks are nearest to the page; a layer judges what they have made of it.
            hooks if hooks.is_needed else None,
            # The WARC files have the answer before a hook changes it.
            Record() if parts.keeps_bodies else None,
            # The parts of a rendered page go through all layers below.
            Render(parts.browser, settings, admit=parts.admit_part),
            # Below all that the spider sees: the headers of the session, then of the origin.
            SessionHeaders(),
            Authorize(parts.credentials),
            # A downloader of the spider's own may return a file in memory.
            SaveFile(settings),
            default.own,
            *below_own,
        ]
    )


def _without_none(found: Sequence[Layer | None]) -> list[Layer]:
    return [layer for layer in found if layer is not None]


def ways(found: Sequence[Layer]) -> dict[Purpose, Next]:
    """Return the way through the layers, the outermost first, for each purpose."""
    return {purpose: compose(found, purpose=purpose) for purpose in Purpose}


def compose(found: Sequence[Layer], *, purpose: Purpose) -> Next:
    """Return the way through the layers for requests of one *purpose*."""
    way: Next = _no_layer
    for layer in reversed(found):
        if purpose in getattr(layer, "purposes", Purpose):
            way = _above(layer, way)
    return way


def _above(layer: Layer, call_next: Next) -> Next:
    # It returns the coroutine: an `async def` would be one more frame for each layer.
    return lambda attempt, request: layer(attempt, request, call_next)


async def _no_layer(attempt: Attempt, request: Request) -> Response:  # noqa: ARG001  # a `Next`
    raise AssertionError("the last layer asks the server")


class DefaultDownloader:
    """The crawl's own downloader, as a spider's `downloader()` is given it.

    It asks *client*; the layers above that are the crawl's, see `layers`.
    """

    def __init__(
        self, client: Downloader, *, proxies: Proxies | None = None, cache: DevCache | None = None
    ) -> None:
        self.client = client
        self.proxies = proxies
        self.cache = cache
        self.own: OwnDownloader | None = None  #: what the spider has made of it
        #: From here down; a crawl has layers of its own there.
        self.ways = ways(_without_none([cache, proxies, Transport(client)]))

    async def fetch(self, request: Request, *, url: str) -> Response:
        """Return the response; see `Downloader`."""
        hop = current_hop.get(None)
        attempt = Attempt(request=request) if hop is None else hop.attempt
        response = await self.ways[attempt.purpose](attempt, asked_at(request, url))
        return response if response.request is request else replaced(response, request=request)

    async def close(self) -> None:
        """Close all connections."""
        await self.client.close()


def web(
    spider: Spider,
    settings: Settings,
    *,
    public_names: PublicNames | None = None,
    also: Iterable[str] = (),
    proxies: ProxyPool | None = None,
) -> DefaultDownloader:
    """Return the downloader that a crawl of *spider* uses; *also* are URLs beside its own.

    Its requests go through *proxies*, by default those of the settings and the environment.
    """
    origins = {urls.locate(url).host for url in [*entry_urls(spider), *also]}
    client = AiohttpDownloader(settings, start_origins=origins, public_names=public_names)
    cache = None if settings.cache == "off" else DevCache(settings)
    return DefaultDownloader(client, proxies=Proxies(proxies or proxy_pool(settings)), cache=cache)


def proxy_pool(settings: Settings) -> ProxyPool:
    """Return the proxies of the settings, else those of the environment; raises `SettingsError`."""
    if not settings.proxy_env:
        return ProxyPool(settings)
    read = ProxyEnvironment.exceptions if settings.proxies else ProxyEnvironment.of
    return ProxyPool(settings, read(os.environ))


@asynccontextmanager
async def downloader_of(spider: Spider, default: Downloader) -> AsyncIterator[DefaultDownloader]:
    """Open the downloader of *spider*, and close it and the *default* one afterwards.

    Raises `SpiderError` where its `downloader()` makes none.
    """
    if not isinstance(default, DefaultDownloader):
        default = DefaultDownloader(default)
    try:
        if type(spider).downloader is not Spider.downloader:
            default.own = OwnDownloader(made_by(spider, default))
        try:
            yield default
        finally:
            if default.own is not None:
                await default.own.close()
    finally:
        await default.close()


class Admit:
    """Ask for the target of a redirect only where and when it may be; the first is the caller's."""

    purposes = frozenset({Purpose.PAGE, Purpose.LOGIN})

    def __init__(self, admit: Callable[[Attempt, str], Awaitable[None]]) -> None:
        self._admit = admit

    def __call__(self, attempt: Attempt, request: Request, call_next: Next) -> Awaitable[Response]:
        """Return the response; raises `FetchError`."""
        if not attempt.redirects:
            return call_next(attempt, request)
        return self._admitted(attempt, request, call_next)

    async def _admitted(self, attempt: Attempt, request: Request, call_next: Next) -> Response:
        try:
            await self._admit(attempt, request.url)
        except FetchError as error:
            error.response = attempt.redirects[-1]
            raise
        return await call_next(attempt, request)


class CheckAnswer:
    """Raise `LoggedOutError` for the answer to a session that is logged out, redirects too.

    Of a file the beginning is looked at, before it is saved.
    """

    purposes = frozenset({Purpose.PAGE})

    def __call__(self, attempt: Attempt, request: Request, call_next: Next) -> Awaitable[Response]:
        """Return the response."""
        session = attempt.session
        if session is None or session.is_logged_out is None:
            return call_next(attempt, request)
        return _checked(session, attempt, request, call_next)


async def _checked(
    session: Session, attempt: Attempt, request: Request, call_next: Next
) -> Response:
    attempt.accepts_file = lambda begun: not _is_unwanted(session, begun)
    response = await call_next(attempt, request)
    if response.file is None and _is_refused(session, response):
        raise LoggedOutError(response)
    return response


def _is_refused(session: Session, response: Response) -> bool:
    assert session.is_logged_out is not None
    try:
        return session.is_logged_out(response)
    except Exception as error:
        message = f"login_when raised {type(error).__name__}: {error}"
        raise FetchError(Reason.PARSE_ERROR, message) from error


def _is_unwanted(session: Session, begun: Response) -> bool:
    try:
        return _is_refused(session, begun)
    except FetchError:  # the same is raised for the answer that is returned then
        return True


class Transport:
    """Ask the server itself, or what tests have in its place."""

    def __init__(self, client: Downloader) -> None:
        self._client = client
        self._exchange = getattr(client, "exchange", None)

    def __call__(
        self,
        attempt: Attempt,
        request: Request,
        call_next: Next,  # noqa: ARG002  # the last one
    ) -> Awaitable[Response]:
        """Return the response."""
        if self._exchange is not None:
            exchanged: Awaitable[Response] = self._exchange(attempt, request, proxy=attempt.proxy)
            return exchanged
        current_hop.set(Hop(attempt, attempt.proxy))
        return self._client.fetch(request, url=request.url)
