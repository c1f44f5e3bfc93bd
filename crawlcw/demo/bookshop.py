"""A bookshop to crawl: a web server on loopback, with pages generated in memory.

    async with Bookshop() as shop:
        print(shop.url)

Nothing is read from files or the network, and the same seed gives the same shop. It
has the typical difficulties of a site: pagination, redirects, broken links, a page in
windows-1252, pages that first answer 503, one page under several addresses, links
with `nofollow`.

The books (`Book`) are generated first, then all pages; the server only looks a page
up. A page's path is its identity, so hits are counted by path.
"""

import random
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Self

from aiohttp import web

_PER_PAGE = 20
_RELATED = 3

#: Number of books and nouns for titles, by category. The sizes are below, at, just above and
#: far above one page.
_SHELVES = {
    "Bell Founding": (12, "Clapper Belfry Bronze Ringer Carillon Tuning_Fork"),
    "Beekeeping by Night": (34, "Hive Smoker Drone Meadow Honeycomb Veil"),
    "Canal Journeys": (21, "Lock_Keeper Towpath Barge Winch Bridge Heron"),
    "Clockmaking": (20, "Pendulum Mainspring Dial Cuckoo Balance_Wheel Chime"),
    "Fog and Weather": (8, "Barometer Drizzle Foghorn Cloudbank Hailstone Weathercock"),
    "Garden Walls": (27, "Trellis Pear_Tree Gate Snail Moss Sundial"),
    "Harbour Stories": (16, "Buoy Ferryman Gull Ropewalk Lighthouse Net-Mender"),
    "Kitchen Chemistry": (41, "Copper_Pan Ladle Sourdough Quince Brine Kettle"),
    "Maps and Errors": (19, "Compass Cartographer Coastline Legend Meridian Surveyor"),
    "Night Trains": (22, "Sleeping_Car Timetable Conductor Junction Whistle Viaduct"),
    "Paper and Ink": (5, "Quill Watermark Blotter Printer Bookbinder Vellum"),
    "Shadow Puppetry": (15, "Curtain Lantern Silhouette Puppeteer Screen Marionette"),
}
_ADJECTIVES = "Borrowed Crooked Patient Quiet Salted Second-Best Thirteenth Wandering Left-Handed"
#: Invented places, so that no title is that of a real book.
_PLACES = "Brindlemoor Caddersby Fennock Garrowick Lower_Pell Marrowby Ostlethwaite Quenbury Tilby"
_NUMBERS = "Three Five Seven Nine Twelve Twenty Forty"
_TITLES = (
    "The {adjective} {noun} of {place}",
    "{noun} & {other}: Notes from {place}",
    "A {adjective} {noun} for {place}",
    "{number} Mornings with a {adjective} {noun}",
    "Letters to the {noun} at {place}",
    "What the {noun} Told the {other} in {place}",
)
_SENTENCES = (
    "Nobody in {place} had asked about the {noun} for years, until somebody did.",
    "A short book about a long afternoon, a {noun} and the people who wait for it.",
    "With drawings by the author, some of them the right way up.",
    "The author went to {place} for a weekend and stayed for three winters.",
    "Part manual, part confession, it explains the {noun} better than it explains itself.",
    "Readers who skip the second chapter will have to come back for it.",
)
_FIRST_NAMES = "Ada Bram Cosima Dorrit Edda Fitz Greta Hollis Ines Jory Kerensa Lubin"
_LAST_NAMES = "Ashgrove Bellwhistle Crumm Dapplegate Eelpie Farthingdale Gosset-Rook Hum"

_WINDOW = "/window/?shelf=top&week=1"
_MOVED = {"/index.html": "/", "/authors.html": "/authors/"}
#: Broken links on the home page: 404.
_UNWRITTEN = ("The Unwritten Sequel", "Volume Zero", "The Book about Books to Come")

_CSS = """
body { font: 1rem/1.5 Georgia, serif; max-width: 60rem; margin: 0 auto; padding: 1rem; }
header, footer { border: solid #8a5a2b; border-width: 0 0 1px; padding: .5rem 0; }
footer { border-width: 1px 0 0; margin-top: 2rem; }
nav ul, footer ul { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .3rem 1rem; }
main > div { display: grid; grid-template-columns: repeat(auto-fill, 13rem); gap: 1rem; }
article.book { background: #f7f1e6; padding: .2rem 1rem; }
h1, h2 { line-height: 1.2; } h2 { font-size: 1.1rem; } a { color: #7a3b00; }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Book:
    """One book of the shop."""

    title: str
    author: str
    category: str
    price: str  #: in euros, two decimals
    copies: int  #: in stock
    rating: int  #: 1 to 5
    description: str

    @property
    def path(self) -> str:
        """Path of its page."""
        return f"/book/{_slug(self.title)}/"


class Bookshop:
    """The shop and its server: `async with Bookshop() as shop`.

    Port 0 takes any free port; `url` is the home page's, known once the server
    runs. Two shops with one seed have the same pages.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0, *, seed: int = 1) -> None:
        stock = _stock(random.Random(seed))
        self.url = ""
        #: Requests so far, by path.
        self.hits: Counter[str] = Counter()
        #: Number of pages that show one book.
        self.books = len(stock)
        self._address = (host, port)
        self.pages = _pages(stock)  #: by path
        self._refusals = _refusals(stock)
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await runner.setup()
        host, port = self._address
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError:
            # The port is in use: `__aexit__` is not called after a failed start.
            await runner.cleanup()
            raise
        self._runner = runner
        self.url = f"http://{host}:{runner.addresses[0][1]}/"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        path = request.path
        self.hits[path] += 1
        if path in _MOVED:
            return web.Response(status=301, headers={"Location": _MOVED[path]})
        if path == "/robots.txt":
            return web.Response(text=_robots(self.url))
        if path == "/sitemap.xml":
            return web.Response(text=_sitemap(self.url, self.pages), content_type="text/xml")
        if self._refusals[path] > 0:
            self._refusals[path] -= 1
            return web.Response(status=503, text="One moment.\n")
        if path.startswith("/basket/"):
            return web.Response(text="Who asked for a basket?\n")
        if (page := self.pages.get(path)) is None:
            return web.Response(status=404, text="There is no such page.\n")
        return web.Response(body=page.body, content_type="text/html", charset=page.charset)


