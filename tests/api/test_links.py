"""Selection of links: patterns, extensions, and the part of the page."""

import re

import pytest

from crawlcw.api.links import SKIPPED_EXTENSIONS, LinkFilter
from crawlcw.api.request import Request
from crawlcw.api.response import Response

pytestmark = pytest.mark.quick

HOME = "http://a.example/"
LINKS = """
<nav><a href=/in/1>1</a><ul><li><a href=/in/2>2</a></ul></nav>
<div class=r><div class=r><p><a href=/film.MP4?x=1>3</a></p></div></div>
<a class=r href=/out/4.html>4</a><a href="/out/5.tar.gz#x">5</a><a href=//b.example>6</a>
"""


def followed(**options: object) -> list[str]:
    response = Response(HOME, request=Request(HOME), body=LINKS.encode())
    return [each.url.removeprefix(HOME) for each in response.follow_all("a", **options)]


ALL = ["in/1", "in/2", "film.MP4?x=1", "out/4.html", "out/5.tar.gz", "http://b.example/"]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, ALL),
        ({"allow": r"/in/"}, ["in/1", "in/2"]),
        ({"allow": [r"/1$", re.compile("HTML", re.IGNORECASE)]}, ["in/1", "out/4.html"]),
        ({"allow": r"/in/", "deny": [r"/2"]}, ["in/1"]),
        ({"deny": r"a\.example"}, ["http://b.example/"]),
        ({"deny_extensions": True}, ["in/1", "in/2", "out/4.html", "http://b.example/"]),
        ({"deny_extensions": ["html", ".MP4"]}, ["in/1", "in/2", ALL[4], ALL[5]]),
        ({"extensions": "html"}, ["out/4.html"]),
        ({"extensions": ["", "tar.gz"]}, ["in/1", "in/2", ALL[4], ALL[5]]),
        ({"extensions": "mp4", "deny_extensions": True}, []),
        ({"restrict": "nav"}, ["in/1", "in/2"]),
        ({"restrict": "ul, .r"}, ["in/2", "film.MP4?x=1", "out/4.html"]),
        ({"restrict": "aside"}, []),
    ],
)
def test_what_is_followed(options: dict[str, object], found: list[str]):
    assert followed(**options) == found


def test_a_broken_pattern_is_named():
    with pytest.raises(ValueError, match=r"deny='\(' is not a regular expression"):
        followed(deny="(")
    with pytest.raises(ValueError, match=r"restrict=.* works only with a CSS selector"):
        list(Response(HOME, request=Request(HOME)).follow_all(["/1"], restrict="nav"))


def test_what_is_skipped_are_files_and_no_pages():
    skips = LinkFilter.of(deny_extensions=True)

    assert {"pdf", "jpg", "zip", "css", "js", "mp4"} <= SKIPPED_EXTENSIONS
    for page in (
        "index.html",
        "index.php",
        "page.aspx",
        "feed.xml",
        "api.json",
        "plain.txt",
        "v1.2",
    ):
        assert skips.passes(f"http://a.example/{page}")


def test_a_deep_page_is_looked_through_once():
    deep = "<div class=r>" * 1_500 + "<a href=/1>1</a>" * 1_500
    response = Response(HOME, request=Request(HOME), body=deep.encode())

    assert len(list(response.follow_all("a", restrict=".r"))) == 1
