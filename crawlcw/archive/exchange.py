"""One request and its answer, as they are kept."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import datetime

from crawlcw.api.request import Request
from crawlcw.api.response import Response

#: What says who asks, and what an answer makes him: it is in no file.
_SECRET = frozenset({"authorization", "cookie", "proxy-authorization"})
#: What a crawl itself asks, see `crawl.revisits`.
_CONDITIONS = frozenset({"if-none-match", "if-modified-since"})
_SECRET_ANSWERS = frozenset({"set-cookie", "set-cookie2"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What was asked for at one URL, and what came."""

    url: str
    at: datetime  #: when it was asked for
    method: str = "GET"
    asked: tuple[tuple[str, str], ...] = ()  #: the headers of the request, without any secret
    sent: bytes | None = None  #: the body of the request
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()  #: of the answer, likewise
    body: bytes = field(default=b"", repr=False)  #: out of its content codings
    truncated: str | None = None  #: as `Response.truncated`

    def asking_only(self, headers: Collection[tuple[str, str]], *, url: str) -> "Exchange":
        """Return it at *url*, without the headers of the request that are not among *headers*."""
        kept = (each for each in self.asked if each in headers or each[0].lower() in _CONDITIONS)
        return replace(self, url=url, asked=tuple(kept))

    @classmethod
    def of(cls, request: Request, response: Response, *, at: datetime) -> "Exchange":
        """Return what *request* and *response* are, without what nobody is to read."""
        return cls(
            url=response.url,
            at=at,
            method=request.method,
            asked=tuple(pair for pair in request.headers if pair[0].lower() not in _SECRET),
            sent=request.body,
            status=response.status,
            headers=tuple(
                (name, value)
                for name, value in response.headers.items()
                if name not in _SECRET_ANSWERS
            ),
            body=response.body,
            truncated=response.truncated,
        )
