"""The socket of a server: its address, and why there is none."""

import asyncio
import errno
import socket


def address_of(listening: asyncio.Server) -> str:
    """Return the URL that a server listens at."""
    host, port = listening.sockets[0].getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def why_not(host: str, port: int, error: Exception) -> str:
    """Return in a sentence why *port* of *host* cannot be listened at."""
    place = f"port {port} of {host}"
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return f"{place} is in use: another port is needed, or there is a server already"
    if isinstance(error, socket.gaierror | UnicodeError):
        return f"there is no host {host!r}"
    if isinstance(error, OSError) and error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is no address of this machine"
    return f"{place} cannot be listened at: {error}"
