"""What a worker and its child for suspects have to say to each other, on a socket of their own.

Each message is pickled, with its length before it: both ends are the same
program, started by the same user. One message is answered by one; a method that reads
a list of URLs is answered with some of its links, and goes on when it is told to.
"""

import pickle
import socket
import struct
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from crawlcw.api.page_head import Refresh
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.crawl.callbacks import Produced, Raised, Scope
from crawlcw.crawl.spider_fault import SpiderFaultError
from crawlcw.downloader.credentials import Credentials
from crawlcw.errors import FetchError, Reason, SpiderError, StopCrawl
from crawlcw.model.task import Task
from crawlcw.model.transitions import Failed

_LENGTH = struct.Struct("!Q")
LENGTH_SIZE = _LENGTH.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Download this."""

    request: Request
    url: str
    credentials: Credentials  #: sent with it, and known to no hook


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Run a method of the spider."""

    callback: str
    arguments: tuple[object, ...]  #: a `Kept` for the response of the child, a `Told`
    task: Task
    scope: Scope
    now: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class GoOn:
    """The links are written: run the method on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Close the spider, and end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Stands for the response that the child has downloaded last."""

    request: Request
    elapsed: timedelta  #: redirects included


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The spider is made and opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A response, whose body the child keeps."""

    url: str
    status: int
    headers: dict[str, str]
    elapsed: timedelta
    truncated: str | None
    size: int
    refresh: Refresh | None  #: which may be in the body


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """What `FetchError` was raised."""

    reason: Reason
    message: str
    status: int | None
    retry_after: float | None

    @classmethod
    def of(cls, error: FetchError) -> "Refused":
        """Return the error as it is sent."""
        return cls(
            reason=error.reason,
            message=error.message,
            status=error.status,
            retry_after=error.retry_after,
        )

    def error(self) -> FetchError:
        """Return the error as it was."""
        return FetchError(
            self.reason, self.message, status=self.status, retry_after=self.retry_after
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Stands for an error that a method is told of."""

    error: Refused
    response: Kept | Response | None  #: what it has; a `Kept` for the response of the child


@dataclass(frozen=True, slots=True, kw_only=True)
class Faulty:
    """What `SpiderFaultError` was raised."""

    name: str
    raised: Raised

    def error(self) -> SpiderFaultError:
        """Return the error as it was."""
        return SpiderFaultError(self.name, self.raised)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """What `StopCrawl` was raised."""

    why: str

    def error(self) -> StopCrawl:
        """Return the error as it was."""
        return StopCrawl(self.why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistaken:
    """What `SpiderError` was raised."""

    message: str

    def error(self) -> SpiderError:
        """Return the error as it was."""
        return SpiderError(self.message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """An error of crawlcw itself."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Links of a list of URLs that is not at its end; to be answered by `GoOn`."""

    tasks: list[Task]
    too_deep: list[Task]


Order = Fetch | Run | GoOn | End
Answer = (
    Ready | Fetched | Refused | Faulty | Stopped | Mistaken | Broken | Links | Produced | Failed
)


class KeptResponse(Response):
    """A response as its parent sees it: the body is with the child."""

    def __init__(self, fetched: Fetched, *, request: Request) -> None:
        super().__init__(
            fetched.url,
            request=request,
            status=fetched.status,
            headers=fetched.headers,
            elapsed=fetched.elapsed,
            truncated=fetched.truncated,
        )
        self._size = fetched.size
        self.refresh = fetched.refresh

    @property
    def size(self) -> int:
        """The number of bytes that the child has."""
        return self._size


def packed(message: Order | Answer) -> bytes:
    """Return a message as it is sent."""
    content = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(content)) + content


def length(head: bytes) -> int:
    """Return how long the message behind *head* is."""
    (size,) = _LENGTH.unpack(head)
    return int(size)


def unpacked(content: bytes) -> Any:
    """Return the message that was sent."""
    return pickle.loads(content)  # noqa: S301  # of this program, by a socket nobody else has


def received(channel: socket.socket) -> Any:
    """Wait for a message; raises `EOFError` where the other end has gone."""
    return unpacked(_exactly(channel, length(_exactly(channel, LENGTH_SIZE))))


def _exactly(channel: socket.socket, size: int) -> bytes:
    content = bytearray()
    while len(content) < size:
        piece = channel.recv(min(size - len(content), 1 << 20))
        if not piece:
            raise EOFError
        content += piece
    return bytes(content)
