"""Feeds, and the dates in feeds and sitemaps."""

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlcw import FeedEntry, Request, Response, XmlError
from crawlcw.api.syndication import date_in, latest_in

pytestmark = pytest.mark.quick

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
LATER = NOON + timedelta(hours=1)
RSS = """<rss version="2.0" xmlns:atom="http://www.w3.org/2005/Atom"><channel>
<title>News</title><link>http://a.example/</link>
<item><title>One &amp; two</title><link>/1</link><guid isPermaLink="false">id-1</guid>
<pubDate>Sat, 31 Jan 2026 13:00:00 +0100</pubDate>
<description><![CDATA[<b>1 &lt; 2</b>]]></description></item>
<item><title>Three</title><guid>http://a.example/3</guid></item>
<item><title>Four</title></item>
</channel></rss>"""
ATOM = """<feed xmlns="http://www.w3.org/2005/Atom"><title>News</title>
<entry><title type="html">One</title><link rel="edit" href="/edit/1"/><link href="1"/>
<id>urn:1</id><published>2026-01-31T12:00:00Z</published><updated>2026-01-31T13:00:00Z</updated>
<content type="xhtml"><div>Text <b>here</b></div></content></entry></feed>"""
RDF = """<rdf:RDF xmlns="http://purl.org/rss/1.0/"><channel/><item rdf:about="http://a.example/1">
<title>One</title><dc:date>2026-01-31T12:00:00Z</dc:date></item></rdf:RDF>"""


def feed(text: str) -> list[FeedEntry]:
    url = "http://a.example/news/"
    return Response(url, request=Request(url), body=text.encode()).feed()


def test_the_entries_of_rss():
    one, three, four = feed(RSS)

    assert one == FeedEntry(
        link="http://a.example/1",
        id="id-1",
        title="One & two",
        published=NOON,
        updated=NOON,
        summary="<b>1 &lt; 2</b>",
    )
    assert (three.link, three.id) == ("http://a.example/3", "http://a.example/3")
    assert (four.link, four.id, four.published) == ("", "", None)


_OF_ATOM = FeedEntry(
    link="http://a.example/news/1",
    id="urn:1",
    title="One",
    published=NOON,
    updated=LATER,
    summary="Text here",
)
_OF_RDF = replace(
    _OF_ATOM, link="http://a.example/1", id="http://a.example/1", updated=NOON, summary=""
)


@pytest.mark.parametrize(("text", "entry"), [(ATOM, _OF_ATOM), (RDF, _OF_RDF)], ids=["atom", "rdf"])
def test_the_entry_of_atom_and_of_rss_1_0(text: str, entry: FeedEntry):
    assert feed(text) == [entry]


def test_links_are_relative_to_xml_base_which_may_be_relative_itself():
    """XML Base, section 3 and 4; RFC 4287, section 2."""
    entry = "<entry {}><link {} href='{}'/></entry>"
    found = feed(
        "<feed xml:base='http://b.example/x/'><title xml:base='/no/'/>"
        + entry.format("", "", "1")
        + entry.format("xml:base='y/'", "", "2")
        + entry.format("xml:base='y/'", "xml:base='../z/'", "3")
        + entry.format("xml:base='http://c.example/'", "", "/4?x")
        + entry.format("", "xml:base='http://['", "5")
        + entry.format("", "", "http://d.example/6")
        + entry.format("", "", "http://[")
        + "</feed>"
    )

    assert [each.link for each in found] == [
        "http://b.example/x/1",
        "http://b.example/x/y/2",
        "http://b.example/x/z/3",
        "http://c.example/4?x",
        "http://b.example/x/5",
        "http://d.example/6",
        "http://[",
    ]


def test_an_entry_without_a_link_has_none_whatever_its_base_is():
    (entry,) = feed("<feed xml:base='http://b.example/x/'><entry><title>1</title></entry></feed>")

    assert (entry.link, entry.id, entry.title) == ("", "", "1")


def test_a_comment_may_be_before_the_declaration_of_xml():
    assert feed(f"<!-- <rss> --> \n<!---->\n<?xml version='1.0'?>{RSS}") == feed(RSS)


def test_bases_without_end_cost_an_entry_nothing():
    long = "x" * 4000 + "/"
    nested = f"<a xml:base='{long}'>" * 90
    began = time.process_time()

    found = feed(
        f"<feed xml:base='{'x' * 900_000}'>{nested}{'<entry><link>1</link></entry>' * 5000}"
    )

    assert {each.link for each in found} == {f"http://a.example/news/{long}1"}
    assert time.process_time() - began < 3


