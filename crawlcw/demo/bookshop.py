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

#: Number of books and nouns for titles (`_` is a space), by category. The sizes are below, at,
#: just above and far above one page.
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

_MOVED = {"/index.html": "/", "/authors.html": "/authors/"}
_WINDOW = "/window/?shelf=top&week=1"
_FOOTER = {
    "About": "/about/",
    "Authors": "/authors/",
    "Old home page": "/index.html",
    "Old list of authors": "/authors.html",
    "Window": _WINDOW,
    "Basket": "/basket/",
    "Reading groups": "https://example.org/reading-groups",
    "Write to us": "mailto:till@bookshop.example",
}
#: Broken links on the home page: 404.
_UNWRITTEN = ("The Unwritten Sequel", "Volume Zero", "The Book about Books to Come")

_CSS = """
body { font: 1rem/1.5 Georgia, serif; max-width: 60rem; margin: 0 auto; padding: 1rem; }
nav ul, footer ul { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .3rem 1rem; }
main > div { display: grid; grid-template-columns: repeat(auto-fill, 13rem); gap: 1rem; }
article.book { background: #f7f1e6; padding: .2rem 1rem; } h2 { font-size: 1.1rem; }
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
        return _path("book", self.title)


class Bookshop:
    """The shop and its server: `async with Bookshop() as shop`.

    Port 0 takes any free port; `url` is the home page's, known once the server
    runs. Two shops with one seed have the same pages.
    """

    def __init__(self, *, port: int = 0, seed: int = 1) -> None:
        stock = _stock(random.Random(seed))
        self.url = ""
        #: Requests so far, by path.
        self.hits: Counter[str] = Counter()
        #: Number of pages that show one book.
        self.books = len(stock)
        self.pages = _pages(stock)  #: body and charset by path
        #: Number of 503 answers left by path: eight pages have one, one of them two.
        self._refusals = Counter(book.path for book in stock[15::30])
        self._refusals[stock[15].path] += 1
        self._port = port
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        except OSError:
            # The port is in use: `__aexit__` is not called after a failed start.
            await self._runner.cleanup()
            raise
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        path = request.path
        self.hits[path] += 1
        if path in _MOVED:
            return web.Response(status=301, headers={"Location": _MOVED[path]})
        if path == "/robots.txt":
            sitemap = f"Sitemap: {self.url}sitemap.xml"
            return web.Response(text=f"User-agent: *\nDisallow: /basket/\n\n{sitemap}\n")
        if path == "/sitemap.xml":
            return web.Response(text=_sitemap(self.url, self.pages), content_type="text/xml")
        if self._refusals[path] > 0:
            self._refusals[path] -= 1
            return web.Response(status=503, text="One moment.\n")
        if path.startswith("/basket/"):
            return web.Response(text="Who asked for a basket?\n")
        if path not in self.pages:
            return web.Response(status=404, text="There is no such page.\n")
        body, charset = self.pages[path]
        return web.Response(body=body, content_type="text/html", charset=charset)


def _stock(rng: random.Random) -> list[Book]:
    """Return all books, in the order of the shelves, with unique titles."""
    books: dict[str, Book] = {}
    size = 0
    for category, (number, nouns) in _SHELVES.items():
        size += number
        while len(books) < size:
            book = _book(rng, category, nouns.split())
            books.setdefault(book.path, book)
    # The one book whose page is not UTF-8.
    *other_books, last_book = books.values()
    return [*other_books, replace(last_book, title="Crème, Sugar & “Naïve” Shadows", price="19.90")]


def _book(rng: random.Random, category: str, nouns: Sequence[str]) -> Book:
    noun, other_noun = rng.sample(nouns, 2)
    template_values = {
        "noun": noun,
        "other": other_noun,
        "adjective": rng.choice(_ADJECTIVES.split()),
        "place": rng.choice(_PLACES.split()),
        "number": rng.choice(_NUMBERS.split()),
    }
    first_name, last_name = rng.choice(_FIRST_NAMES.split()), rng.choice(_LAST_NAMES.split())
    description = " ".join(rng.sample(_SENTENCES, 3))
    return Book(
        title=rng.choice(_TITLES).format(**template_values).replace("_", " "),
        author=f"{first_name} {last_name}",
        category=category,
        price=f"{rng.randrange(8, 60) / 2 - 0.1:.2f}",
        copies=max(0, rng.randrange(-3, 15)),
        rating=rng.randint(1, 5),
        description=description.format(**template_values | {"noun": noun.lower()}).replace(
            "_", " "
        ),
    )


def _pages(books: Sequence[Book]) -> dict[str, tuple[bytes, str]]:
    """Return body and charset of all pages, by path."""
    announced_cards = "".join(_card(title, "Announced.") for title in _UNWRITTEN)
    authors = sorted({book.author for book in books})
    pages = {
        "/": _page(
            "The Bookshop at the End of the Loop",
            f"<p>{len(books)} books, none of which was ever written.</p>"
            f'<p>See <a href="{_WINDOW}#first">what is in the window</a>.</p>'
            f"<div>{_cards(books[7::60])}{announced_cards}</div>",
        ),
        "/about/": _page(
            "About the shop",
            "<p>The shop is open while its process runs. It has no door, no dust and no cat.</p>"
            '<p>Until five, the <a href="/window/?week=1&amp;shelf=top">window</a> is lit.</p>',
        ),
        "/authors/": _page(
            "Authors",
            _list(_link(_path("author", name), name, rel="author") for name in authors),
        ),
        "/window/": _page("In the window", f"<div>{_cards(books[::40])}</div>"),
    }
    for category in _SHELVES:
        shelf = [book for book in books if book.category == category]
        pages |= _shelf_pages(category, shelf)
        for position, book in enumerate(shelf, start=1):
            related_books = [shelf[(position + step) % len(shelf)] for step in range(_RELATED)]
            pages[book.path] = _book_page(book, related_books)
    for author in authors:
        author_books = [book for book in books if book.author == author]
        pages[_path("author", author)] = _page(
            f"Books by {author}", f"<div>{_cards(author_books)}</div>"
        )
    return pages


def _shelf_pages(category: str, shelf: Sequence[Book]) -> dict[str, tuple[bytes, str]]:
    first_path = _path("category", category)
    offsets = range(0, len(shelf), _PER_PAGE)
    paths = [first_path, *(f"{first_path}page-{index}/" for index in range(2, len(offsets) + 1))]
    pages = {}
    for index, (path, offset) in enumerate(zip(paths, offsets, strict=True)):
        step_links = [_link(paths[index - 1], "Previous", rel="prev")] if index else []
        step_links += (
            [_link(paths[index + 1], "Next", rel="next")] if index + 1 < len(paths) else []
        )
        cards = _cards(shelf[offset : offset + _PER_PAGE])
        pages[path] = _page(category, f"<div>{cards}</div><nav>{_list(step_links)}</nav>")
    return pages


def _book_page(book: Book, related_books: Iterable[Book]) -> tuple[bytes, str]:
    stock = f"In stock, {book.copies} left" if book.copies else "Sold out"
    # Relative links, to exercise their resolution.
    related_links = [
        _link(f"..{related_book.path.removeprefix('/book')}", related_book.title)
        for related_book in related_books
    ]
    author = _link(_path("author", book.author), book.author, rel="author", itemprop="author")
    genre = _link(_path("category", book.category), book.category, itemprop="genre")
    main = f"""
