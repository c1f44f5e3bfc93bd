"""The pages that belong to a site, by its first URL and by globs on paths.

The home of a site is the URL of a folder. A start at `https://example.com/docs/` has itself as its
home; a start at `https://example.com/` has the whole host. If the start redirects to another
address, the home is there.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Self
from urllib.parse import urlsplit

from crawlcw.errors import FetchError, UsageError
from crawlcw.model import urls

#: A spider's name has at most 60 characters.
_LONGEST_NAME = 60
_DIGEST = 8
#: A host or a URL without its scheme, such as `docs.example.com` or `example.com/docs`.
_BARE = re.compile(r"(?:[\w-]+\.)+[\w-]+(?::\d+)?(?:/\S*)?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteScope:
    """Decides which addresses belong to the site that begins at *start*."""

    start: str
    include: tuple[re.Pattern[str], ...] = ()  #: one must match, if there are any
    exclude: tuple[re.Pattern[str], ...] = ()  #: none may match

    @classmethod
    def of(cls, start: str, *, include: Iterable[str] = (), exclude: Iterable[str] = ()) -> Self:
        """Return the scope of *start*; a glob of *include* or *exclude* matches a whole path.

        In a glob, `*` stands for any characters. A glob with `?` is compared with path and query.
        Raises `UsageError` for a glob that no path matches.
        """
        return cls(
            start=start,
            include=tuple(map(_pattern, include)),
            exclude=tuple(map(_pattern, exclude)),
        )

    def home_at(self, url: str) -> str:
        """Return the home of the site if the start has led to *url*."""
        is_whole_host = urlsplit(self.start).path in ("", "/")
        return urls.origin_of(url) + ("/" if is_whole_host else folder_of(urlsplit(url).path))

    def address_in(self, home: str, url: str) -> str | None:
        """Return the address of the page *url* of the site at *home*; None for another page.

        The result has the scheme and the host of *home*, so that a page with links by http and
        https, with and without `www.`, is one page.
        """
        parts, at_home = urlsplit(url), urlsplit(home)
        path_and_query = f"{parts.path}?{parts.query}" if parts.query else parts.path
        is_here = is_same_site(url, home) and f"{parts.path}/".startswith(at_home.path)
        if not is_here or any(glob.fullmatch(path_and_query) for glob in self.exclude):
            return None
        if self.include and not any(glob.fullmatch(path_and_query) for glob in self.include):
            return None
        return f"{at_home.scheme}://{at_home.netloc}{path_and_query}"


def is_same_site(url: str, home: str) -> bool:
    """Return whether two addresses have the same host, apart from `www.` and the scheme."""
    return _site_of(url) == _site_of(home)


def _site_of(url: str) -> str:
    return urlsplit(url).netloc.removeprefix("www.")


def folder_of(path: str) -> str:
    """Return the folder of a start: `/docs/` for `/docs`, `/docs/` and `/docs/index.html`."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/{name}/" if name and "." not in name else f"{folder}/"


def _pattern(glob: str) -> re.Pattern[str]:
    if glob[:1] not in ("/", "*"):
        raise UsageError(f"no path matches {glob!r}, because a path begins with /: write '/{glob}'")
    first, *rest = map(re.escape, glob.split("*"))
    # Each literal matches where it first stands, without backtracking over a hostile path.
    pattern = first + "".join(f"(?>.*?{literal})" for literal in rest[:-1])
    pattern += "".join(f".*{literal}" for literal in rest[-1:])
    # A glob without a query says nothing about the query.
    return re.compile(pattern if "?" in glob else rf"{pattern}(?:\?.*)?", re.DOTALL)


def site_name(text: str) -> str | None:
    """Return the name of the crawl of a start, such as `docs-example-com`; None for other texts.

    *text* is the URL of the start, or this URL without its scheme.
    """
    if not text.startswith(("http://", "https://")):
        if text.endswith(".py") or not _BARE.fullmatch(text):
            return None
        text = f"https://{text}"
    try:
        parts = urlsplit(urls.locate(text).url)
    except FetchError:
        return None
    address = f"{parts.netloc.removeprefix('www.')}{folder_of(parts.path)}"
    name = "-".join(re.findall(r"[A-Za-z0-9_]+", address))
    if not name[:1].isalpha():
        name = f"site-{name}"
    if len(name) > _LONGEST_NAME:
        digest = sha256(address.encode()).hexdigest()[:_DIGEST]
        name = f"{name[: _LONGEST_NAME - _DIGEST - 1]}-{digest}"
    return name
