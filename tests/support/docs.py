"""Real documentation as a site to crawl, and the pages that an independent walk finds.

The walk shares no code with the crawler: it uses urllib, the standard library's
parser, and one queue.
"""

import json
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import unquote, urldefrag, urljoin, urlsplit
from urllib.request import ProxyHandler, build_opener

from crawlcw import Settings, Spider
from tests.support import needed

REPOSITORY = Path(__file__).parents[2]
#: Folder of the pages of Debian's packages, and the package, by a short name.
DOCUMENTATION = {
    "python": (Path("/usr/share/doc/python3.11/html"), "python3.11-doc"),
    "postgresql": (Path("/usr/share/doc/postgresql-doc-15/html"), "postgresql-doc-15"),
}
_OPENER = build_opener(ProxyHandler({}))


def folder(name: str) -> Path:
    """Return the folder of a documentation."""
    path, package = DOCUMENTATION[name]
    needed.file(f"{path}/index.html", package=package)
    return path


def star(folder: Path, *, leaves: int) -> Path:
    """Write a site of one page that links to all others, which have no links."""
    names = [f"{number}.html" for number in range(leaves)]
    links = "".join(f'<a href="{name}">{name}</a>' for name in names)
    (folder / "index.html").write_text(f"<title>all</title>{links}")
    for name in names:
        (folder / name).write_text(f"<title>{name}</title>")
    return folder


class DocsSpider(Spider):
    """One item for each HTML page; every link is followed."""

    name = "docs"
    # No depth limit: after failures and crashes, a page may be found by a longer path.
    settings = Settings(per_host_concurrency=0, max_depth=None)

    def parse(self, response):
        if "html" not in response.headers.get("content-type", ""):
            return
        title = response.css_first("title")
        yield {"path": path_of(response.url), "title": title.text() if title else ""}
        yield from response.follow_all("a[href]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A served folder."""

    origin: str

    @property
    def start(self) -> str:
        return f"{self.origin}/index.html"

    def hits(self) -> Counter[str]:
        """Return the number of requests by path, without robots.txt."""
        hits = Counter(json.loads(_get(f"{self.origin}/__hits__")[2]))
        del hits["/robots.txt"]
        return hits

    def answer(self, paths: int) -> None:
        """Answer requests for the first *paths* paths; others wait, see `static_site`."""
        _get(f"{self.origin}/__answered__/{paths}")

    def heal(self) -> None:
        """Make the site answer every request at once from now on."""
        _get(f"{self.origin}/__heal__")


@contextmanager
def served(path: Path, **options: int) -> Iterator[Site]:
    """Serve a folder from a process of its own; *options* are `static_site`'s."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.support.static_site", str(path), *flags],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        yield Site(origin=f"http://127.0.0.1:{int(server.stdout.readline())}")
    finally:
        server.kill()
        server.communicate()


@dataclass(frozen=True, slots=True, kw_only=True)
class Walked:
    """The paths that a walk has found."""

    pages: frozenset[str]  #: HTML
    files: frozenset[str]  #: linked files that are no HTML
    refused: frozenset[str]  #: answered with a status of 400 or more

    @property
    def found(self) -> frozenset[str]:
        return self.pages | self.files


@cache
def walked(name: str, *, fail_every: int = 0) -> Walked:
    """Walk a documentation breadth first, on its own server, and return the found pages."""
    with served(folder(name), fail_every=fail_every) as site:
        return _walk(site.start)


def _walk(start: str) -> Walked:
    origin = urlsplit(start).netloc
    pages: set[str] = set()
    files: set[str] = set()
    refused: set[str] = set()
    ahead = deque([start])
    seen = {start}
    while ahead:
        url = ahead.popleft()
        status, kind, body = _get(url)
        if status >= 400:
            refused.add(path_of(url))
        elif kind != "text/html":
            files.add(path_of(url))
        else:
            pages.add(path_of(url))
            for link in _links(url, body):
                if urlsplit(link).netloc == origin and link not in seen:
                    seen.add(link)
                    ahead.append(link)
    return Walked(pages=frozenset(pages), files=frozenset(files), refused=frozenset(refused))


def _get(url: str) -> tuple[int, str, bytes]:
    try:
        with _OPENER.open(url, timeout=30) as answer:
            return answer.status, answer.headers.get_content_type(), answer.read()
    except HTTPError as error:
        with error:
            return error.code, "", b""


def _links(url: str, body: bytes) -> Iterable[str]:
    parser = _Anchors()
    # The targets of all links here are ASCII.
    parser.feed(body.decode("utf-8", errors="replace"))
    return (urldefrag(urljoin(url, href.strip())).url for href in parser.hrefs)


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.hrefs: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.hrefs += [value for name, value in attrs if name == "href" and value is not None]


def path_of(url: str) -> str:
    """Return the path of a URL, as the server counts it."""
    return unquote(urlsplit(url).path)
