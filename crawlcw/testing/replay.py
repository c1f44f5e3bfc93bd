"""Downloader that answers from memory, for tests of spiders and of the crawl itself."""

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


Answer = bytes | str | Replay | Exception


class ReplayDownloader:
    """A `Downloader` that returns prepared answers and opens no socket.

    *answers* maps a URL, as the spider requests it, to its answer: the body of
    an HTML page (bytes or text); a `Replay`; an exception to raise; or a list
    of these, used one after the other, and then its last one again. A URL
    without an answer is a 404. `requested` lists the requested URLs, in order.
    """

    def __init__(self, answers: Mapping[str, Answer | Iterable[Answer]] | None = None) -> None:
        self._answers = {url: _turns(answer) for url, answer in (answers or {}).items()}
        self.requested: list[str] = []

    async def fetch(self, request: Request, *, url: str) -> Response:
        """Return the answer prepared for *url*; see `Downloader`."""
        self.requested.append(url)
        prepared = self._answers.get(url) or [Replay(status=404)]
        answer = prepared.pop(0) if len(prepared) > 1 else prepared[0]
        if isinstance(answer, Exception):
            raise answer
        if not isinstance(answer, Replay):
            answer = Replay(headers={"Content-Type": "text/html; charset=utf-8"}, body=answer)
        body = answer.body.encode() if isinstance(answer.body, str) else answer.body
        return Response(
            url,
            request=request,
            status=answer.status,
            headers=answer.headers,
            body=body,
            truncated=answer.truncated,
            elapsed=answer.elapsed,
        )

    async def close(self) -> None:
        """Do nothing: there is no connection."""


def _turns(answer: Answer | Iterable[Answer]) -> list[Answer]:
    if isinstance(answer, (bytes, str, Replay, Exception)):
        return [answer]
    return list(answer)
