"""Metadata of a page: links, directives and refreshes in headers and markup."""

import time
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlcw.api.page_head import Refresh, directives, refresh
from crawlcw.api.request import Request
from crawlcw.api.response import Response

pytestmark = pytest.mark.quick

#: Parts of refreshes and directives, in any order.
SCRAPS = st.lists(
    st.sampled_from([*"05.;, ='\"[:\0", "url", "/a", "http://", "none"]) | st.text(max_size=3),
    max_size=12,
).map("".join)


@pytest.mark.parametrize(
    ("value", "seconds", "link"),
    [
        ("5; url=/a", 5, "/a"),
        ("0;URL='/b'x", 0, "/b"),
        ('3, "/c', 3, "/c"),
        ("1 url = /d", 1, "/d"),
        ("2.9;/e", 2, "/e"),
        (".1;URL=/e", 0, "/e"),
        (" .; /e", 0, "/e"),
        ("1;;url=/f", 1, ";url=/f"),
        ("1 ;; /f", 1, "; /f"),
        ("0; url=http://a/?url=b", 0, "http://a/?url=b"),
    ],
)
def test_a_refresh_is_read_as_browsers_read_it(value: str, seconds: int, link: str) -> None:
    assert refresh(value) == (timedelta(seconds=seconds), link)


@pytest.mark.parametrize(
    "value", ["", "5", "5;", "5; url=", "5; url=''", "5x", "url=/a", "-1;/a", ";/a", "a.1;/a"]
)
def test_what_is_no_refresh_is_none(value: str) -> None:
    assert refresh(value) is None


@given(SCRAPS)
def test_nothing_that_is_said_raises(text: str) -> None:
    meta = f"<meta http-equiv=refresh content='{text}'><meta name=robots content='{text}'>"
    headers = {"Refresh": text, "X-Robots-Tag": text}
    page = Response(
        "http://a.example/",
        request=Request("http://a.example/"),
        headers=headers,
        body=meta.encode(),
    )

    assert isinstance(page.refresh, Refresh | None)
    assert page.robots.nofollow in (True, False)


@pytest.mark.parametrize(
    "text",
    [
        "1" * 300_000 + "x",
        " " * 300_000,
        "0" + ";" * 300_000,
        "0;url" + " " * 300_000,
        "a:" * 150_000,
        "," * 300_000,
    ],
)
def test_no_header_takes_long(text: str) -> None:
    began = time.process_time()

    refresh(text)
    directives(text, robot="crawlcw")

    assert time.process_time() - began < 0.5


def page(body: str, encoding: str = "utf-8") -> Response:
    kind = f"text/html; charset={encoding}"
    return Response(
        "http://a.example/",
        request=Request("http://a.example/"),
        headers={"Content-Type": kind},
        body=body.encode(encoding),
    )


METAS = """<meta name=robots content=nofollow><meta http-equiv=refresh content='0;url=/b'>
<base href=/c/>"""


@pytest.mark.parametrize(
    "before",
    [
        "<script>" + "x" * 300_000 + "</script>",
        "<script>document.write('</head><body>')</script>",
        "<SCRIPT>'</head>'</SCRIPT><style>/* </head> */</style><title></head></title>",
        "<!-- </head> --><!-- </HEAD> -->",
        "<meta name=a content='</head>'><meta name=b </head>",
        "<script>'</head>'" + "x" * 100_000 + "'</head>'</script>",
        "<title>\N{SNOWMAN}</title>",
    ],
)
@pytest.mark.parametrize("end", ["</head>", "</HEAD>", "</Head>", ""])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le"])
def test_a_head_is_read_to_its_end(before: str, end: str, encoding: str) -> None:
    found = page(f"<html><head>{before}{METAS}{end}<body>" + "<p>" * 1000, encoding)

    assert found.robots.nofollow
    assert found.refresh == Refresh(timedelta(0), "http://a.example/b")
    assert found.base_url == "http://a.example/c/"


def test_what_stands_behind_the_head_says_nothing_of_the_page() -> None:
    found = page(f"<head><script>'</head>'</script></head><body>{METAS}")

    assert not found.robots.nofollow
    assert found.refresh is None
    assert found.base_url == "http://a.example/"


@pytest.mark.parametrize(
    "unit",
    ["<script></head>", "<!--</head>", "</head", "<script></script></head", "<title></head "],
)
def test_the_end_of_no_head_takes_long_to_find(unit: str) -> None:
    found = page(f"<script>{unit * (2_000_000 // len(unit))}")
    began = time.process_time()

    assert not found.robots.nofollow
    assert found.refresh is None
    assert found.base_url == "http://a.example/"
    assert time.process_time() - began < 0.5


def test_a_head_built_to_hang_the_parser_says_nothing() -> None:
    head = page("<meta name=robots content=none>" + "<div>" * 12_000)
    began = time.process_time()

    assert not head.robots.nofollow
    assert time.process_time() - began < 0.5
