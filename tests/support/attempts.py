"""Attempts at single pages, without a crawl: redirects, a deadline and given layers."""

from collections.abc import Awaitable, Callable

from crawlcw.api.attempt import (
    Attempt,
    Downloader,
    Jar,
    Layer,
    Next,
    Purpose,
    Session,
    redirected,
)
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.fetch.pipeline import DefaultDownloader, Transport, chains
from crawlcw.fetch.redirects import Admission, FollowRedirects
from crawlcw.model.identities import Identity


class Layered:
    """A `Downloader` with layers, the outermost first, over another one, in an optional session."""

    def __init__(self, *layers: Layer, over: Downloader, session: Session | None = None) -> None:
        self.layers = [*layers, *below(over)]
        self._over = over
        self._session = session

    async def fetch(self, request: Request, *, url: str) -> Response:
        trying = Attempt(request=request, session=self._session)
        return await chains(self.layers)[Purpose.PAGE](trying, redirected(request, url))

    async def close(self) -> None:
        await self._over.close()


def session(name: str = "", *, jar: Jar | None = None) -> Session:
    """Return a session without a login."""
    return Session(identity=Identity(name=name), jar=jar)


def below(downloader: Downloader) -> list[Layer]:
    """Return the layers above *downloader*, with its proxies and its cache, if any."""
    if isinstance(downloader, Layered):
        return downloader.layers
    if not isinstance(downloader, DefaultDownloader):
        return [Transport(downloader)]
    found = [downloader.cache, downloader.proxies, Transport(downloader.client)]
    return [each for each in found if each is not None]


def way(
    downloader: Downloader,
    settings: Settings | None = None,
    *,
    purpose: Purpose = Purpose.ROBOTS,
    admission: Admission | None = None,
) -> Next:
    """Return the layers of a request for robots.txt, or another purpose, above *downloader*."""
    settings = settings or Settings()
    redirects = FollowRedirects(settings, admission or FakeAdmission())
    return chains([redirects, *below(downloader)])[purpose]


class FakeAdmission(Admission):
    """Admits each URL that *admit*, if any, does not refuse."""

    def __init__(self, admit: Callable[[str], Awaitable[None]] | None = None) -> None:
        self._admit = admit

    async def admit(self, attempt: Attempt, url: str) -> None:  # the protocol's signature
        if self._admit is not None:
            await self._admit(url)


async def attempt(
    request: Request,
    *,
    downloader: Downloader,
    settings: Settings,
    admit: Callable[[str], Awaitable[None]] | None = None,
    follows: Callable[[str], bool] | None = None,
    cookies: bool = False,
) -> Response:
    """Fetch a page, follow redirects, and return the response."""

    trying = Attempt(request=request, session=session() if cookies else None, follows=follows)
    ask = way(downloader, settings, purpose=Purpose.PAGE, admission=FakeAdmission(admit))
    return await ask(trying, request)
