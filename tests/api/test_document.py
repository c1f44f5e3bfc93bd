"""Selection from a page: parsel's trees, metas, JSON-LD, and a set encoding."""

import json
import sys
import time
from typing import Any

import pytest

from crawlcw.api.document import Metas
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.user_code import Raised
from crawlcw.errors import ParseRefusedError, Reason, SpiderError

pytestmark = pytest.mark.quick

URL = "http://a.example/folder/page.html"
BILLION = (
    '<?xml version="1.0"?><!DOCTYPE r [<!ENTITY a "xxxxxxxxxx">'
    + "".join(f'<!ENTITY {chr(98 + n)} "{f"&{chr(97 + n)};" * 10}">' for n in range(8))
    + "]><r><a>&i;</a></r>"
)


def page(body: bytes | str, content_type: str = "text/html") -> Response:
    raw = body.encode() if isinstance(body, str) else body
    return Response(URL, request=Request(URL), headers={"Content-Type": content_type}, body=raw)


def test_xpath_is_parsels():
    response = page("<h1>Tea</h1><a href=/1>1</a><a href=/2>2</a>")

    assert response.xpath("//a/@href").getall() == ["/1", "/2"]
    assert response.xpath("count(//a)").get() == "2.0"
    assert response.xpath("//a[. = $label]/@href", label="2").get() == "/2"
    assert response.selector.css("h1::text").get() == "Tea"
    assert response.selector.css("a::attr(href)").re(r"\d") == ["1", "2"]


@pytest.mark.parametrize("kind", ["text/html", "application/xml"])
def test_an_empty_page_has_a_selector_that_finds_nothing(kind: str):
    response = page("", kind)

    assert response.xpath("//a").getall() == []
    assert response.selector.css("a::text").getall() == []
    with pytest.raises(ValueError, match="the page has no form 'form'"):
        response.form()


def test_a_selector_leads_on_as_a_node_does():
    response = page("<a href=/1>1</a><img src=2.png><p>no link")

    followed = response.follow_all(
        [*response.xpath("//a | //img | //p"), *response.xpath("//@href")]
    )

    assert [each.url for each in followed] == [
        "http://a.example/1",
        "http://a.example/folder/2.png",
    ]
    assert response.dropped.counts == {Reason.URL_INVALID: 1}


def test_xml_is_read_as_xml_where_the_server_says_so():
    feed = "<rss><item><link>http://a.example/1</link></item></rss>"

    for kind in ("application/rss+xml; charset=utf-8", "text/xml", "application/xml"):
        assert page(feed, kind).xpath("//item/link/text()").get() == "http://a.example/1"
    assert page(feed).xpath("//item/link/text()").get() is None, "in HTML, <link> has no content"
    xhtml = '<html xmlns="http://www.w3.org/1999/xhtml"><p>1</p></html>'
    assert page(xhtml, "application/xhtml+xml").xpath("//p/text()").get() == "1"


XHTML = "application/xhtml+xml; charset=utf-8"


@pytest.mark.parametrize("type_in_capitals", [False, True])
@pytest.mark.parametrize(
    ("body", "text"),
    [
        ('<script src="/s.js"/>', ""),
        ("<title/><style/><iframe src='/f'/><textarea/><noscript/>", ""),
        ('<p title="/> <a href=&quot;/no&quot;>">a</p>', "a"),
        ('<p><![CDATA[<a href="/no">x</a> & ]] ]]></p>', '<a href="/no">x</a> & ]] '),
        ("<!-- <script/> <title/> --><?x <script/> ?><p>a &amp; b</p>", "a & b"),
        ('<svg><title/><path d="M 0"/></svg><p id = "x"\n/><p>b</p>', "b"),
        # A browser shows an error in their place.
        ('<script/><p>a</b><p class=a>b & c</p><br><a name=/no/><script src="/"/>', "b & c"),
    ],
)
def test_xhtml_is_read_as_xml_and_forgiven_what_html_is(
    body: str, text: str, type_in_capitals: bool
):
    """HTML standard, 14.2. All but the last as Chromium."""
    html = (
        f"<html xmlns='http://www.w3.org/1999/xhtml'><body>{body}<a href='/one'>1</a></body></html>"
    )
    response = page(html, XHTML.upper() if type_in_capitals else XHTML)

    assert [request.url for request in response.follow_all("a[href]")] == ["http://a.example/one"]
    assert response.xpath("//a/@href").getall() == ["/one"]
    assert [node.text() for node in response.css("p")][-1:] == [text] * bool(response.css("p"))


