"""One exchange with a server, as the connector and the address guard see it.

aiohttp hands nothing on to them but the context of the request. This is the one context
variable on the way of a request; everything else is passed on as the `Attempt`.
"""

import asyncio
from contextvars import ContextVar
from dataclasses import dataclass
from enum import IntEnum
from time import monotonic

from crawlcw.api.attempt import Attempt
from crawlcw.model.proxies import Proxy


class Stage(IntEnum):
    """How far a request has come on its way through a proxy."""

    DIALLING = 0  #: there is no connection to the proxy itself
    REACHED = 1  #: there is one, and the proxy has said nothing yet
    GREETED = 2  #: it has said that it speaks SOCKS
    PASSED = 3  #: it says that it has reached the host, or has an answer


@dataclass(frozen=True, slots=True)
class Trusted:
    """A host that the user has named, on one of its ports."""

    host: str
    port: int
    by_itself: bool  #: or only while it is a start URL's name that never was public


@dataclass(slots=True, eq=False)
class Hop:
    """One exchange of an attempt."""

    attempt: Attempt
    proxy: Proxy | None = None
    trusted: Trusted | None = None  #: the host that the request goes to
    stage: Stage = Stage.DIALLING
    at_host: bool = False  #: whether it is the host's name that is looked up just now
    #: When it was sent, by the monotonic clock, and never earlier than it was.
    sent: float = 0.0

    def begin_sending(self, loop: asyncio.AbstractEventLoop) -> None:
        """Note that it is written now, though uvloop sends when it has come round."""
        self._note_sent()
        loop.call_soon(self._note_sent)

    def _note_sent(self) -> None:
        self.sent = monotonic()


#: The exchange of the request under way in this context, or the one that a user's own
#: downloader works on. aiohttp races the addresses of a name in tasks of their own, which
#: inherit the context of the request; no other request can see it.
current_hop: ContextVar[Hop] = ContextVar("current_hop")
