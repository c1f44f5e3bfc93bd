"""The cached functions return what Scrapy's own functions return."""

from itertools import product
from urllib.parse import urljoin

import pytest
from scrapy.http import HtmlResponse
from scrapy.utils.response import get_base_url

from crawlcw.scrapy import caches

pytestmark = pytest.mark.quick

_PAGES = (
    *("http://h", "http://h/", "http://h/a/b.html", "http://h/a/", "http://h/a/../b.html"),
    *("http://h?x=/y/z", "http://h/a/b?x=/y/z", "http://h/a;p/b;q", "http://h//a//b"),
    *("https://user@h:80/a/b", "http://h/%2f/b", "file:///a/b.html", "data:,x"),
)
_LINKS = (
    *("c.html", "c/d.html", "./c", "../c", "../../../c", "/c", "/c/../d", "/", "//g/c", "///c"),
    *("", " ", "?q=1", "#f", ";p", "c?q=/1/2", "c#f", "c;p", "/c?q#f", " c", "c\td", "/\t/c"),
    *("http:c", "http:", "http:?q", "https://g/c", "mailto:a@b", "c:d", "c/d:e", ".", "..", "é"),
    "c" * 2000,
)


def test_a_link_is_joined_as_urllib_joins_it() -> None:
    caches.install()
    for page, link in product(_PAGES, _LINKS):
        response = HtmlResponse(page, body=b"", encoding="utf-8")
        for _ in range(2):  # the second time from the cache
            assert response.urljoin(link) == urljoin(get_base_url(response), link), (page, link)
