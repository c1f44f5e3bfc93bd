"""Requests that are sent as somebody: with the cookies and the headers of one session."""

from collections.abc import Callable, Collection

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.downloader import first_look
from crawlcw.downloader.attempt_cookies import Jar, cookies_of
from crawlcw.downloader.protocol import Downloader
from crawlcw.downloader.routes import session_through
from crawlcw.model import urls
from crawlcw.model.proxies import Proxy


class IdentifiedDownloader:
    """A `Downloader` for one attempt, or one login.

    *jar* and *headers* are those of the session named *session*; the headers go to
    *origins* alone, the cookies of a request itself to its own origin.
    """

    def __init__(
        self,
        downloader: Downloader,
        *,
        jar: Jar | None,
        headers: tuple[tuple[str, str], ...] = (),
        origins: Collection[str] = (),
        proxy: Proxy | None = None,
        session: str = "",
    ) -> None:
        self._downloader = downloader
        self._session = session
        self._jar = jar
        self._headers = headers
        self._origins = origins
        self._proxy = proxy

    async def fetch(self, request: Request, *, url: str) -> Response:
        """Return the response; see `Downloader`."""
        own = dict(request.options.cookies or ())
        sent = self._with_headers(request, url)
        # At a redirect the request is still the first one, and names its origin.
        with (
            cookies_of(self._jar, own, url=request.url, session=self._session),
            session_through(self._proxy),
        ):
            response = await self._downloader.fetch(sent, url=url)
        response.request = request
        return response

    async def close(self) -> None:
        """Do nothing: it is another's to close."""

    def _with_headers(self, request: Request, url: str) -> Request:
        if not self._headers or urls.origin_of(url) not in self._origins:
            return request
        given = {name.lower() for name, _ in request.headers}
        headers = [pair for pair in self._headers if pair[0].lower() not in given]
        sent = Request(
            request.url,
            request.callback,
            method=request.method,
            headers=(*request.headers, *headers),
            body=request.body,
        )
        sent.options = request.options
        return sent


class CheckedDownloader:
    """A `Downloader` that gives every answer, redirects too, to *check*, which may raise.

    Of a file it is given the beginning, before that is saved.
    """

    def __init__(self, downloader: Downloader, check: Callable[[Response], None]) -> None:
        self._downloader = downloader
        self._check = check

    async def fetch(self, request: Request, *, url: str) -> Response:
        """Return the response; see `Downloader`."""
        with first_look.looking(self._raises):
            response = await self._downloader.fetch(request, url=url)
        if response.file is None:
            self._check(response)
        return response

    async def close(self) -> None:
        """Do nothing: it is another's to close."""

    def _raises(self, response: Response) -> bool:
        try:
            self._check(response)
        except Exception:  # the same is raised of what is returned then
            return True
        return False
