"""Which proxy the exchanges of one attempt go through: chosen at the first, kept for the others."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from crawlcw.model.proxies import Proxy


@dataclass(slots=True)
class Route:
    """The way of one attempt, redirects included."""

    proxy: Proxy | None = None  #: the one of its last exchange; None: none was needed
    kept: Proxy | None = None  #: the one that was chosen for all its exchanges


#: That of the attempt in this context; None: each exchange has its own.
route: ContextVar[Route | None] = ContextVar("route", default=None)
#: The proxy of the session that asks.
_session_proxy: ContextVar[Proxy | None] = ContextVar("session_proxy", default=None)


@contextmanager
def one_route() -> Iterator[Route]:
    """Let the exchanges in the block have one proxy, as far as it can be used."""
    made = Route()
    token = route.set(made)
    try:
        yield made
    finally:
        route.reset(token)


@contextmanager
def session_through(proxy: Proxy | None) -> Iterator[None]:
    """Let exchanges in the block go through the proxy of a session, where it has one."""
    token = _session_proxy.set(proxy)
    try:
        yield
    finally:
        _session_proxy.reset(token)


def proxy_of_session() -> Proxy | None:
    """Return the proxy of the session that asks in this context."""
    return _session_proxy.get()
