"""The included spiders: items and requests from stored pages."""

import importlib.util
from pathlib import Path

import pytest

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.spider import check
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

    def test_every_book_of_the_bookshop_is_reached_and_understood(self):
        pages = Bookshop().pages
        waiting = [Request(SHOP)]
        known = {SHOP}
        books = []
        for request in waiting:
            page = pages.get("/" + request.url.removeprefix(SHOP).partition("?")[0])
            if page is None:
                continue
            body, charset = page
            header = {"Content-Type": f"text/html; charset={charset}"}
            response = Response(request.url, request=request, headers=header, body=body)
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
    ("name", "kind"), [("books", "Books"), ("quotes", "Quotes"), ("python_docs", "PythonDocs")]
)
def test_spiders_of_the_project_can_be_run(name, kind):
    spider = getattr(load(name), kind)()

    check(spider)

    assert spider.name == name