def _stock(chance: random.Random) -> list[Book]:
    """Return all books, in the order of the shelves, with unique titles."""
    books: dict[str, Book] = {}
    for category, (size, nouns) in _SHELVES.items():
        shelf: list[Book] = []
        while len(shelf) < size:
            book = _book(chance, category, _spaced(nouns))
            if book.path not in books:
                books[book.path] = book
                shelf.append(book)
    # The one book whose page is not UTF-8.
    *rest, last = books.values()
    return [*rest, replace(last, title="Crème, Sugar & “Naïve” Shadows", price="19.90")]


def _book(chance: random.Random, category: str, nouns: Sequence[str]) -> Book:
    noun, other = chance.sample(nouns, 2)
    words = {
        "noun": noun,
        "other": other,
        "adjective": chance.choice(_spaced(_ADJECTIVES)),
        "place": chance.choice(_spaced(_PLACES)),
        "number": chance.choice(_spaced(_NUMBERS)),
    }
    first, last = chance.choice(_spaced(_FIRST_NAMES)), chance.choice(_spaced(_LAST_NAMES))
    told = " ".join(chance.sample(_SENTENCES, 3))
    return Book(
        title=chance.choice(_TITLES).format(**words),
        author=f"{first} {last}",
        category=category,
        price=f"{chance.randrange(8, 60) / 2 - 0.1:.2f}",
        copies=max(0, chance.randrange(-3, 15)),
        rating=chance.randint(1, 5),
        description=told.format(noun=noun.lower(), place=words["place"]),
    )


def _spaced(words: str) -> list[str]:
    """Return the words of a list, in which `_` is a space within a word."""
    return [word.replace("_", " ") for word in words.split()]


def _refusals(books: Sequence[Book]) -> Counter[str]:
    """Return the number of 503 answers by path: eight pages have one, one of them two."""
    busy = Counter(book.path for book in books[15::30])
    busy[books[15].path] += 1
    return busy


@dataclass(frozen=True, slots=True)
class _Page:
    body: bytes
    charset: str


def _pages(books: Sequence[Book]) -> dict[str, _Page]:
    """Return all pages by path."""
    pages = {
        "/": _home(books),
        "/about/": _about(),
        "/authors/": _authors(books),
        "/window/": _listing("In the window", books[::40]),
    }
    for category in _SHELVES:
        shelf = [book for book in books if book.category == category]
        pages |= _shelf_pages(category, shelf)
        pages |= {book.path: _book_page(book, _related(book, shelf)) for book in shelf}
    for author in {book.author for book in books}:
        own = [book for book in books if book.author == author]
        pages[_author_path(author)] = _listing(f"Books by {author}", own)
    return pages


def _home(books: Sequence[Book]) -> _Page:
    announced = "".join(
        f'<article class="book"><h2><a href="/book/{_slug(title)}/">{escape(title)}</a></h2>'
        "<p>Announced.</p></article>"
        for title in _UNWRITTEN
    )
    return _page(
        "The Bookshop at the End of the Loop",
        f"<p>{len(books)} books, none of which was ever written.</p>"
        f'<p>See <a href="{_WINDOW}#first">what is in the window</a>.</p>'
        f"<div>{_cards(books[7::60])}{announced}</div>",
    )


def _about() -> _Page:
    return _page(
        "About the shop",
        "<p>The shop is open while its process runs. It has no door, no dust and no cat.</p>"
        '<p>Until five, the <a href="/window/?week=1&amp;shelf=top">window</a> is lit.</p>',
    )


def _authors(books: Sequence[Book]) -> _Page:
    names = sorted({book.author for book in books})
    rows = "".join(f"<li>{_link(_author_path(name), name, rel='author')}</li>" for name in names)
    return _page("Authors", f'<ul class="authors">{rows}</ul>')


