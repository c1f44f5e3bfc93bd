"""Serve the page's static files, and a Content Security Policy that forbids other origins."""

from collections.abc import Mapping
from importlib import resources

from aiohttp import web

from crawlcw.server.connections import Handler

#: Policy that allows only the page's own scripts and styles, no frames, and no HTML from strings.
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


def assets() -> Mapping[str, Handler]:
    """Return the HTTP handlers for the page's files, by the path of the file."""
    files = resources.files("crawlcw.dashboard").joinpath("static").iterdir()
    handlers = {
        f"/static/{file.name}": _handler_of(file.read_bytes(), _TYPES[ending])
        for file in files
        if (ending := file.name.rpartition(".")[2]) in _TYPES
    }
    return {**handlers, "/": handlers["/static/index.html"]}


def _handler_of(body: bytes, content_type: str) -> Handler:
    async def handler(_request: web.Request) -> web.Response:
        return web.Response(body=body, content_type=content_type, charset="utf-8", headers=HEADERS)

    return handler
