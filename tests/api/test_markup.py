"""Checks of a page before it is parsed."""

import time
from contextlib import suppress

import pytest

from crawlcw.api import markup
from crawlcw.api.markup import parse_bounded
from crawlcw.errors import ParseRefusedError, Reason

pytestmark = pytest.mark.quick

REFUSED = {
    "deep divs": b"<div>" * 2_001,
    "deep divs in capitals": b"<DIV CLASS=x>" * 2_001,
    "deep tables": b"<table>" * 3_000 + b"</table>",
    "open formatting": b"<p><b>" * 1_000 + b"<i>" * 1_000,
    "options": b"<option>" * 5_001,
    "attributes": b"<a " + b"x=1 " * 20_000 + b">",
    "attributes of a tag left open": b"<p>text</p><a " + b"x=1 " * 20_000,
    "attributes in many tags": (b"<a " + b"x " * 2_000 + b">") * 50,
    "attributes without spaces": b"<a" + b"/x" * 20_000 + b">",
    "attributes by their quotes alone": b"<a " + b"x=''" * 20_000 + b">",
    "one <html> after the other": b"<html x>" * 1_000 + b"<BODY x>" * 1_001,
    "a tree of 10 MiB of tags": b"<p></p>" * (10 << 20 >> 3),
}
PASSED = {
    "nothing": b"",
    "text": b"a < b " * 100_000,
    "a long list": b"<ul>" + b"<li><a href=x>y</a></li>" * 20_000 + b"</ul>",
    "a list without end tags": b"<ul>" + b"<li>x" * 20_000 + b"</ul>",
    "line breaks": b"<br>" * 50_000,
    "wide": b"<div></div>" * 50_000,
    "2,000 deep": b"<div>" * 2_000 + b"</div>" * 2_000,
    "a picture in an attribute": b"<img src='data:image/png;base64," + b"A" * 1_000_000 + b"'>",
    "a script": b"<script>" + b"if (a < b) {} " * 50_000 + b"</script>",
}
#: Harmless pages whose bytes look as bad as those of refused pages.
ONLY_TEXT = {
    "tags in a script": b"<script>x='" + b"<div><b>" * 2_500 + b"'</script>",
    "options in JSON": b'<script type="application/json">["' + b"<option>" * 5_001 + b'"]</script>',
    "tags in a style": b"<style>x::before{content:'" + b"<b>" * 3_000 + b"'}</style>",
    "tags in a comment": b"<!--" + b"<div>" * 3_000 + b"-->",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_page_that_would_hang_the_parser_is_refused(name: str):
    with pytest.raises(ParseRefusedError) as caught:
        markup.screen(REFUSED[name])

    assert caught.value.reason is Reason.PARSE_KILLED
    assert "more than " in caught.value.message


@pytest.mark.parametrize("name", PASSED)
def test_a_page_that_means_well_is_let_through(name: str):
    markup.screen(PASSED[name])


@pytest.mark.parametrize("name", ONLY_TEXT)
def test_tags_in_what_is_text_to_a_parser_are_not_counted(name: str):
    around = b"<!doctype html><title>x</title><form><input name=q>%b</form><p>text"

    markup.screen(around % ONLY_TEXT[name])


@pytest.mark.parametrize("name", ONLY_TEXT)
def test_tags_that_are_in_a_script_for_html_alone_are_counted_in_xml(name: str):
    with pytest.raises(ParseRefusedError):
        markup.screen(ONLY_TEXT[name], "xml")


def test_tags_beside_a_script_are_counted():
    with pytest.raises(ParseRefusedError, match="more than 2000 tags inside one another"):
        markup.screen(ONLY_TEXT["tags in a script"] + REFUSED["deep divs"])


@pytest.mark.parametrize(
    ("content_type", "body", "markup_or_not"),
    [
        ("text/html; charset=utf-8", b"text", True),
        ("TEXT/HTML", b"<p>", True),
        ("application/rss+xml", b"", True),
        (None, b"text", True),
        ("text/plain", b"\xef\xbb\xbf\r\n <!doctype html>", True),
        ("text/plain", b"a < b", False),
        ("application/json", b'{"a": "<b>"}', False),
        ("text/html", b' [{"a": "<b>"}]', False),
        ("application/pdf", b"%PDF", False),
    ],
)
def test_what_is_markup_is_told_by_type_and_first_character(
    content_type: str | None, body: bytes, markup_or_not: bool
):
    assert markup.is_markup(content_type, body) is markup_or_not


def test_nuls_are_left_out_where_there_are_very_many():
    few = b"a\0b" * 65_536

    assert markup.prepared(few) == few
    assert markup.prepared(few + b"\0c") == b"ab" * 65_536 + b"c"


@pytest.mark.parametrize("name", PASSED)
def test_a_page_that_means_well_is_not_doubtful(name: str):
    doubtful = markup.ordinary_tree_size(PASSED[name]) is None

    assert doubtful is (name in ("text", "a list without end tags", "line breaks", "a script"))


@pytest.mark.parametrize("name", REFUSED)
def test_whatever_is_refused_is_doubtful_or_soon_parsed(name: str):
    body = REFUSED[name]

    if markup.ordinary_tree_size(body) is not None:
        assert is_soon_parsed(body)


#: Tags left open, for each of which the parser looks through those before it: a quarter of the
#: steps that may take half a second. It looks through memory as the slowest pages make it do.
NESTED = b"<div>" * 12_500


def is_soon_parsed(body: bytes) -> bool:
    """Return whether a page takes less than six times the CPU of `NESTED`.

    The slowest takes four times as much. Both are measured in turns until the answer is yes once:
    a busy machine slows both down, but not equally at each moment.
    """
    return any(seconds_to_parse(body) < 6 * seconds_to_parse(NESTED) for _ in range(25))


def seconds_to_parse(body: bytes) -> float:
    """Return the CPU time of parsing a page with limited memory."""
    began = time.process_time()
    with suppress(ParseRefusedError):
        parse_bounded(body)
    return time.process_time() - began


def many(unit: bytes, number: int, *, kinds: int = 1 << 20) -> bytes:
    """Return *number* times *unit*, its `%d` one of *kinds*."""
    return b"".join(unit.replace(b"%d", b"%d" % (n % kinds)) for n in range(number))


#: The worst shapes among some 20,000 random pages, and shapes that would deceive a look at tags.
LATE = {
    "formatting, end tags that close nothing": many(b"<b x%d><div></x></x>", 4_000)
    + b"</b>" * 4_000,
    "alike but for what a quote hides": many(b'<b a=">%d"><div></x></x>', 4_000) + b"</b>" * 4_000,
    "in capitals": many(b"<STRIKE\tX%d><div></x></x>", 4_000) + b"</STRIKE>" * 4_000,
    "a few kinds of formatting, most closed by nothing": b"<form></ul>x<x></object>" * 600
    + many(b"</option></form><em x%d>", 266)
    + b"<ul></em>" * 4_000,
    "headings left open, and end tags": many(b"<em></ruby><h1 x%d><caption>", 1_500)
    + many(b"<nobr x%d></br><optgroup>x<div>x<select></body>", 1_000, kinds=150)
    + b"</nobr>" * 10_000,
    "options that are selected": b"<select>" + b"<option selected>x</option>" * 10_000,
    "formatting around lists": many(b"<b x%d><ul></x>", 99) + b"<ul></b>" * 7_000,
    "left open beside what is closed at once": b"<div></i>" * 15_000 + b"<p></p>" * 5_000,
    "closed in an attribute": b"<div a=b=\"c d='\" e>t</div>'>" * 16_000,
    "closed in a name": b"<div =\" y='\" z>t</div>'>" * 16_000,
}
SOON = {
    "as many tags as are not looked at": many(b"<b x%d><div>", 1_333) + b"</b>" * 1_333,
    "paragraphs that open what was left open": many(b"<b x%d>", 1_990) + b"<p>" * 2_000,
    "options": b"<select>" + b"<option selected>x" * 3_998,
    "left open": b"<div>" * 15_800,
    "left open, and end tags that close nothing": b"<h1></li>" * 11_180,
    "left open, then end tags that close nothing": b"<ul>" * 11_180 + b"</p>" * 11_180,
    "the most formatting": many(b"<b x%d><ul></x>", 20) + b"<ul></b>" * 7_000,
    "icons": many(b"<i class=%d></i>", 20_000),
    "closed at once": b"<table><tr><td>x</td></tr></table>" * 10_000,
}


@pytest.mark.parametrize("name", LATE)
def test_what_takes_the_parser_long_is_doubtful(name: str):
    assert markup.ordinary_tree_size(LATE[name]) is None


@pytest.mark.parametrize("name", SOON)
def test_the_worst_that_is_not_doubtful_is_soon_parsed(name: str):
    assert markup.ordinary_tree_size(SOON[name]) is not None
    assert is_soon_parsed(SOON[name])


def test_a_page_whose_tree_is_large_is_doubtful():
    assert markup.ordinary_tree_size(b"<p>" * 10_000) == 10_000 * (256 + 2 * 3)
    assert markup.ordinary_tree_size(b"<p></p>" * 100_000) is None


@pytest.mark.parametrize("body", [b"<" * (1 << 20), b"<div " * (1 << 18), b"<b>" * (1 << 20)])
def test_whether_a_page_is_doubtful_is_found_out_at_once(body: bytes):
    started = time.process_time()
    markup.ordinary_tree_size(body)

    assert time.process_time() - started < 0.2


@pytest.mark.thorough
@pytest.mark.representative("body1")
@pytest.mark.parametrize("body", [b"<" * (4 << 20), b"<div " * (1 << 20), b"<b>" * (1 << 20)])
def test_screening_itself_is_quick(body: bytes):
    started = time.process_time()
    with suppress(ParseRefusedError):
        markup.screen(body)

    assert time.process_time() - started < 5
