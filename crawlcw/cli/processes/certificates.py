"""Import aiohttp without reading the system's certificates until the first TLS connection.

aiohttp creates two TLS contexts at its import, and reads the file of all certificate
authorities for each: 35 ms of CPU, which a crawl of http:// pages does not need.
"""

import ssl
from typing import Any

_METHOD = "set_default_verify_paths"


def import_aiohttp() -> None:
    """Import aiohttp."""

    def put_off(context: ssl.SSLContext) -> None:
        context.__class__ = _WithoutCertificates

    # Both contexts read their certificates by this method.
    setattr(ssl.SSLContext, _METHOD, put_off)
    try:
        import aiohttp  # noqa: F401  # for the modules that use it later
    finally:
        delattr(ssl.SSLContext, _METHOD)


class _WithoutCertificates(ssl.SSLContext):
    """A context that reads the certificates before its first connection."""

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """Return the TLS part of a connection: event loops call no other method for one."""
        self.set_default_verify_paths()
        self.__class__ = ssl.SSLContext  # type: ignore[assignment]  # its own base
        return self.wrap_bio(*args, **kwargs)
