"""The layers that a request passes in a crawl: the only list of them, in their order."""

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

#: The way of a page that a browser renders. Each purpose has another way.
RENDERED = "rendered"


class Transport:
    """The end of each way: asks the server itself, or its replacement in tests."""

    def __init__(self, client: Downloader) -> None:
        self._client = client
        #: No layer is below, so it gets no next call.
        self.ask: Next = getattr(client, "exchange", self._fetch)

    def _fetch(self, attempt: Attempt, request: Request, /) -> Awaitable[Response]:
        current_hop.set(Hop(attempt, attempt.proxy))
        return self._client.fetch(request, url=request.url)


#: A station of a request.
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
    """Return the layers of a crawl of *spider*, the outermost first; None for unneeded layers.

    A layer sees each request after the layers above have changed it, and the response after the
    layers below have changed it. The purposes of a layer name the requests that pass it; by default
    all requests pass it. `Fetcher` chooses the session before the first layer. `credentials` adds
    its headers, `Proxies` its proxy, `Transport` its cookies.
    """
    chosen = [*spider.layers, *loaded_layers(settings.layers)]
    users = [UserLayer(inner, watch, admission) for inner in chosen]
    hooks = (after_response(spider), before_request(spider))
    wire = [layer for layer in users if layer.is_wire]
    lower_layers: list[Step | None] = [
        # A stored response needs no proxy.
        default.cache,
        # A layer with `wire` sees the request with its secrets, before a proxy is chosen.
        *wire,
        # Chooses the session's proxy, or one of the pool, and asks again if a proxy fails.
        default.proxies,
        # Adds cookies, the session's or the crawl's, and missing usual headers.
        Transport(default.client),
    ]
    default.next_by_purpose = chains(lower_layers)
    # Another downloader than the crawl's own returns a file in memory, and so may a layer below.
    streams = not wire and default.spider_downloader is None and hasattr(default.client, "exchange")
    return [
        # This layer runs once for an attempt, because its deadline covers all hops. It admits each
        # target (scope, robots.txt, the host's turn) before any other layer works on it.
        FollowRedirects(settings, admission),
        # ---- The layers below run once for each hop.
        # `login_when` checks the response after hooks and the browser have changed it.
        CheckAnswer(spider) if logs_in(spider) else None,
        # The layers of the spider and the settings see the rendered page, and no secrets.
        *(layer for layer in users if not layer.is_wire),
        # Hooks are nearest to the page; a layer sees the page that they return.
        *(UserLayer(inner, watch, admission) for inner in hooks if inner is not None),
        # The WARC files get the response before a hook changes it.
        Record() if keeps_bodies else None,
        # The parts of a rendered page pass all layers below.
        render,
        # Adds the secrets of settings, start URLs and session, below everything that the spider
        # sees.
        credentials,
        None if streams else SaveFile(settings),
        default.spider_downloader,
        *lower_layers,
    ]


def chains(steps: Sequence[Step | None]) -> dict[str, Next]:
    """Return each purpose's way through the layers, the outermost first.

    A page that a browser renders has its own way, `RENDERED`, which no other request takes.
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
    # It returns the coroutine, because an `async def` would add one frame for each layer.
    return lambda attempt, request: layer(attempt, request, call_next)


class DefaultDownloader:
    """The crawl's own downloader, which a spider's `downloader()` gets.

    It asks *client* through the crawl's layers, see `layers`.
    """

    def __init__(
        self, client: Downloader, *, proxies: Proxies | None = None, cache: Layer | None = None
    ) -> None:
        self.client = client
        self.proxies = proxies
        self.cache = cache
        #: The spider's own downloader around it.
        self.spider_downloader: OwnDownloader | None = None
        #: The ways from this downloader down; a crawl sets its own layers.
        self.next_by_purpose = chains([cache, proxies, Transport(client)])

    async def fetch(self, request: Request, *, url: str) -> Response:
        """Return the response; see `Downloader`."""
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
    """Return the downloader for a crawl of *spider*; *extra_urls* are URLs besides its own.

    *cache* makes the layer that shares the memory of bodies.
    """
    origins = {urls.locate(url).host for url in [*entry_urls(spider), *extra_urls]}
    client = AiohttpDownloader(settings, start_origins=origins, public_names=public_names)
    cache_layer = cache and cache(settings, client.memory)
    return DefaultDownloader(client, proxies=Proxies(proxies), cache=cache_layer)


@asynccontextmanager
async def downloader_of(
    spider: Spider, default: Downloader, settings: Settings
) -> AsyncIterator[DefaultDownloader]:
    """Open the downloader of *spider*, and close it and the *default* one afterwards.

    Raises `SpiderError` if its `downloader()` does not make one.
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
    """Raise `LoggedOutError` if a session's response, or a redirect, shows a logged-out visitor.

    The beginning of a file is checked before the file is saved.
    """

    purposes = frozenset({Purpose.PAGE})

    def __init__(self, spider: Spider) -> None:
        """Raises `SpiderError` if the spider's `login_when` is not a condition."""
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
        except FetchError:  # the complete response raises the same error later
            return False