def _shelf_pages(category: str, shelf: Sequence[Book]) -> dict[str, _Page]:
    first = _category_path(category)
    starts = range(0, len(shelf), _PER_PAGE)
    paths = [first, *(f"{first}page-{n}/" for n in range(2, len(starts) + 1))]
    pages = {}
    for n, (path, start) in enumerate(zip(paths, starts, strict=True)):
        steps = [_link(paths[n - 1], "Previous", rel="prev")] if n else []
        steps += [_link(paths[n + 1], "Next", rel="next")] if n + 1 < len(paths) else []
        turning = f'<nav class="pages"><ul>{_items(steps)}</ul></nav>' if steps else ""
        pages[path] = _listing(category, shelf[start : start + _PER_PAGE], turning)
    return pages


def _related(book: Book, shelf: Sequence[Book]) -> list[Book]:
    at = shelf.index(book)
    return [shelf[(at + step) % len(shelf)] for step in range(1, _RELATED + 1)]


def _book_page(book: Book, related: Iterable[Book]) -> _Page:
    stock = f"In stock, {book.copies} left" if book.copies else "Sold out"
    # Relative links, to exercise their resolution.
    nearby = [_link(f"..{b.path.removeprefix('/book')}", b.title) for b in related]
    main = f"""
<dl>
<dt>Author</dt><dd>{_link(_author_path(book.author), book.author, rel="author", prop="author")}</dd>
<dt>Category</dt><dd>{_link(_category_path(book.category), book.category, prop="genre")}</dd>
<dt>Price</dt><dd><data itemprop="priceCurrency" value="EUR">€</data>&nbsp;<data
  itemprop="price" value="{book.price}">{book.price}</data></dd>
<dt>Availability</dt><dd><data itemprop="availability"
  value="{"InStock" if book.copies else "SoldOut"}">{stock}</data></dd>
<dt>Rating</dt><dd><data itemprop="ratingValue" value="{book.rating}"
  >{"★" * book.rating}{"☆" * (5 - book.rating)}</data></dd>
</dl>
<p itemprop="description">{escape(book.description)}</p>
<p><a href="/basket/add?book={_slug(book.title)}" rel="nofollow">Add to basket</a></p>
<section class="related"><h2>On the same shelf</h2><ul>{_items(nearby)}</ul></section>"""
    charset = "utf-8" if book.title.isascii() else "windows-1252"
    return _page(book.title, main, charset=charset, itemscope="https://schema.org/Book")


def _listing(title: str, books: Iterable[Book], after: str = "") -> _Page:
    return _page(title, f"<div>{_cards(books)}</div>{after}")


def _cards(books: Iterable[Book]) -> str:
    return "".join(
        f'<article class="book"><h2>{_link(book.path, book.title)}</h2>'
        f"<p>{escape(book.author)}</p><p>€&nbsp;{book.price}</p></article>\n"
        for book in books
    )


def _page(title: str, main: str, *, charset: str = "utf-8", itemscope: str = "") -> _Page:
    shelves = [_link(_category_path(category), category) for category in _SHELVES]
    feet = [
        _link("/about/", "About"),
        _link("/authors/", "Authors"),
        _link("/index.html", "Old home page"),
        _link("/authors.html", "Old list of authors"),
        _link(_WINDOW, "Window"),
        _link("/basket/", "Basket"),
        _link("https://example.org/reading-groups", "Reading groups"),
        _link("mailto:till@bookshop.example", "Write to us"),
    ]
    scope = f' itemscope itemtype="{itemscope}"' if itemscope else ""
    text = f"""<!doctype html>
<html lang="en">
<head>
<title>{escape(title)}</title>
<meta name="viewport" content="width=device-width">
<link rel="icon" href="data:,">
<style>{_CSS}</style>
</head>
<body>
<header><a href="/">Bookshop</a>
<nav class="shelves"><ul>{_items(shelves)}</ul></nav></header>
<main{scope}><h1{' itemprop="name"' if scope else ""}>{escape(title)}</h1>
{main}</main>
<footer><ul>{_items(feet)}</ul></footer>
</body>
</html>
"""
    return _Page(text.encode(charset, "xmlcharrefreplace"), charset)


def _link(href: str, text: str, *, rel: str = "", prop: str = "") -> str:
    extra = f' rel="{rel}"' if rel else ""
    extra += f' itemprop="{prop}"' if prop else ""
    return f'<a href="{escape(href)}"{extra}>{escape(text)}</a>'


def _items(parts: Iterable[str]) -> str:
    return "".join(f"<li>{part}</li>" for part in parts)


def _category_path(category: str) -> str:
    return f"/category/{_slug(category)}/"


def _author_path(author: str) -> str:
    return f"/author/{_slug(author)}/"


def _slug(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")


def _robots(url: str) -> str:
    return f"User-agent: *\nDisallow: /basket/\n\nSitemap: {url}sitemap.xml\n"


def _sitemap(url: str, paths: Iterable[str]) -> str:
    rows = "".join(f"<url><loc>{url}{path.removeprefix('/')}</loc></url>\n" for path in paths)
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{rows}</urlset>\n'
    )
