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
_HOSTILE_HTML = _HOSTILE.map(escape)
_MARKED = st.recursive(
    _HOSTILE_HTML,
    lambda parts: st.one_of(
        st.just("<br>"),
        st.builds("<code>{}</code>".format, _HOSTILE_HTML),
        st.builds("<b>{}</b>{}".format, parts, parts),
        st.builds("{}<em>{}</em>".format, parts, parts),
        st.builds("<del>{}</del>{}".format, parts, parts),
        st.builds("<a href=/x>{}</a>{}".format, parts, parts),
    ),
    max_leaves=8,
)
_NESTED = st.recursive(
    st.builds("<p>{}</p>".format, _MARKED),
    lambda blocks: st.one_of(
        st.just("<hr>"),
        st.builds("<h2>{}</h2>".format, _MARKED),
        st.builds("<pre>\n{}</pre>".format, _HOSTILE_HTML),
        st.builds("<blockquote>{}{}</blockquote>".format, blocks, blocks),
        st.builds("<ul><li>{}{}<li>{}</ul>".format, _MARKED, blocks, blocks),
        st.builds("<ol start=3><li>{}<li>{}</ol>".format, blocks, _MARKED),
        st.builds("<table><tr><th>{}<th>a<tr><td>{}<td>b</table>".format, _MARKED, _MARKED),
    ),
    max_leaves=6,
)


def response(html: str, *, kind: str = "text/html; charset=utf-8") -> Response:
    return Response(URL, request=Request(URL), headers={"Content-Type": kind}, body=html.encode())


def converted(html: str) -> Markdown:
    body = LexborHTMLParser(html).body
    assert body is not None
    return markdown_of(body, base_url=URL)


def shown(markdown: str) -> str:
    """Return the text of the rendered Markdown, without white space."""
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


@given(_NESTED)
def test_a_page_has_the_same_text_and_no_other_blocks_as_its_markdown(html: str):
    markdown = converted(html).text

    body = LexborHTMLParser(html).body
    rendered = _RENDERED.render(markdown)
    assert body is not None
    assert shown(markdown) == "".join(body.text().split())
    for tag in ("blockquote", "h2", "hr", "ol", "pre", "table", "ul"):
        assert len(re.findall(rf"<{tag}\b", rendered)) <= html.count(f"<{tag}")


@pytest.mark.parametrize(
    "part",
    [
        "<p hidden>x",
        "<p style='display: none !important'>x",
        "<p style='DISPLAY:/**/none'>x",
        "<p style='d\\69splay:none'>x",
        "<p style='font-size:0.0em'>x",
        "<p style='opacity:.0;color:red'>x",
        "<p style='max-height:0;overflow:hidden'>x",
        "<p style='color: #FFF; background-color: rgb(255, 255, 255)'>x",
        "<p style='text-indent:-9999px'>x",
        "<p style='transform: translateX(-10000px)'>x",
        "<p style='width:1px;height:1px;overflow:hidden'>x",
        "<p style='clip: rect(0 0 0 0)'>x",
        "<p style='clip:rect(1px,1px,1px,1px)'>x",
        "<p style='margin-left:-999em'>x",
        "<p class='a visually-hidden'>x",
        "<p aria-hidden=true>x",
        "<dialog>x</dialog>",
        "<div popover>x</div>",
        "<p>seen\U000e0041\U000e0042</p>",
        "<pre>seen<span hidden>x</span></pre>",
    ],
)
def test_a_hidden_part_is_left_out_and_counted(part: str):
    page = converted(f"<body>{part}</body>")

    assert page.text.strip("`\n") in {"", "seen"}
    assert page.hidden == 1


@pytest.mark.parametrize(
    "part",
    [
        "<p style='opacity:0.5'>x",
        "<p style='font-size:0.8em;color:white'>x",
        "<p style='font-size:small;max-height:none;opacity:inherit;zoom:normal'>x",
        "<p style='transform:scale(.5);max-width:0.5em;overflow:hidden;opacity:.05'>x",
        "<p style='left:50%;margin-left:-480px'>x",
        "<p style='clip:rect(0px, 60px, 20px, 0px)'>x",
        "<p style='color:#fff;background:#000'>x",
        "<p aria-hidden=false>x",
        "<p hidden=until-found>x",
        "<dialog open>x</dialog>",
        "<details><p>x</details>",
    ],
)
def test_a_shown_part_is_written(part: str):
    page = converted(f"<body>{part}</body>")

    assert (page.text, page.hidden) == ("x\n", 0)


def test_hidden_elements_without_text_do_not_count():
    page = converted("<p>a<i hidden></i><b aria-hidden=true>*</b><!-- c --><script>1</script></p>")

    assert page.hidden == 0


def test_chosen_nodes_are_written_within_their_structure():
    body = LexborHTMLParser(
        "<p>a<ul><li>b<li>c<nav>d</nav></ul><blockquote><p>e<p>f</blockquote><p>g <b>h</b> i"
    ).body
    assert body is not None
    items, paragraphs = body.css("li"), body.css("p")
    node_ids = frozenset(node.mem_id for node in (items[1], paragraphs[2], body.css("b")[0]))

    page = markdown_of(body, base_url=URL, node_ids=node_ids)

    assert page.text == "- c\n\n> f\n\n**h**\n"


def test_the_main_content_is_the_default():
    page = response("<nav>menu</nav><main><p>text</p></main><footer>end</footer>")

    assert page.markdown() == "text\n"
    assert page.markdown(main=False) == "menu\n\ntext\n\nend\n"


def test_links_follow_the_base_and_the_encoding_of_the_page():
    body = "<meta charset=windows-1251><base href=/up/><a href='x?ж=1#ж'>a</a>".encode("cp1251")
    page = Response(URL, request=Request(URL), body=body)

    address = "https://site.example/up/x?%E6=1#%D0%B6"
    assert page.markdown(main=False) == f"[a]({address})\n"


@pytest.mark.parametrize("tag", ["b", "q", "span", "sup", "table><tr><td", "math", "svg", "a"])
def test_a_page_may_nest_deeply(tag: str):
    assert "x" in converted(f"<{tag}>" * 30_000 + "x").text or tag == "svg"


@pytest.mark.parametrize(
    "page",
    [
        "<blockquote><ul><li>" * 300 + "<p>a" * 1000,
        "<table><tr>" + "<td colspan=1000 rowspan=65534>x" * 100 + "<tr><td>y" * 3000,
        f"<table><tr><td rowspan=9999>{'long ' * 999}<td>x" + "<tr><td>y" * 3000 + "</table>",
    ],
    ids=["containers", "spans", "repeated cells"],
)
def test_the_markdown_of_a_page_is_no_hundred_times_larger(page: str):
    assert len(converted(page).text) < 100 * len(page)


@pytest.mark.parametrize("kind", ["application/pdf", "application/rss+xml", "application/json"])
def test_only_html_becomes_markdown(kind: str):
    with pytest.raises(ValueError, match=f"needs an HTML page: {URL} is {kind}".replace("+", ".")):
        response("{}", kind=kind).markdown()


def test_a_bar_of_tabs_that_contains_its_panels_is_written():
    body = (
        '<div role="tablist"><div role="tab">Size</div><div role="tabpanel"><p>Ten.</p></div></div>'
    )

    assert "Ten." in converted(body).text


def test_an_image_that_links_to_its_own_file_is_written_without_the_link():
    assert converted('<p><a href="/big.jpg"><img src="/a.jpg" alt="A"></a></p>').text == (
        "![A](https://site.example/a.jpg)\n"
    )