def test_the_head_and_the_scripts_of_xhtml_are_those_of_xml():
    scripts = ("{&quot;a&quot;: &quot;&lt;/b&gt; &amp;&quot;}", '<![CDATA[{"a": "</script>"}]]>')
    jsonld = "".join(f"<script type='application/ld+json'>{text}</script>" for text in scripts)
    metas = "<meta name='robots' content='nofollow'/><base href='/b/'/>"
    response = page(f"<head><title/><script/>{jsonld}{metas}</head><body/>", XHTML)

    assert response.jsonld() == [{"a": "</b> &"}, {"a": "</script>"}]
    assert response.robots.nofollow
    assert response.urljoin("1") == "http://a.example/b/1"


@pytest.mark.parametrize(
    "unit",
    ["<a b='", '<a b="\'"', "<!--", "<?", "<![CDATA[", "<script>", "<a/>", "<style>&lt;", "<a /"],
)
def test_no_xhtml_takes_long_to_read(unit: str):
    body = unit.encode() * (1_000_000 // len(unit))
    began = time.process_time()

    page(body, XHTML).source()
    page(b"<script>" + body, XHTML).source()

    assert time.process_time() - began < 1


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize(
    "body",
    [
        BILLION,
        '<!DOCTYPE r [<!ENTITY a SYSTEM "file:///etc/hostname">]><r>&a;</r>',
        '<!DOCTYPE r [<!ENTITY % a SYSTEM "http://127.0.0.1/x.dtd">%a;]><r/>',
    ],
)
def test_xml_that_declares_entities_is_refused(body: str, encoding: str):
    """HOSTILE 3.16, HOSTILE 3.17: no entity is resolved or dropped, and no file is read."""
    response = page(body.encode(encoding), "text/xml")

    with pytest.raises(ParseRefusedError) as caught:
        response.xpath("string(//a)")

    assert caught.value.reason is Reason.XML_UNSAFE
    assert response.text, "the text can still be read"


def test_a_doctype_without_entities_is_no_harm_and_html_knows_none():
    plain = '<!DOCTYPE r SYSTEM "http://127.0.0.1:1/x.dtd"><r><a>1</a></r>'

    assert page(plain, "text/xml").xpath("string(//a)").get() == "1"
    assert len(page(BILLION).xpath("string(/)").get() or "") < 2_000


@pytest.mark.parametrize(
    "body",
    [
        b"<div>" * 10_000 + b"<a href=x>",
        b"<a " + b" ".join(b"x%d" % n for n in range(100_000)) + b">",
    ],
)
def test_what_libxml2_would_cut_or_hang_at_is_refused_by_its_look(body: bytes):
    """HOSTILE 3.11: libxml2 cuts a tree at 2,048 levels without an error."""
    with pytest.raises(ParseRefusedError):
        page(body).xpath("//a/@href")


def test_without_parsel_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "parsel", None)

    with pytest.raises(SpiderError, match=r"need parsel: .*pip install 'crawlcw\[xpath\]'"):
        page("<p>1").xpath("//p")


def test_a_pseudo_element_gets_a_hint():
    response = page("<h1>Tea</h1>")

    for query in ("h1::text", "a::attr(href)"):
        for select in (response.css, response.css_first):
            with pytest.raises(ValueError, match=r"work only in response\.selector\.css\(\)"):
                select(query)


@pytest.mark.parametrize(
    "written",
    [
        lambda nodes: nodes.getall(),
        lambda nodes: nodes[0].xpath("//b"),
        lambda nodes: nodes[0].attrib["class"],
        lambda nodes: nodes[0].css("b::text"),
    ],
)
def test_an_error_of_a_node_that_is_taken_for_a_selector_says_what_to_write(written: Any):
    with pytest.raises(Exception) as caught:  # AttributeError, or selectolax's own
        written(page("<h1>Tea</h1>").css("h1"))

    said = Raised.by(caught.value, own_prefixes=(__file__,), function=written).message
    assert "response.selector.css()" in said
    assert "`crawlcw check`" in said


def test_metas_are_found_by_name_or_property():
    response = page(
        '<meta name=Description content="On tea"><meta property="og:title" content=Tea>'
        "<meta name=description content=second><meta charset=utf-8><meta content=x>"
        "<meta name=empty content><meta name=twitter:title property=og:url content=/both>"
    )

    assert response.meta == {
        "description": "On tea",
        "og:title": "Tea",
        "empty": "",
        "twitter:title": "/both",
        "og:url": "/both",
    }
    assert response.meta.get("depth") is None


def test_what_a_request_passed_along_is_not_in_its_metas():
    with pytest.raises(KeyError, match=r"in response\.context"):
        _ = page("").meta["depth"]
    assert isinstance(page("").meta, Metas)


