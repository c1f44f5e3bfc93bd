"""The address of a listening socket, and the reason why a socket cannot be opened."""

import asyncio
import errno
import socket


def address_of(listening: asyncio.Server) -> str:
    """Return the URL that a server listens at."""
    host, port = listening.sockets[0].getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def why_not(host: str, port: int, error: Exception) -> str:
    """Return the reason why the server cannot listen at *port* of *host*, as a sentence."""
    place = f"port {port} of {host}"
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return f"{place} is in use: choose another port, or stop the server that uses it"
    if isinstance(error, socket.gaierror | UnicodeError):
        return f"there is no host {host!r}"
    if isinstance(error, OSError) and error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine"
    return f"cannot listen at {place}: {error}"
