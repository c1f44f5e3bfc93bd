"""Serve prepared responses from memory, to test spiders and the crawl itself."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from crawlcw.api.request import Request
from crawlcw.api.response import Response


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A prepared response."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | str = b""  #: text is sent as UTF-8
    truncated: str | None = None
    elapsed: timedelta = timedelta(0)


PreparedResponse = bytes | str | Replay | Exception


class ReplayDownloader:
    """A `Downloader` that returns prepared responses and opens no socket.

    *responses* maps a URL to its response. A response is the body of an HTML page (bytes or text),
    a `Replay`, an exception to raise, or a list of responses. Successive requests get the entries
    of a list in order. All later requests get the list's last entry. A request for a URL without a
    response gets a 404. `requested_urls` has the URLs of all requests in order.
    """

    def __init__(
        self, responses: Mapping[str, PreparedResponse | Iterable[PreparedResponse]] | None = None
    ) -> None:
        self._responses = {url: _as_list(response) for url, response in (responses or {}).items()}
        self.requested_urls: list[str] = []

    async def fetch(self, request: Request, *, url: str) -> Response:
        """Return the response that is prepared for *url*."""
        self.requested_urls.append(url)
        responses = self._responses.get(url) or [Replay(status=404)]
        response = responses.pop(0) if len(responses) > 1 else responses[0]
        if isinstance(response, Exception):
            raise response
        if not isinstance(response, Replay):
            response = Replay(headers={"Content-Type": "text/html; charset=utf-8"}, body=response)
        body = response.body.encode() if isinstance(response.body, str) else response.body
        return Response(
            url,
            request=request,
            status=response.status,
            headers=response.headers,
            body=body,
            truncated=response.truncated,
            elapsed=response.elapsed,
        )

    async def close(self) -> None:
        """Do nothing, because there is no connection."""


def _as_list(
    response: PreparedResponse | Iterable[PreparedResponse],
) -> list[PreparedResponse]:
    if isinstance(response, (bytes, str, Replay, Exception)):
        return [response]
    return list(response)
