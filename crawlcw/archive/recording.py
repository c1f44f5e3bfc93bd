"""Pages and the redirects to them, on their way to the WARC files.

A layer notes each exchange in the attempt; `Bodies` keeps them as soon as there is a page. So
robots.txt, logins and probes are in no file, nor is an answer that a hook made up.
"""

from datetime import UTC, datetime

from crawlcw.api.attempt import Attempt, Next, Purpose
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.archive.exchange import Exchange


class Record:
    """The layer that notes answers as they come, before any hook changes them."""

    purposes = frozenset({Purpose.PAGE})

    async def __call__(self, attempt: Attempt, request: Request, call_next: Next) -> Response:
        """Return the response."""
        at = datetime.now(UTC)
        response = await call_next(attempt, request)
        # A file is where the request wants it.
        if attempt.exchanges is not None and response.file is None:
            # What hooks and sessions add, to the URL too, may be a signature or a key.
            url = response.url if request.url == attempt.url else attempt.url
            noted = Exchange.of(request, response, at=at)
            attempt.exchanges.append(noted.asking_only(attempt.request.headers, url=url))
        return response