SHADOWS = """<body><x-card id=card><TEMPLATE class="a>b" shadowrootmode="open">
<p>in it <a href=/1>1</a></p><template><a href=/no>no</a></template>
<x-inner><template shadowrootmode=closed><a href=/2>2</a></template></x-inner><slot></slot>
</TEMPLATE><a href=/3>3</a></x-card><script>"<template shadowrootmode='open'>"</script>
<!-- <template shadowrootmode=open> --><template><a href=/no>no</a></template><a href=/4>4</a>"""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le"])
def test_what_is_in_declarative_shadow_roots_is_in_the_page(encoding: str):
    """HTML standard, the template element: `shadowrootmode`."""
    response = page(SHADOWS.encode(encoding), f"text/html; charset={encoding}")

    links = [f"http://a.example/{n}" for n in (1, 2, 3, 4)]
    assert [each.url for each in response.follow_all("a")] == links
    assert [each.attributes["href"] for each in response.css("#card a")] == ["/1", "/2", "/3"]
    assert response.css_first("#card > a").text() == "3"
    assert response.css_first("script").text() == "\"<template shadowrootmode='open'>\""
    assert response.xpath("//x-inner//a/@href").getall() == ["/2"]


@pytest.mark.parametrize(
    "unit", ["<template shadowrootmode>", "</template>", "<template ", "<!--", "<template a='"]
)
def test_no_shadow_root_takes_long_to_open(unit: str):
    body = b"<template shadowrootmode=open>" + unit.encode() * (1_000_000 // len(unit))
    began = time.process_time()

    page(body).source()

    assert time.process_time() - began < 1


JSONLD = """
<script type="application/ld+json">{"@type": "Product", "name": "Tea
pot"}</script>
<script type=" APPLICATION/LD+JSON ; charset=utf-8">
[{"@type": ["Offer", "Thing"], "price": 2}, 7]</script>
<script type="application/ld+json;profile=http://www.w3.org/ns/json-ld#compacted">
{"@graph": [{"@type": "Product", "name": "Cup"}, "x"]}</script>
<script type="application/ld+json"><!-- {"@type": "Person"} --></script>
<script type="application/ld+json">{broken</script><script>{"@type": "Product"}</script>
<script type="application/ld+jsonx">{"@type": "Product"}</script>
<script type="text/plain; application/ld+json">{"@type": "Product"}</script>
"""


def test_json_ld_is_found_wherever_it_is_and_by_its_type():
    response = page(JSONLD)

    assert [each["@type"] for each in response.jsonld()] == [
        "Product",
        ["Offer", "Thing"],
        "Product",
        "Person",
    ]
    assert [each["name"] for each in response.jsonld("Product")] == ["Tea\npot", "Cup"]
    assert response.jsonld("Offer")[0]["price"] == 2


@pytest.mark.parametrize(
    "script",
    [
        '//<![CDATA[\n{"a": "x"}\n//]]>',
        '//<![CDATA[ {"a": "x"} //]]>',
        '/* <![CDATA[ */ {"a": "x"} /* ]]> */',
        '<![CDATA[{"a": "x"}]]>',
        '<!--\n{"a": "x"}\n//-->',
        '<!-- by a plugin -->\n{"a": "x"}\n<!-- / by a plugin -->',
        '<!-- 1 --><!-- {} -->{"a": /* 2 */ "x"}',
        '{"a": "x",}',
        '{"a": "x" , /* no more */ }',
        '{\n// the name\n"a": /* it is */ "x" // so it is\n}',
        '/* by us */ {"a": "x"}; ',
        '\ufeff{"a": "x"}',
    ],
)
def test_json_ld_may_have_what_javascript_may_have(script: str):
    assert page(f'<script type="application/ld+json">{script}</script>').jsonld() == [{"a": "x"}]


def test_a_text_of_json_ld_keeps_what_looks_like_a_comment():
    text = 'http://a.example/*x*/,] " // <!--'
    script = f'{{"a": {json.dumps(text)},}} // "'

    assert page(f'<script type="application/ld+json">{script}</script>').jsonld() == [{"a": text}]


@pytest.mark.parametrize(
    "unit", ["/*", ",/*", "//", ",", ", ", '"', '\\"', "]]>", "<![CDATA[", "/", "<!--", "<!-- -->"]
)
def test_no_json_ld_takes_long(unit: str):
    script = f'<script type="application/ld+json">{{{unit * (300_000 // len(unit))}</script>'
    began = time.process_time()

    assert page(script).jsonld() == []
    assert time.process_time() - began < 1


def test_an_encoding_that_is_set_makes_all_of_the_page_anew():
    body = "<title>чай</title><meta name=description content=чай><h1>чай</h1>".encode("koi8-r")
    response = page(body, "text/html; charset=windows-1251")
    before: list[Any] = [response.text, response.css("h1"), response.xpath("//h1"), response.meta]

    response.encoding = "KOI8-R"

    assert "чай" not in str(before)
    node = response.css_first("h1")
    assert node is not None
    assert (response.encoding, node.text()) == ("koi8-r", "чай")
    assert response.xpath("//h1/text()").get() == "чай"
    assert response.meta["description"] == "чай"
    assert "чай" in response.text
