"""Responses: the page, its tree, and the links to follow."""

import weakref
from contextlib import suppress
from typing import Any

import pytest

from crawlcw.api.document import Trees
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.errors import FetchError, ParseRefusedError, Reason, SpiderError

pytestmark = pytest.mark.quick

URL = "http://a.example/folder/page.html"


def page(body: bytes | str, *, headers: dict[str, str] | None = None, url: str = URL) -> Response:
    raw = body.encode() if isinstance(body, str) else body
    return Response(url, request=Request(URL, context={"n": 1}), headers=headers, body=raw)


def test_the_context_is_the_requests():
    assert page("").context == {"n": 1}
    assert Response(URL, request=Request(URL)).context == {}


def test_the_tree_is_of_the_text_in_any_encoding():
    response = page("<h1>Привет</h1>".encode("cp1251"), headers={"Content-Type": ";charset=cp1251"})

    node = response.css_first("h1")

    assert node is not None
    assert node.text() == "Привет"


def test_css_finds_nodes_in_the_order_of_the_page():
    response = page("<p class=a>1<p>2<p class=a>3")

    assert [node.text() for node in response.css("p.a")] == ["1", "3"]
    assert response.css("h1") == []
    assert response.css_first("h1") is None


@pytest.mark.parametrize("query", ["p[", "::", "p >"])
def test_a_broken_selector_is_named(query: str):
    response = page("<p>1")

    with pytest.raises(ValueError, match="is not a CSS selector"):
        response.css(query)
    with pytest.raises(ValueError, match="is not a CSS selector"):
        response.css_first(query)


@pytest.mark.parametrize("body", ["", "<html>", "[" * 100_000 + "]" * 100_000])
def test_what_is_no_json_is_a_value_error(body: str):
    with pytest.raises(ValueError):
        page(body).json()


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ('["<meta charset=koi8-r>é"]'.encode(), "text/html"),
        ('["<meta charset=koi8-r>é"]'.encode("utf-8-sig"), "text/html; charset=koi8-r"),
        ('["<meta charset=koi8-r>é"]'.encode("cp1252"), "application/json"),
        ('["<meta charset=koi8-r>é"]'.encode("cp1252"), "text/html; charset=iso-8859-1"),
        ('["<meta charset=koi8-r>é"]'.encode("utf-16"), "text/html"),
    ],
)
def test_json_is_utf_8_if_its_bytes_are(body: bytes, kind: str):
    response = page(body, headers={"content-type": kind})

    assert response.json() == ["<meta charset=koi8-r>é"]


def test_a_page_built_to_hang_the_parser_is_refused():
    response = page("<div>" * 100_000)

    with pytest.raises(ParseRefusedError) as caught:
        response.css("div")
    assert caught.value.reason is Reason.PARSE_KILLED
    assert response.text.startswith("<div>"), "the text can still be read"


def test_a_refusal_does_not_keep_its_response_in_memory():
    response = page("<base href=/b/>")
    response.trees = Trees(refusal=ParseRefusedError("the parser did not end"))
    for name in ("base_url", "tree"):
        with suppress(ParseRefusedError):
            getattr(response, name)
    last_seen = weakref.ref(response)
    del response

    assert last_seen() is None, "without a run of the garbage collector"


@pytest.mark.parametrize(
    ("href", "url"),
    [
        ("other.html", "http://a.example/folder/other.html"),
        ("/top", "http://a.example/top"),
        ("?q=1", "http://a.example/folder/page.html?q=1"),
        ("//b.example/", "http://b.example/"),
        ("#part", URL),
        ("", URL),
        (" x\n", "http://a.example/folder/x"),
    ],
)
def test_a_link_is_joined_to_the_page(href: str, url: str):
    assert page("").urljoin(href) == url
    assert page("").follow(href).url == url


@pytest.mark.parametrize(
    ("head", "url"),
    [
        ('<base href="/other/">', "http://a.example/other/x"),
        ('<BASE HREF="https://b.example/d/">', "https://b.example/d/x"),
        ('<Base href="/other/">', "http://a.example/other/x"),
        ('<base target=_top><base href="/other/">', "http://a.example/other/x"),
        ('<base href="javascript:0"><base href="/other/">', "http://a.example/other/x"),
        ('<base href="/one/"><base href="/two/">', "http://a.example/one/x"),
        ('<base href="">', "http://a.example/folder/x"),
        ('<noscript><base href="/other/"></noscript>', "http://a.example/folder/x"),
        ('<body><noscript><base href="/one/"></noscript><base href="/two/">',
         "http://a.example/two/x"),
        ("", "http://a.example/folder/x"),
    ],
)  # fmt: skip
def test_a_base_moves_the_pages_links(head: str, url: str):
    assert page(f"<html><head>{head}</head><body>").urljoin("x") == url


def test_links_in_a_noscript_are_links():
    response = page(
        "<noscript><a href=/1></a></noscript><body><noscript><a href=/2></a></noscript>"
    )

    assert [request.url[-2:] for request in response.follow_all("a")] == ["/1", "/2"]
    assert response.xpath("//a/@href").getall() == ["/1", "/2"]


def test_a_query_that_is_not_ascii_is_sent_in_the_encoding_of_the_page():
    link = "/search?q=日本"
    body = f'<a href="{link}">x</a>'.encode("shift_jis")
    response = page(body, headers={"content-type": "text/html; charset=Shift_JIS"})
    sent = "http://a.example/search?q=%93%FA%96{"

    assert response.urljoin(link) == sent
    assert response.follow(response.css("a")[0]).url == sent
    assert [request.url for request in response.follow_all("a")] == [sent]
    assert page(body.decode("shift_jis")).urljoin(link).endswith("?q=%E6%97%A5%E6%9C%AC")


