"""Raw text of a page: only text for both parsers is left out, in linear time."""

import re
import time
from itertools import count

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from selectolax.lexbor import LexborHTMLParser

from crawlcw.api import markup
from crawlcw.api.raw_text import without_raw_text

pytestmark = pytest.mark.quick

TEXT = {
    b"<script>x='<b>'</script><b>": b"<script><b>",
    b"<SCRIPT type='a>b' async>[\"<b><\\/b>\"]</SCRIPT >": b"<SCRIPT type='a>b' async>",
    b"<script>\n<!-- <b> </script><b>": b"<script><b>",
    b"<style>a::before{content:'<b>'}</style><b>": b"<style><b>",
    b"<b><!-- <b> -- <i> --><i>": b"<b><i>",
    b"<!--[if IE]><script src=x></script><![endif]--><b>": b"<b>",
    b"<svg><title>t</title><path d='M1'/></svg><!--<b>-->": (
        b"<svg><title>t</title><path d='M1'/></svg>"
    ),
    b"<select><option selected>1</select><!--<b>-->": b"<select><option selected>1</select>",
    b'<?xml version="1.0"?><!DOCTYPE html PUBLIC "a"><!--<b>-->': (
        b'<?xml version="1.0"?><!DOCTYPE html PUBLIC "a">'
    ),
}
#: Tags that some version of a parser sees, or that are not worth the risk.
NO_TEXT = [
    b"<script>;<b>",
    b"<script/>;<b></script>",
    b"<script src=a/>;<b></script>",
    b"<script>;<b></scriptx></script>",
    b"<script></b>;<b></script>",
    b"<script>;<!--<script></script>;<b></script><b></script>",
    b"<style><!--</style>--><b></style>",
    b"<!--><b>-->",
    b"<!---><b>-->",
    b"<!-- --!><b>-->",
    b"<div title='<script>'><b></script>",
    b"<div title='<!--'><b x='-->'>",
    b"<div title=a'><script>;<b></script>'>",
    b"<div @click='a ><script>'><!--</script><b>-->",
    b"<div\f'><script>;<b></script>'>",
    b"< <script>;<b></script>",
    b"<svg><script>;<b></script></svg>",
    b"<svg><desc><p></svg></p></desc><script>;<b></script>",
    b"<math><style>;<b></style></math>",
    b"<select><style>;</select><b></style>",
    b"<template><col><style>;</template><b></style>",
    b"<textarea><script>;</textarea><b></script>",
    b"<title><!--</title><b>-->",
    b"<iframe><!--</iframe><b>-->",
    b"<noframes><!--</noframes><b>-->",
    b"<xmp><!--</xmp><b>-->",
    b"<plaintext><!--<b>-->",
    b"<frameset><style>;<b></style>",
    b"<!doctype html 'a><script>'><b></script>",
    b"<![CDATA[<!--]]><b>-->",
    b"<!-- -\0-><b>-->",
]


@pytest.mark.parametrize("page", TEXT)
def test_scripts_styles_and_comments_are_left_out(page: bytes):
    assert without_raw_text(page) == TEXT[page]


@pytest.mark.parametrize("page", NO_TEXT)
def test_what_only_looks_like_a_script_or_a_comment_is_left_as_it_is(page: bytes):
    assert without_raw_text(page) is page


def test_nothing_is_left_out_behind_the_first_thing_that_is_not_known():
    page = b"<!--<b>--><math><!--<b>-->"

    assert without_raw_text(page) == b"<math><!--<b>-->"


#: Each `@` becomes an attribute with a unique name, which shows the tags that a parser has seen.
TAGS = """
    <div~@> <b~@> <i~@/> <option~@> <a~@~href=x> <li~@="a>b"> text <table> </table> <td> <col>
    <template> </template> <noscript> </noscript> </div> </p> <head> </head> <body> </html>
""".split()  # noqa: SIM905  # as a list it would be twice as long
AROUND = """
    <script>%</script> <script>;%</script> <script><!--%--></script> <style>%</style>
    <style>;%</style> <!--%--> <svg>%</svg> <svg><style>%</style></svg> <svg><desc>%</desc></svg>
    <math>%</math> <select>%</select>
    <textarea>%</textarea> <title>%</title> <iframe>%</iframe> <xmp>%</xmp>
    <noframes>%</noframes> <noscript>%</noscript> <template>%</template> <a~@="%"> <a~@='%'> <a~@=%>
    <![CDATA[%]]> <!doctype~%> </%>
""".split()  # noqa: SIM905
ODD = [
    "\f",
    *"""
    <script <script> </script> </script/ <script/> <script~@> </scriptx> <style> </style> <!--
    --> --!> <!--> - > < </ <! <? / = " ' ~ \0 ` <svg> </svg> <svg/> <foreignObject>
    </desc> <select> </select> <textarea> </textarea> <title> <math> <plaintext> <frameset>
    <iframe> </iframe> <a <a~x="
""".split(),  # noqa: SIM905
]
pieces = st.recursive(
    st.sampled_from(TAGS) | st.sampled_from(ODD),
    lambda inner: st.builds(
        lambda around, within: around.replace("%", "".join(within)),
        st.sampled_from(AROUND),
        st.lists(inner, max_size=4),
    ),
    max_leaves=12,
)


def numbered(pieces: list[str]) -> bytes:
    number = count()
    page = "".join(pieces).replace("~", " ")
    return re.sub("@", lambda _: f"x{next(number)}-", page).encode()


NUMBERED = re.compile(r"x\d+-")


@given(st.lists(pieces, max_size=6).map(numbered).filter(bool))
@example(b"<!--<b>--><template><col><style>;</template><b x0-></style>")
@example(b"<!--<b>--><svg><desc><p></svg></p></desc><script>;<b x0-></script>")
def test_no_tag_or_attribute_that_a_parser_sees_is_ever_left_out(page: bytes):
    left = set(NUMBERED.findall(without_raw_text(page).decode()))

    lexbor = (name for node in LexborHTMLParser(page).css("*") for name in node.attributes)
    assert {name for name in lexbor if NUMBERED.fullmatch(name)} <= left
    of_libxml2 = markup.selector(page, kind="html", url="").xpath("//@*")
    libxml2 = (each.root for each in of_libxml2.xpath("name()"))
    assert {name for name in libxml2 if NUMBERED.fullmatch(name)} <= left


@pytest.mark.thorough
@pytest.mark.representative("<!--<-->")
@pytest.mark.parametrize(
    "unit",
    [
        *(
            "<!--<-->",
            "<b>",
            "<script>",
            "<script>;<",
            "<script>;<</script>",
            "<a x='",
            "<a x ",
            "-",
        ),
        *(
            "<!--",
            "<script>;<!--<script>",
            "<svg><g>",
            "<select><option>",
            "<svg></svg>",
            "<style>;</",
        ),
        *("<", " ", "</a>", "<title>", "<!doctype 'a"),
    ],
)
def test_it_takes_no_time_however_odd_a_page_is(unit: str):
    for before in ("", "<!--", "<script>;", "<a x='", "<a ", "<svg>"):
        page = before.encode() + unit.encode() * ((2 << 20) // len(unit))
        started = time.process_time()
        without_raw_text(page)

        assert time.process_time() - started < 5
