"""Static files of the page, and its Content Security Policy: nothing from other origins."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from aiohttp import web

#: Only the page's own scripts and styles; text never becomes markup; no framing.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_TYPES = {
    "html": "text/html",
    "js": "text/javascript",
    "css": "text/css",
    "svg": "image/svg+xml",
    "txt": "text/plain",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """One file of the page."""

    body: bytes
    content_type: str

    def response(self) -> web.Response:
        """Return the response with this file."""
        return web.Response(
            body=self.body, content_type=self.content_type, charset="utf-8", headers=HEADERS
        )


def assets() -> Mapping[str, Asset]:
    """Return the page's files by their paths, with `/`."""
    found = {
        f"/static/{each.name}": Asset(
            body=each.read_bytes(), content_type=_TYPES[each.name.rpartition(".")[2]]
        )
        for each in resources.files("crawlcw.dashboard").joinpath("static").iterdir()
        if each.name.rpartition(".")[2] in _TYPES
    }
    return {**found, "/": found["/static/index.html"]}
