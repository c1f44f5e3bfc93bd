"""The included spiders: items and requests from stored pages."""

import importlib.util
from pathlib import Path

import pytest

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.spider import check, scope
from crawlcw.demo.bookshop import Bookshop
from crawlcw.demo.spider import BookshopSpider
from crawlcw.model.urls import locate

SPIDERS = Path(__file__).parent.parent / "spiders"


def load(name: str):
    spec = importlib.util.spec_from_file_location(f"spiders_{name}", SPIDERS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parsed(callback, url: str, body: str) -> tuple[list[dict], list[tuple[str, str]]]:
    """Return the items, and the callback and URL of each request."""
    results = list(callback(Response(url, request=Request(url), body=body.encode())))
    requests = [result for result in results if isinstance(result, Request)]
    items = [result for result in results if not isinstance(result, Request)]
    return items, [(request.callback, request.url) for request in requests]


SHOP = "http://127.0.0.1:8000/"


class TestBookshop:
    spider = BookshopSpider(start_url=SHOP)

    def test_begins_at_the_address_it_is_given(self):
        check(self.spider)

        assert self.spider.start_urls == [SHOP]
        assert scope(self.spider) == {"127.0.0.1:8000"}

    @pytest.mark.parametrize(
        ("callback", "path", "body", "found"),
        [
            pytest.param(
                "parse",
                "",
                '<nav class="shelves"><a href="/category/fog/">Fog</a></nav>'
                '<article class="book"><h2><a href="/book/gull/">Gull</a></h2></article>'
                '<main><p>See <a href="/window/?week=1#top">the window</a>.</p></main>'
                '<footer><a href="/about/">About</a> '
                '<a href="mailto:a@b.example">Write</a></footer>',
                {
                    "category/fog/": "parse_category",
                    "book/gull/": "parse_book",
                    "window/?week=1": "parse",
                    "about/": "parse",
                },
                id="home page",
            ),
            pytest.param(
                "parse_category",
                "category/fog/page-2/",
                '<article class="book"><h2><a href="/book/gull/">Gull</a></h2></article>'
                '<a rel="prev" href="/category/fog/">Previous</a>'
                '<a rel="next" href="/category/fog/page-3/">Next</a>',
                {"book/gull/": "parse_book", "category/fog/page-3/": "parse_category"},
                id="category",
            ),
            pytest.param(
                "parse_author",
                "author/ada-hum/",
                '<article class="book"><h2><a href="/book/gull/">Gull</a></h2></article>',
                {"book/gull/": "parse_book"},
                id="author",
            ),
        ],
    )
    def test_a_page_of_links(self, callback: str, path: str, body: str, found: dict[str, str]):
        items, requests = parsed(getattr(self.spider, callback), SHOP + path, body)

        assert items == []
        assert requests == [(called, SHOP + url) for url, called in found.items()]

    def test_book(self):
        items, requests = parsed(
            self.spider.parse_book,
            SHOP + "book/gull/",
            '<main><h1 itemprop="name">Gull &amp; Buoy</h1>'
            '<a href="/author/ada-hum/" rel="author" itemprop="author">Ada Hum</a>'
            '<a href="/category/fog/" itemprop="genre">Fog</a>'
            '<data itemprop="priceCurrency" value="EUR">€</data>'
            '<data itemprop="price" value="18.40">18.40</data>'
            '<data itemprop="availability" value="SoldOut">Sold out</data>'
            '<data itemprop="ratingValue" value="4">★★★★☆</data></main>'
            '<section class="related"><a href="../heron/">Heron</a></section>',
        )

        assert items == [
            {
                "title": "Gull & Buoy",
                "author": "Ada Hum",
                "price": 18.4,
                "currency": "EUR",
                "rating": 4,
                "in_stock": False,
                "category": "Fog",
                "url": SHOP + "book/gull/",
            }
        ]
        assert requests == [
            ("parse_author", SHOP + "author/ada-hum/"),
            ("parse_book", SHOP + "book/heron/"),
        ]

    def test_every_book_of_the_bookshop_is_reached_and_understood(self):
        pages = Bookshop().pages
        waiting = [Request(SHOP)]
        known = {SHOP}
        books = []
        for request in waiting:
            page = pages.get("/" + request.url.removeprefix(SHOP).partition("?")[0])
            if page is None:
                continue
            header = {"Content-Type": f"text/html; charset={page.charset}"}
            response = Response(request.url, request=request, headers=header, body=page.body)
            for result in getattr(self.spider, request.callback)(response):
                if not isinstance(result, Request):
                    books.append(result)
                elif (canonical := locate(result.url).canonical) not in known:
                    known.add(canonical)
                    waiting.append(result)

        # Seven tasks have no page: 3 broken links, 2 redirects, the basket, another site.
        assert len(known) == len(pages) + 7
        assert len(books) == 240
        assert len({book["url"] for book in books}) == 240
        assert "Crème, Sugar & “Naïve” Shadows" in {book["title"] for book in books}
        assert {book["in_stock"] for book in books} == {True, False}
        assert {book["rating"] for book in books} == {1, 2, 3, 4, 5}
        assert len({book["category"] for book in books}) == 12


BOOKS = "https://books.toscrape.com/"


def test_books_catalogue():
    items, requests = parsed(
        load("books").Books().parse,
        BOOKS + "catalogue/page-2.html",
        '<article class="product_pod"><div><a href="gull_7/index.html"><img src="g.jpg"></a></div>'
        '<h3><a href="gull_7/index.html" title="Gull">Gull</a></h3></article>'
        '<ul class="pager"><li class="previous"><a href="page-1.html">previous</a></li>'
        '<li class="next"><a href="page-3.html">next</a></li></ul>',
    )

    assert items == []
    assert requests == [
        ("parse_book", BOOKS + "catalogue/gull_7/index.html"),
        ("parse", BOOKS + "catalogue/page-3.html"),
    ]


def test_books_book():
    items, requests = parsed(
        load("books").Books().parse_book,
        BOOKS + "catalogue/gull_7/index.html",
        '<ul class="breadcrumb"><li><a href="../../index.html">Home</a></li>'
        '<li><a href="../category/books_1/index.html">Books</a></li>'
        '<li><a href="../category/books/fog_3/index.html">Fog</a></li><li>Gull</li></ul>'
        '<div class="col-sm-6 product_main"><h1>Gull</h1><p class="price_color">£51.77</p>'
        '<p class="instock availability"><i class="icon-ok"></i>\n In stock (22 available)\n</p>'
        '<p class="star-rating Three"><i class="icon-star"></i></p></div>'
        '<table class="table table-striped"><tr><th>UPC</th><td>a897fe39b1053632</td></tr>'
        "<tr><th>Tax</th><td>£0.00</td></tr></table>",
    )

    assert items == [
        {
            "title": "Gull",
            "price": "£51.77",
            "availability": "In stock (22 available)",
            "rating": 3,
            "upc": "a897fe39b1053632",
            "category": "Fog",
            "url": BOOKS + "catalogue/gull_7/index.html",
        }
    ]
    assert requests == []


QUOTES = "https://quotes.toscrape.com/"


def test_quotes_page():
    items, requests = parsed(
        load("quotes").Quotes().parse,
        QUOTES,
        '<div class="quote"><span class="text">“Gulls first.”</span>'
        '<span>by <small class="author">Ada Hum</small>'
        ' <a href="/author/Ada-Hum">(about)</a></span>'
        '<div class="tags"><a class="tag" href="/tag/gulls/page/1/">gulls</a>'
        '<a class="tag" href="/tag/sea/page/1/">sea</a></div></div>'
        '<span class="tag-item"><a class="tag" href="/tag/love/">love</a></span>'
        '<ul class="pager"><li class="next"><a href="/page/2/">Next</a></li></ul>',
    )

    assert items == [{"quote": "Gulls first.", "author": "Ada Hum", "tags": ["gulls", "sea"]}]
    assert requests == [
        ("parse_author", QUOTES + "author/Ada-Hum"),
        ("parse", QUOTES + "page/2/"),
    ]


def test_quotes_author():
    items, requests = parsed(
        load("quotes").Quotes().parse_author,
        QUOTES + "author/Ada-Hum/",
        '<h3 class="author-title">Ada Hum\n    </h3>'
        '<span class="author-born-date">March 14, 1879</span>'
        '<span class="author-born-location">in Quenbury</span>'
        '<div class="author-description">\n  Wrote about gulls.\n</div>',
    )

    assert items == [
        {
            "author": "Ada Hum",
            "born": "March 14, 1879",
            "birthplace": "Quenbury",
            "about": "Wrote about gulls.",
        }
    ]
    assert requests == []


def test_documentation_page():
    items, requests = parsed(
        load("python_docs").PythonDocs().parse,
        "https://docs.python.org/3/tutorial/index.html",
        "<title>The Tutorial</title><nav>Not counted</nav>"
        '<div class="body" role="main"><h1>The<b>Tutorial</b></h1><p>Three more words.</p>'
        '<a href="../library/">to</a><a href="appetite.html#top">a</a></div>'
        '<a href="/2/index.html"></a><a href="../_sources/index.rst.txt"></a>'
        '<a href="https://www.python.org/"></a>',
    )

    assert items == [
        {
            "title": "The Tutorial",
            "words": 7,
            "links": 2,
            "url": "https://docs.python.org/3/tutorial/index.html",
        }
    ]
    assert requests == [
        ("parse", "https://docs.python.org/3/library/"),
        ("parse", "https://docs.python.org/3/tutorial/appetite.html"),
    ]


@pytest.mark.parametrize(
    ("start_url", "folder"),
    [
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000/"),
        ("http://127.0.0.1:8000/docs/index.html", "http://127.0.0.1:8000/docs/"),
    ],
)
def test_documentation_of_another_site(start_url, folder):
    spider = load("python_docs").PythonDocs(start_url=start_url)

    check(spider)

    assert spider.start_urls == [start_url]
    assert spider.folder == folder


@pytest.mark.parametrize(
    ("name", "kind"), [("books", "Books"), ("quotes", "Quotes"), ("python_docs", "PythonDocs")]
)
def test_spiders_of_the_project_can_be_run(name, kind):
    spider = getattr(load(name), kind)()

    check(spider)

    assert spider.name == name
