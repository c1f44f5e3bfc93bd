"""Static files of the page, and its Content Security Policy: nothing from other origins."""

from collections.abc import Callable, Mapping
from functools import partial
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


def assets() -> Mapping[str, Callable[[], web.Response]]:
    """Return the makers of the responses with the page's files, by their paths."""
    found = {
        f"/static/{file.name}": partial(
            web.Response,
            body=file.read_bytes(),
            content_type=_TYPES[file.name.rpartition(".")[2]],
            charset="utf-8",
            headers=HEADERS,
        )
        for file in resources.files("crawlcw.dashboard").joinpath("static").iterdir()
        if file.name.rpartition(".")[2] in _TYPES
    }
    return {**found, "/": found["/static/index.html"]}
