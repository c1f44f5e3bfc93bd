"""The layers that each request of a crawl passes, in their order."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from crawlcw.api.attempt import (
    Attempt,
    Downloader,
    Layer,
    LoggedOutError,
    Next,
    Purpose,
    loaded_layers,
    redirected,
    replaced,
)
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.sessions import condition
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider, entry_urls, logs_in
from crawlcw.archive.records import Record
from crawlcw.engine.watchdog import Watchdog
from crawlcw.errors import FetchError
from crawlcw.fetch.addresses import Hop, PublicNames, current_hop
from crawlcw.fetch.body import MemoryBudget
from crawlcw.fetch.credentials import Credentials
from crawlcw.fetch.proxies import Proxies, ProxyPool
from crawlcw.fetch.redirects import Admission, FollowRedirects
from crawlcw.fetch.transport import AiohttpDownloader
from crawlcw.fetch.user_layers import (
    OwnDownloader,
    UserLayer,
    after_response,
    before_request,
    made_by,
)
from crawlcw.files.saving import SaveFile
from crawlcw.model import urls

#: Key for pages that a browser renders, in mappings whose other keys are `Purpose`s.
RENDERED = "rendered"


class Transport:
    """The last step of every request; it calls the HTTP client, or the fake client of a test."""

    def __init__(self, client: Downloader) -> None:
        self._client = client
        #: Function that sends a request; it takes no `call_next`, because no layer follows.
        self.ask: Next = getattr(client, "exchange", self._fetch)

    def _fetch(self, attempt: Attempt, request: Request, /) -> Awaitable[Response]:
        current_hop.set(Hop(attempt, attempt.proxy))
        return self._client.fetch(request, url=request.url)


#: A step that a request passes on its way to the server.
Step = Layer | Transport


def layers(
    spider: Spider,
    settings: Settings,
    default: "DefaultDownloader",
    *,
    credentials: Credentials,
    admission: Admission,
    render: Layer,
    watch: Watchdog,
    keeps_bodies: bool = False,
) -> list[Step | None]:
    """Return the layers for *spider*, the outermost first; an omitted layer is None in the list.

    A layer gets a request from the layer outside it, and a response from the layer inside it. If a
    layer has the attribute `purposes`, the layer gets only requests with one of these purposes.
    `Fetcher` chooses the session before the first layer. `credentials` adds the session's headers,
    `Proxies` its proxy, and `Transport` its cookies.
    """
    chosen_layers = [*spider.layers, *loaded_layers(settings.layers)]
    user_layers = [UserLayer(layer, watch, admission) for layer in chosen_layers]
    hooks = (after_response(spider), before_request(spider))
    wire_layers = [layer for layer in user_layers if layer.is_wire]
    lower_layers: list[Step | None] = [
        # The response cache is above the proxies, because a cached response needs no proxy.
        default.cache,
        # A layer with `wire` sees the request with its secrets, before a proxy is chosen.
        *wire_layers,
        # Chooses the proxy of the session or the pool, and tries another if a proxy fails.
        default.proxies,
        # Adds the cookies of the session or the crawl, and missing default headers.
        Transport(default.client),
    ]
    default.next_by_purpose = chains(lower_layers)
    # A spider's downloader or a `wire` layer may return a file's content in memory.
    streams = (
        not wire_layers
        and default.spider_downloader is None
        and hasattr(default.client, "exchange")
    )
    return [
        # `FollowRedirects` runs once for an attempt, because the attempt's deadline covers all
        # hops. This layer checks scope, robots.txt and delay before each redirect.
        FollowRedirects(settings, admission),
        # ---- The layers below run once for each hop (the first URL or a redirect's target).
        # `login_when` checks the response after hooks and the browser have changed it.
        CheckAnswer(spider) if logs_in(spider) else None,
        # The layers of the spider and the settings see the rendered page, but they see no secrets.
        *(layer for layer in user_layers if not layer.is_wire),
        # The hooks change a response before the layers above see it.
        *(UserLayer(inner, watch, admission) for inner in hooks if inner is not None),
        # Records the response for WARC files before a hook changes the response.
        Record() if keeps_bodies else None,
        # Renders pages in a browser, whose own requests pass all layers below.
        render,
        # Adds the secrets of settings, start URLs and session, which the layers above do not see.
        credentials,
        None if streams else SaveFile(settings),
        default.spider_downloader,
        *lower_layers,
    ]


def chains(steps: Sequence[Step | None]) -> dict[str, Next]:
    """For each purpose, return a function that sends a request through the layers *steps*.

    For pages that a browser renders, the key is `RENDERED` instead of a purpose.
    """
    next_by_purpose: dict[str, Next] = {}
    for layer in reversed(steps):
        if layer is None:
            continue
        if isinstance(layer, Transport):
            next_by_purpose = dict.fromkeys((*Purpose, RENDERED), layer.ask)
            continue
        purposes: set[str] = set(getattr(layer, "purposes", Purpose))
        if Purpose.PAGE in purposes:
            purposes.add(RENDERED)
        for purpose in purposes:
            next_by_purpose[purpose] = _above(layer, next_by_purpose[purpose])
    return next_by_purpose


def _above(layer: Layer, call_next: Next) -> Next:
    # An `async def` would add one stack frame for each layer, so return the layer's coroutine.
    return lambda attempt, request: layer(attempt, request, call_next)


class DefaultDownloader:
    """The crawl's own downloader, which the crawl passes to a spider's `downloader()`.

    A `DefaultDownloader` sends requests to *client* through the `lower_layers` of `layers`.
    """

    def __init__(
        self, client: Downloader, *, proxies: Proxies | None = None, cache: Layer | None = None
    ) -> None:
        self.client = client
        self.proxies = proxies
        self.cache = cache
        #: The spider's own downloader, which calls this default downloader.
        self.spider_downloader: OwnDownloader | None = None
        #: For each purpose of a request, the function that sends it through the lower layers.
        self.next_by_purpose = chains([cache, proxies, Transport(client)])

    async def fetch(self, request: Request, *, url: str) -> Response:
        """Return the response to *request*; see `Downloader`."""
        hop = current_hop.get(None)
        attempt = Attempt(request=request) if hop is None else hop.attempt
        response = await self.next_by_purpose[attempt.purpose](attempt, redirected(request, url))
        return response if response.request is request else replaced(response, request=request)

    async def close(self) -> None:
        """Close all connections."""
        await self.client.close()


def web(
    spider: Spider,
    settings: Settings,
    *,
    public_names: PublicNames | None = None,
    extra_urls: Iterable[str] = (),
    proxies: ProxyPool,
    cache: Callable[[Settings, MemoryBudget], Layer | None] | None = None,
) -> DefaultDownloader:
    """Return the downloader for *spider*; *extra_urls* are start URLs besides the spider's own.

    *cache* returns the cache layer. Cached bodies count in the downloader's memory budget.
    """
    origins = {urls.locate(url).host for url in [*entry_urls(spider), *extra_urls]}
    client = AiohttpDownloader(settings, start_origins=origins, public_names=public_names)
    cache_layer = cache and cache(settings, client.memory)
    return DefaultDownloader(client, proxies=Proxies(proxies), cache=cache_layer)


@asynccontextmanager
async def downloader_of(
    spider: Spider, default: Downloader, settings: Settings
) -> AsyncIterator[DefaultDownloader]:
    """Open the spider's downloader; close it, and the crawl's downloader *default*, at the end.

    Raises `SpiderError` if the spider's `downloader()` does not return a downloader.
    """
    if not isinstance(default, DefaultDownloader):
        default = DefaultDownloader(default)
    async with AsyncExitStack() as closing:
        closing.push_async_callback(default.close)
        if type(spider).downloader is not Spider.downloader:
            default.spider_downloader = OwnDownloader(
                made_by(spider, default), grace=settings.grace
            )
            closing.push_async_callback(default.spider_downloader.close)
        yield default


class CheckAnswer:
    """Layer that raises `LoggedOutError` if a session's response is that for a logged-out user.

    The first bytes of a file are checked before the file is saved.
    """

    purposes = frozenset({Purpose.PAGE})

    def __init__(self, spider: Spider) -> None:
        """Read the spider's `login_when`; raises `SpiderError` if this is no condition."""
        self._login_when = condition(spider, "login_when")

    async def __call__(self, attempt: Attempt, request: Request, call_next: Next) -> Response:
        """Return the response."""
        if attempt.session is None:
            return await call_next(attempt, request)
        attempt.accepts_file = self._is_accepted
        response = await call_next(attempt, request)
        if response.file is None and self._login_when(response):
            raise LoggedOutError(response)
        return response

    def _is_accepted(self, begun: Response) -> bool:
        try:
            return not self._login_when(begun)
        except FetchError:  # `__call__` raises the error for the whole response
            return False
