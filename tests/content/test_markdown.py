"""Pages as Markdown."""

import re
from html import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from selectolax.lexbor import LexborHTMLParser

from crawlcw import Request, Response
from crawlcw.content.markdown import Markdown, markdown_of
from tests.content.shapes import URL, Shape, framed, score, shapes

pytestmark = pytest.mark.quick

_RENDERED = MarkdownIt("commonmark").enable(["table", "strikethrough"])
#: Text of characters that mean something to Markdown.
_HOSTILE = st.text(st.sampled_from("`*_[](){}<>#+-.!|~$&;:=/\\^\"' 1ax\u00e9\u3042"), max_size=30)


def response(html: str, *, kind: str = "text/html; charset=utf-8") -> Response:
    return Response(URL, request=Request(URL), headers={"Content-Type": kind}, body=html.encode())


def converted(html: str) -> Markdown:
    body = LexborHTMLParser(html).body
    assert body is not None
    return markdown_of(body, base_url=URL)


def shown(markdown: str) -> str:
    """Return what a reader of the rendered Markdown sees, without white space."""
    body = LexborHTMLParser(_RENDERED.render(markdown)).body
    assert body is not None
    return "".join(body.text().split())


@pytest.mark.parametrize("shape", shapes(), ids=lambda shape: shape.name)
def test_a_page_becomes_the_right_markdown(shape: Shape):
    markdown = response(framed(shape.html)).markdown(main=False)

    assert score(markdown, shape) == 1.0, markdown


@given(_HOSTILE, _HOSTILE)
def test_text_never_becomes_markup(first: str, second: str):
    markdown = converted(f"<p>{escape(first)}<br>{escape(second)}</p>").text

    tags = re.findall(r"<[^>]*>", _RENDERED.render(markdown))
    assert set(tags) <= {"<p>", "</p>", "<br />"}
    assert tags.count("<p>") <= 1
    assert shown(markdown) == "".join((first + second).split())


@given(_HOSTILE, _HOSTILE, _HOSTILE, st.sampled_from(["b", "em", "del", "a href=/x", "sup"]))
def test_text_beside_marks_stays_text(before: str, inside: str, behind: str, tag: str):
    end = tag.split()[0]
    html = f"<p>{escape(before)}<{tag}>{escape(inside)}</{end}>{escape(behind)}</p>"

    markdown = converted(html).text

    tags = re.findall(r"<([a-z]+)", _RENDERED.render(markdown))
    mark = {"b": "strong", "del": "s"}.get(end, end)
    assert set(tags) <= {"p", mark}
    assert tags.count(mark) <= 1
    assert shown(markdown) == "".join((before + inside + behind).split())


@given(_HOSTILE, _HOSTILE)
def test_text_in_a_cell_stays_in_its_cell(first: str, second: str):
    cells = f"<td>{escape(first)}</td><td><code>{escape(second)}</code></td>"

    markdown = converted(f"<table><tr><th>a</th><th>b</th></tr><tr>{cells}</tr></table>").text

    tags = re.findall(r"<([a-z0-9]+)", _RENDERED.render(markdown))
    assert set(tags) <= {"table", "thead", "tbody", "tr", "th", "td", "code"}
    assert shown(markdown) == "ab" + "".join((first + second).split())


@given(_HOSTILE)
def test_code_stays_code(text: str):
    markdown = converted(f"<pre>\n{escape(text)}</pre><p><code>{escape(text)}</code></p>").text

    tags = re.findall(r"<([a-z0-9]+)", _RENDERED.render(markdown))
    assert set(tags) <= {"pre", "code", "p"}
    assert shown(markdown) == 2 * "".join(text.split())
