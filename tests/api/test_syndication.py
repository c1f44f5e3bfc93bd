"""What a feed says, and dates as feeds and sitemaps have them."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlcw import FeedEntry, Request, Response, XmlError
from crawlcw.api.dates import date_in, latest_in

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


def test_the_entries_of_atom():
    (one,) = feed(ATOM)

    assert one == FeedEntry(
        link="http://a.example/news/1",
        id="urn:1",
        title="One",
        published=NOON,
        updated=LATER,
        summary="Text here",
    )


def test_the_entries_of_rss_1_0():
    (one,) = feed(RDF)

    assert one == FeedEntry(
        link="http://a.example/1",
        id="http://a.example/1",
        title="One",
        published=NOON,
        updated=NOON,
    )


def test_a_link_that_is_none_is_left_for_follow_to_drop():
    (one,) = feed("<rss><item><link>javascript:x</link></item></rss>")

    assert one.link == "javascript:x"


def test_a_page_is_no_feed():
    with pytest.raises(XmlError, match="it is no feed, but <html>"):
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
        ("31 Jan 2026 12:00 +0200", "2026-01-31T10:00:00", None),
    ],
)
def test_a_date_is_a_moment_or_a_span(text: str, first: str, last: str | None):
    found, latest = date_in(text), latest_in(text)

    assert found is not None
    assert latest is not None
    assert found.isoformat() == f"{first}+00:00"
    assert latest.isoformat() == f"{last or first}+00:00"


@pytest.mark.parametrize(
    "text", ["", "x", "2026-13", "2026-02-30", "9999-12-31", "0000", "20260131x", "9999", "1e9"]
)
def test_what_is_no_date_is_none(text: str):
    assert latest_in(text) is None


@given(st.text(max_size=40) | st.from_regex(r"[0-9]{4}-[0-9]{2}(-[0-9]{2})?(T[0-9:]{8})?.{0,7}"))
def test_no_text_is_more_than_no_date(text: str):
    date_in(text)
