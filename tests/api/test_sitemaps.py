"""Sitemaps: XML, text and feeds, compressed or not, and content that is no sitemap."""

import gzip
import zlib
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from crawlcw.api import sitemap_spider, xml_records
from crawlcw.api.sitemap_spider import SitemapEntry
from crawlcw.errors import Reason, XmlError
from crawlcw.model.urls import encoded

pytestmark = pytest.mark.quick

URLSET = """<?xml version="1.0" encoding="UTF-8"?>
<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:xhtml="http://www.w3.org/1999/xhtml">
<url><loc>
  http://a.example/1 </loc><lastmod>2026-01-31</lastmod><changefreq>Daily</changefreq>
  <priority>0.5</priority><image:image><image:loc>http://a.example/i.png</image:loc></image:image>
  <xhtml:link rel="alternate" hreflang="de" href="http://a.example/de/1"/></url>
<url><loc>/2</loc><lastmod>2026-01-31T12:00:00+02:00</lastmod><priority>9</priority></url>
<url><lastmod>2026</lastmod></url>
<url><loc></loc></url>
<url><loc>/3</loc><lastmod>yesterday</lastmod></url>
</urlset>
"""
LISTED = ["http://a.example/1", "/2", "/3"]


def listed(body: bytes, **more: bool | str) -> list[str]:
    return [entry.url for entry in sitemap_spider.entries(body, **more)]


def failure_of(body: bytes, **more: bool) -> tuple[list[str], Reason]:
    found = []
    with pytest.raises(XmlError) as raised:
        for entry in sitemap_spider.entries(body, **more):
            found.append(entry.url)
    return found, raised.value.reason


def test_the_entries_of_a_sitemap():
    first, second, third = sitemap_spider.entries(URLSET.encode())

    assert first == SitemapEntry(
        url="http://a.example/1",
        lastmod=datetime(2026, 2, 1, tzinfo=UTC),  # a time on that day
        changefreq="daily",
        priority=0.5,
        alternates={"de": "http://a.example/de/1"},
    )
    assert second.lastmod == datetime(2026, 1, 31, 10, tzinfo=UTC)
    assert second.priority is None
    assert (third.url, third.lastmod) == ("/3", None)


def test_an_index_leads_to_sitemaps():
    index = b"<sitemapindex><sitemap><loc>/a.xml</loc></sitemap></sitemapindex>"

    assert [*sitemap_spider.entries(index)] == [SitemapEntry(url="/a.xml", is_sitemap=True)]


ADDRESSES = [f"http://a.example/{n}.xml" for n in (1, 2)]
PAGES = [SitemapEntry(url=url) for url in ADDRESSES]
SITEMAPS = [replace(page, is_sitemap=True) for page in PAGES]


@pytest.mark.parametrize(
    ("form", "entries"),
    [
        ("<URLSET><URL><LOC>{}</LOC></URL><Url><Loc>{}</Loc></Url></URLSET>", PAGES),
        ("<urlset><url><loc>{}</loc><loc>{}</loc></url></urlset>", PAGES),
        ("<urlset><url>{}</url><url>\n{}\n<loc></loc></url></urlset>", PAGES[:1]),
        ("<urlset><sitemap><loc>{}</loc></sitemap><sitemap>{}</sitemap></urlset>", SITEMAPS),
        ("<urlset><loc>{}</loc><page><loc>{}</loc></page></urlset>", PAGES),
        ("<sitemapindex><url><loc>{}</loc></url><url>{}</url></sitemapindex>", SITEMAPS),
        ("<sitemapindex><sitemap><loc>{}</loc><loc>{}</loc></sitemap></sitemapindex>", SITEMAPS),
        ("<RSS><ITEM><LINK>{}</LINK></ITEM><ITEM><Guid>{}</Guid></ITEM></RSS>", PAGES),
        ("<!-- a --> <!-- b -->\n<?xml version='1.0'?><urlset><url>{}</url><url>{}</url></urlset>",
         PAGES),
        ("{}\nSome other text\n{}", PAGES),
    ],
)  # fmt: skip
def test_the_usual_mistakes_of_sitemaps_lose_no_address(form: str, entries: list[SitemapEntry]):
    """What Scrapy and crawler-commons read."""
    assert [*sitemap_spider.entries(form.format(*ADDRESSES).encode())] == entries