def test_text_and_links_use_the_tables_of_browsers():
    japanese = page(
        b"<a href='?q=\xad\xa1'>\xfc\xe2", headers={"content-type": "x/x;charset=euc-jp"}
    )
    chinese = page(b"<a href='?q=\x80'>", headers={"content-type": "text/html; charset=gb2312"})

    assert japanese.css_first("a").text() == "髙"
    assert [request.url for request in japanese.follow_all("a")] == [f"{japanese.url}?q=%AD%A1"]
    assert (chinese.encoding, chinese.text) == ("gb18030", "<a href='?q=€'>")
    assert chinese.urljoin("?q=€").endswith("?q=%80")


def test_follow_takes_a_node_and_what_a_request_takes():
    response = page('<a href="next.html">n</a><img src="/i.png">')
    link = response.css_first("a")
    image = response.css_first("img")
    assert link is not None
    assert image is not None

    request = response.follow(link, "parse_book", context={"a": 1}, priority=5)

    assert request.url == "http://a.example/folder/next.html"
    assert (request.callback, request.context, request.priority) == ("parse_book", {"a": 1}, 5)
    assert response.follow(image).url == "http://a.example/i.png"


def test_what_can_be_no_link_is_named():
    response = page("<a href=x>1")
    several: Any = response.css("a")
    nothing: Any = None

    with pytest.raises(TypeError, match=r"not a list; follow_all\(\) takes many"):
        response.follow(several)
    with pytest.raises(TypeError, match=r"not a SelectorList; follow_all\(\) takes many"):
        response.follow(response.xpath("//a"))  # type: ignore[arg-type]  # the mistake
    with pytest.raises(TypeError, match=r"not a list"):
        list(response.follow_all([several]))
    with pytest.raises(TypeError, match=r"takes an address, not a NoneType; follow\(\) takes"):
        response.urljoin(nothing)


def refusal(request: Request) -> FetchError:
    with pytest.raises(FetchError) as caught:
        request.identity()
    return caught.value


@pytest.mark.parametrize(
    ("link", "reason"),
    [
        ("mailto:me@a.example", Reason.REFUSED_SCHEME),
        ("javascript:void(0)", Reason.REFUSED_SCHEME),
        ("http://[", Reason.URL_INVALID),
        ("x" * 9000, Reason.URL_TOO_LONG),
    ],
)
def test_following_what_cannot_be_fetched_gives_a_request_that_says_so(link: str, reason: Reason):
    request = page("").follow(link, "parse_book", context={"a": 1})

    assert (request.url, request.callback, request.context) == (link, "parse_book", {"a": 1})
    assert refusal(request).reason is reason


def test_following_a_node_without_an_address_or_none_at_all_gives_a_request_that_says_so():
    response = page("<p>1<a href>2")

    for node, message in (
        (response.css_first("p"), "<p>: no link"),
        (response.css_first("a"), "<a>: no link"),
        (response.css_first("a.next"), "no link"),
    ):
        request = response.follow(node)
        assert (request.url, refusal(request).reason) == ("", Reason.URL_INVALID)
        assert refusal(request).message == message


def test_mistakes_in_the_code_are_told_whatever_the_link():
    for link in ("mailto:me@a.example", "1.html"):
        with pytest.raises(SpiderError, match="priority=1000"):
            page("").follow(link, priority=1000)


def test_the_links_of_a_page_that_would_hang_the_parser_are_refused_where_it_has_a_base():
    response = page("<base href=/b/>" + "<b>" * 100_000)
    calm = page("<b>" * 100_000)

    assert refusal(response.follow("x")).reason is Reason.PARSE_KILLED
    assert list(response.follow_all(["x"])) == []
    assert response.dropped.counts == {"parse-killed": 1}
    assert calm.follow("x").url == "http://a.example/folder/x"


LINKS = """
<a href="1.html">1</a> <a href="/2.html">2</a> <a href="1.html#part">1 again</a>
<a href="mailto:me@a.example">mail</a> <a href="http://[">broken</a> <a name="x">no link</a>
<area alt="no address">
"""


def test_follow_all_yields_each_address_of_a_selector_once_and_counts_the_broken():
    response = page(LINKS)

    requests = list(response.follow_all("a, area", "parse_book", priority=1))

    assert [request.url for request in requests] == [
        "http://a.example/folder/1.html",
        "http://a.example/2.html",
    ]
    assert {(request.callback, request.priority) for request in requests} == {("parse_book", 1)}
    assert response.dropped.counts == {"refused-scheme": 1, "url-invalid": 2}
    assert response.dropped.examples == {
        "refused-scheme": ["mailto:me@a.example"],
        "url-invalid": ["http://[", "<area>: no link"],
    }


def test_links_that_differ_in_their_fragments_are_one_and_refused_ones_count_each():
    links = ["1#a", "1#b", "#c", "#d", "", "mailto:a#1", "mailto:a#2", "http://[#1", "http://[#2"]
    targets = [*links, None, None, "1", "2"]
    response = page("")

    urls = [request.url for request in response.follow_all(targets)]

    assert urls == ["http://a.example/folder/1", URL, "http://a.example/folder/2"]
    assert response.dropped.counts == {"refused-scheme": 2, "url-invalid": 4}