<dl>
<dt>Author</dt><dd>{author}</dd>
<dt>Category</dt><dd>{genre}</dd>
<dt>Price</dt><dd><data itemprop="priceCurrency" value="EUR">€</data>&nbsp;<data
  itemprop="price" value="{book.price}">{book.price}</data></dd>
<dt>Availability</dt><dd><data itemprop="availability"
  value="{"InStock" if book.copies else "SoldOut"}">{stock}</data></dd>
<dt>Rating</dt><dd><data itemprop="ratingValue" value="{book.rating}"
  >{"★" * book.rating}{"☆" * (5 - book.rating)}</data></dd>
</dl>
<p itemprop="description">{escape(book.description)}</p>
<p><a href="/basket/add?book={_slug(book.title)}" rel="nofollow">Add to basket</a></p>
<section class="related"><h2>On the same shelf</h2>{_list(related_links)}</section>"""
    charset = "utf-8" if book.title.isascii() else "windows-1252"
    return _page(book.title, main, charset=charset, itemtype="https://schema.org/Book")


def _cards(books: Iterable[Book]) -> str:
    return "".join(_card(book.title, escape(book.author), f"€&nbsp;{book.price}") for book in books)


def _card(title: str, *lines: str) -> str:
    text = "".join(f"<p>{line}</p>" for line in lines)
    return f'<article class="book"><h2>{_link(_path("book", title), title)}</h2>{text}</article>\n'


def _page(
    title: str, main: str, *, charset: str = "utf-8", itemtype: str = ""
) -> tuple[bytes, str]:
    """Return body and charset of a page."""
    shelf_links = [_link(_path("category", category), category) for category in _SHELVES]
    footer_links = [_link(href, text) for text, href in _FOOTER.items()]
    scope = f' itemscope itemtype="{itemtype}"' if itemtype else ""
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
<nav class="shelves">{_list(shelf_links)}</nav></header>
<main{scope}><h1{' itemprop="name"' if scope else ""}>{escape(title)}</h1>
{main}</main>
<footer>{_list(footer_links)}</footer>
</body>
</html>
"""
    return text.encode(charset, "xmlcharrefreplace"), charset


def _link(href: str, text: str, **attributes: str) -> str:
    extra = "".join(f' {name}="{value}"' for name, value in attributes.items())
    return f'<a href="{escape(href)}"{extra}>{escape(text)}</a>'


def _list(parts: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{part}</li>' for part in parts)}</ul>"


def _path(kind: str, name: str) -> str:
    return f"/{kind}/{_slug(name)}/"


def _slug(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")


def _sitemap(url: str, paths: Iterable[str]) -> str:
    rows = "".join(f"<url><loc>{url}{path.removeprefix('/')}</loc></url>\n" for path in paths)
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{rows}</urlset>\n'
    )