@pytest.mark.parametrize(
    "body",
    [
        gzip.compress(URLSET.encode()),
        gzip.compress(URLSET.encode()[:200]) + gzip.compress(URLSET.encode()[200:]),
        gzip.compress(URLSET.encode()) + b"\0" * 100,
        b"\xef\xbb\xbf" + URLSET.encode(),
        URLSET.replace("UTF-8", "UTF-16").encode("utf-16"),
        b"\r\n\r\n" + URLSET.encode(),
        gzip.compress(URLSET.encode(), compresslevel=0),
    ],
    ids=["gzip", "two-members", "padded", "mark", "utf-16", "blank-lines", "stored"],
)
def test_a_sitemap_is_the_same_however_it_is_written(body: bytes):
    assert listed(body) == LISTED


def test_a_long_sitemap_in_a_legacy_encoding_is_read_as_by_browsers():
    urls = "".join(f"<url><loc>/{number}/①</loc></url>" for number in range(5000))
    body = encoded(f"<?xml version='1.0' encoding='EUC-JP'?><urlset>{urls}</urlset>", "euc-jp")

    assert listed(body) == [f"/{number}/①" for number in range(5000)]
    assert listed(body, content_type="text/plain") == listed(gzip.compress(body))


def test_a_text_has_a_url_in_each_line():
    text = "\ufeff\nhttp://a.example/1\r\n\r\n  http://a.example/2\nhttp://a.example/3"

    assert listed(text.encode()) == [f"http://a.example/{n}" for n in (1, 2, 3)]
    # The first part of a URL is another URL.
    assert listed(text.encode(), is_cut=True) == [f"http://a.example/{n}" for n in (1, 2)]


def test_a_feed_serves_as_a_sitemap():
    date = "Sat, 31 Jan 2026 12:00:00 GMT"
    item = f"<item><link>http://a.example/1</link><pubDate>{date}</pubDate></item>"
    rss = f"<rss><channel>{item}</channel></rss>".encode()

    (entry,) = sitemap_spider.entries(rss)

    assert (entry.url, entry.lastmod) == (
        "http://a.example/1",
        datetime(2026, 1, 31, 12, tzinfo=UTC),
    )


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (gzip.compress(URLSET.encode())[:-30], Reason.PAYLOAD_TRUNCATED),
        (b"\x1f\x8bno gzip", Reason.CONTENT_ENCODING),
        (b"<html><body>Not found</body></html>", Reason.PARSE_ERROR),
        (b"<urlset><url><location>/1</location></url></urlset>", Reason.PARSE_ERROR),
        (b"<!DOCTYPE x [<!ENTITY a 'b'>]><urlset/>", Reason.XML_UNSAFE),
        (gzip.compress(b"") * 20_000, Reason.CONTENT_ENCODING),
    ],
    ids=["cut", "corrupt", "html", "no-address", "entities", "members"],
)
def test_what_is_no_sitemap_is_no_fault_of_the_spider(body: bytes, reason: Reason):
    found, why = failure_of(body)

    assert why is reason
    assert found == LISTED[: len(found)]


def test_a_bomb_ends_at_its_bound_and_what_came_before_is_found(
    monkeypatch: pytest.MonkeyPatch,
):
    """HOSTILE 3.18: 8 KB that decode to 8 MiB."""
    monkeypatch.setattr(xml_records, "LARGEST", 4 << 20)
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    start = b"<urlset><url><loc>/1</loc></url>"
    bomb = packer.compress(start)
    for _ in range(8):
        bomb += packer.compress(b" " * (1 << 20))
    bomb += packer.flush()

    assert len(bomb) < 1 << 14
    assert failure_of(bomb) == (["/1"], Reason.DOCUMENT_TOO_LARGE)


def test_robots_txt_names_sitemaps():
    text = "User-agent: *\nSitemap: http://a.example/1.xml\r\n sitemap : /2.xml # two\n"
    text += "Sitemap: /2.xml\n#\rSITEMAP: /3.xml\rSite-map:/4.xml\nSite-map /5.xml"

    named = ["http://a.example/1.xml", *(f"/{n}.xml" for n in range(2, 6))]
    assert sitemap_spider.sitemaps_of_robots_txt(text) == named
