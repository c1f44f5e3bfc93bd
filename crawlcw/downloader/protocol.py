"""What a downloader does: one exchange with a server, and nothing else.

Redirects, robots.txt and the deadline of the whole attempt are `attempt`'s.
"""

from typing import Protocol

from crawlcw.api.request import Request
from crawlcw.api.response import Response


class Downloader(Protocol):
    """The way to the servers."""

    async def fetch(self, request: Request, *, url: str) -> Response:
        """Return the response to *request* sent to *url*, its body decoded and bounded.

        *url* is the request's own, or where a redirect has led. Redirects are
        returned, not followed (their `location` header is made of its raw
        bytes). A body over the limit is cut, and `truncated` says so. Every
        status is a response. The body of a request with `options.save_to` may
        be streamed to `Response.file`, see `FileTransfers`; one that is returned in
        memory is saved by `SavingDownloader`. Raises `FetchError`, and nothing else, for
        whatever goes wrong; cancellation passes through.
        """

    async def close(self) -> None:
        """Close all connections."""
