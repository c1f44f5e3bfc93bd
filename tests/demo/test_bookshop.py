"""The bundled bookshop, walked by a client that shares no code with crawlcw."""

import asyncio
import codecs
from collections import defaultdict, deque
from urllib.parse import urldefrag, urljoin, urlsplit

import aiohttp
import pytest
from selectolax.lexbor import LexborHTMLParser

from crawlcw.demo.bookshop import Bookshop


@pytest.fixture
async def shop():
    async with Bookshop() as shop:
        yield shop


@pytest.fixture
async def client():
    async with aiohttp.ClientSession() as client:
        yield client


def links(page: str, url: str) -> list[str]:
    anchors = LexborHTMLParser(page).css("a[href]")
    return [urljoin(url, anchor.attributes["href"]) for anchor in anchors]


@pytest.fixture(scope="module")
def walked() -> tuple[Bookshop, dict[str, list[int]]]:
    """A shop after a walk, and the statuses of its paths."""

    async def walked() -> tuple[Bookshop, dict[str, list[int]]]:
        async with Bookshop() as shop:
            return shop, await walk(shop)

    return asyncio.run(walked())


async def walk(shop: Bookshop) -> dict[str, list[int]]:
    """Follow every link within the shop but the basket's; return each path's statuses in order."""
    statuses = defaultdict(list)
    seen = {"/"}
    waiting = deque([shop.url])
    async with aiohttp.ClientSession() as client:
        while waiting:
            url = waiting.popleft()
            async with client.get(url, allow_redirects=False) as response:
                path = response.url.path
                statuses[path].append(response.status)
                if response.status == 503:
                    waiting.append(url)
                    continue
                found = links(await response.text(), url)
                if response.status == 301:
                    found = [urljoin(url, response.headers["Location"])]
            for link in found:
                path = urlsplit(link).path
                inside = link.startswith(shop.url) and not path.startswith("/basket/")
                if inside and path not in seen:
                    seen.add(path)
                    waiting.append(urldefrag(link).url)
    return dict(statuses)


def test_a_walk_from_the_home_page_reaches_every_book(walked):
    shop, statuses = walked

    books = [path for path, (*_, last) in statuses.items() if path[:6] == "/book/" and last == 200]
    assert len(books) == shop.books == 240
    assert len([path for path in statuses if path.startswith("/author/")]) == 89
    assert len([path for path in statuses if path.startswith("/category/")]) == 18
    assert len([path for path, (*_, last) in statuses.items() if last == 200]) == 351


def test_hits_are_counted_by_path(walked):
    shop, statuses = walked

    assert shop.hits == {path: len(answers) for path, answers in statuses.items()}


def test_three_links_are_broken(walked):
    _, statuses = walked

    assert sorted(path for path, answers in statuses.items() if answers == [404]) == [
        "/book/the-book-about-books-to-come/",
        "/book/the-unwritten-sequel/",
        "/book/volume-zero/",
    ]


def test_eight_books_are_busy_at_first_and_then_there(walked):
    _, statuses = walked

    busy = sorted(answers for answers in statuses.values() if 503 in answers)
    assert busy == [[503, 200]] * 7 + [[503, 503, 200]]


async def test_a_busy_page_asks_for_no_rest_of_the_whole_shop(walked, shop, client):
    _, statuses = walked
    busy = [path for path, answers in statuses.items() if 503 in answers]

    async with client.get(shop.url + busy[0][1:]) as response:
        assert response.status == 503
        assert "Retry-After" not in response.headers


@pytest.mark.parametrize(("old", "new"), [("index.html", ""), ("authors.html", "authors/")])
async def test_old_addresses_lead_to_the_new(shop, client, old, new):
    async with client.get(shop.url + old) as response:
        assert str(response.url) == shop.url + new
        assert [hop.status for hop in response.history] == [301]
        assert response.status == 200


async def test_robots_txt_forbids_the_basket(shop, client):
    async with client.get(shop.url + "robots.txt") as response:
        assert response.content_type == "text/plain"
        assert (await response.text()).split("\n") == [
            "User-agent: *",
            "Disallow: /basket/",
            "",
            f"Sitemap: {shop.url}sitemap.xml",
            "",
        ]


async def test_the_sitemap_lists_what_a_walk_finds(walked, shop, client):
    _, statuses = walked
    async with client.get(shop.url + "sitemap.xml") as response:
        sitemap = LexborHTMLParser(await response.text())

    listed = {urlsplit(node.text()).path for node in sitemap.css("loc")}
    assert listed == {path for path, (*_, last) in statuses.items() if last == 200}


def disallowed_hits(shop: Bookshop) -> int:
    """Return the number of requests for paths that robots.txt forbids."""
    return sum(n for path, n in shop.hits.items() if path.startswith("/basket/"))


async def test_a_request_for_the_basket_is_noticed(shop, client):
    assert disallowed_hits(shop) == 0

    for path in ("basket/", "basket/add?book=volume-zero"):
        async with client.get(shop.url + path) as response:
            assert response.status == 200

    assert disallowed_hits(shop) == 2


async def test_one_book_is_in_windows_1252_and_only_its_header_says_so(shop, client):
    async with client.get(shop.url + "book/creme-sugar-naive-shadows/") as response:
        body = await response.read()
        charset = response.charset

    assert charset == "windows-1252"
    assert b"charset" not in body
    assert '<h1 itemprop="name">Crème, Sugar &amp; “Naïve” Shadows</h1>' in body.decode("cp1252")
    with pytest.raises(UnicodeDecodeError):
        codecs.decode(body, "utf-8")


async def test_one_page_is_linked_under_three_addresses(shop, client):
    addresses = set()
    for page in ("", "about/"):
        async with client.get(shop.url + page) as response:
            found = links(await response.text(), shop.url + page)
        addresses |= {link.removeprefix(shop.url) for link in found if "/window/" in link}

    assert addresses == {
        "window/?shelf=top&week=1",
        "window/?shelf=top&week=1#first",
        "window/?week=1&shelf=top",
    }


async def test_the_home_page_has_links_not_to_follow(shop, client):
    async with client.get(shop.url) as response:
        found = links(await response.text(), shop.url)

    assert "https://example.org/reading-groups" in found
    assert "mailto:till@bookshop.example" in found
    assert shop.url + "basket/" in found


async def test_two_shops_of_one_seed_are_the_same(walked, shop):
    _, statuses = walked

    assert await walk(shop) == statuses


async def test_another_seed_makes_another_shop(walked):
    shop, statuses = walked

    async with Bookshop(seed=2) as other:
        assert other.books == shop.books
        assert set(await walk(other)) != set(statuses)


async def test_a_port_that_is_taken_is_an_error(shop):
    taken = urlsplit(shop.url).port

    with pytest.raises(OSError, match="address already in use"):
        async with Bookshop(port=taken):
            pass