def test_a_base_of_rss_counts_and_ends_with_its_element():
    item = "<item><link>1</link></item>"
    based = "<item><link xml:base='d/'>1</link></item>"
    found = feed(
        f"<rss><channel xml:base='/c/'>{item}{based}</channel><channel>{item}</channel></rss>"
    )

    assert [each.link for each in found] == [
        "http://a.example/c/1",
        "http://a.example/c/d/1",
        "http://a.example/news/1",
    ]


@pytest.mark.parametrize(
    ("end", "count"), [("<title>Three", 1), ("<title>Four", 2), ("</rss>", 3), (">", 3)]
)
def test_a_feed_that_breaks_off_keeps_its_whole_entries(end: str, count: int):
    assert feed(RSS[: RSS.rindex(end)]) == feed(RSS)[:count]


def test_a_feed_with_a_fault_keeps_the_entries_before_it():
    assert feed(RSS.replace("</channel>", "</wrong>")) == feed(RSS)


def test_a_feed_that_breaks_off_before_its_first_entry_has_ended_is_told():
    with pytest.raises(XmlError, match="not well-formed XML"):
        feed(RSS[:200])
    with pytest.raises(XmlError, match="levels"):
        feed(RSS.replace("</channel>", "<a>" * 200))


def test_a_page_is_no_feed():
    with pytest.raises(XmlError, match="it is <html>, not a feed"):
        feed("<html></html>")


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("2026-01-31", "2026-01-31T00:00:00", "2026-02-01T00:00:00"),
        ("2026-12", "2026-12-01T00:00:00", "2027-01-01T00:00:00"),
        ("2026-02", "2026-02-01T00:00:00", "2026-03-01T00:00:00"),
        ("2026", "2026-01-01T00:00:00", "2027-01-01T00:00:00"),
        ("2026-01-31T12:00", "2026-01-31T12:00:00", None),
        (" 2026-01-31T12:00:00.5-02:00 ", "2026-01-31T14:00:00.500000", None),
        ("Sat, 31 Jan 2026 12:00:00 GMT", "2026-01-31T12:00:00", None),
        ("Sat, 31 Jan 2026 12:00:00 +02:00", "2026-01-31T10:00:00", None),
        # RFC 5322, 4.3: unknown zones, and all military zones but one, count as UTC.
        ("Wed, 01 Jul 2026 12:00:00 QQT", "2026-07-01T12:00:00", None),
        ("2026-01-31 12:00:00 +0200", "2026-01-31T10:00:00", None),
        ("Sat, 31 Jan 2026", "2026-01-31T00:00:00", "2026-02-01T00:00:00"),
        ("Thu, 01 Jan 04", "2004-01-01T00:00:00", "2004-01-02T00:00:00"),
        ("Thu Jan  1 12:00:00 2004", "2004-01-01T12:00:00", None),
        ("Thursday, 01-Jan-04 12:00:00 GMT", "2004-01-01T12:00:00", None),
    ],
)
def test_a_date_is_a_moment_or_a_span(text: str, first: str, last: str | None):
    found, latest = date_in(text), latest_in(text)

    assert found is not None
    assert latest is not None
    assert found.isoformat() == f"{first}+00:00"
    assert latest.isoformat() == f"{last or first}+00:00"


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "2026-13", "2026-02-30", "9999-12-31", "0000", "20260131x", "9999", "1e9"),
        *("Sat, 32 Jan 2026", "Jan 2026", "31 Jan 2026 12:00 +99:99", "31 Jan 2026 25:00 EST"),
        *("31 Dec 9999", "31 Dec 9999 23:59 -0800", "Sat, 31 Jan 2026 1:05 PM EST"),
    ],
)
def test_what_is_no_date_is_none(text: str):
    assert latest_in(text) is None


@given(
    st.text(max_size=40)
    | st.from_regex(r"[0-9]{4}-[0-9]{2}(-[0-9]{2})?(T[0-9:]{8})?.{0,7}")
    | st.from_regex(r"([A-Z][a-z]+, )?[0-9]{1,2} Jan [0-9]{2,4}( [0-9:]{4,8}.{0,7})?")
)
def test_no_text_is_more_than_no_date(text: str):
    date_in(text)
