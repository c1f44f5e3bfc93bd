"""Articles: the main content of pages, with title, author, date and language."""

import json

import pytest

from crawlcw import Request, Response
from crawlcw.content.article import Article
from tests.content.test_choice import PROSE, SENTENCES, framed

pytestmark = pytest.mark.quick

URL = "https://site.example/news/page"


def article(head: str = "", content: str = PROSE, *, lang: str = "") -> Article:
    body = framed(f"<article>{content}</article>")
    html = f"<html{lang and f' lang={lang}'}><head>{head}</head>{body}</html>"
    return Response(URL, request=Request(URL), body=html.encode()).article()


def metas(**contents: str) -> str:
    return "".join(
        f'<meta name="{name.replace("__", ":")}" content="{content}">'
        for name, content in contents.items()
    )


def jsonld(*things: object) -> str:
    return f'<script type="application/ld+json">{json.dumps(things)}</script>'


def test_an_article_has_its_main_content_with_absolute_addresses():
    content = (
        f"<h1>Lamps</h1>{PROSE}<p>{SENTENCES[0]} See <a href='../shop#lamp'>the lamp</a>, "
        f"<a href='../shop#lamp'>again</a>, or <a href='mailto:a@b.example'>write</a>.</p>"
        f"<p><img data-src='/lamp.png' src='data:image/gif;base64,R0'></p>{PROSE}"
    )
    page = article(content=content)

    assert page.title == "Lamps"
    assert page.text.startswith("Lamps\nThe crawler asks")
    assert page.markdown.startswith("# Lamps\n\nThe crawler asks")
    assert page.links == ("https://site.example/shop",)
    assert page.images == ("https://site.example/lamp.png",)


def test_jsonld_says_who_wrote_an_article_and_when():
    people = [{"@type": "Person", "name": "Ann"}, {"@id": "#bob"}, "Cem"]
    thing = {"@type": "NewsArticle", "headline": "On lamps", "author": people}
    bob = {"@type": "Person", "@id": "#bob", "name": "Bob"}
    page = article(jsonld(thing | {"datePublished": "2026-03-31T23:59:00+02:00"}, bob))

    assert (page.title, page.author, page.date) == ("On lamps", "Ann, Bob, Cem", "2026-03-31")


def test_metas_describe_a_page_without_jsonld():
    head = metas(
        og__title="On lamps | The Site",
        author="Ann",
        article__published_time="20260331",
        description=" All about\n lamps ",
        og__locale="en_GB",
    )
    page = article(head)

    assert page.title == "On lamps"
    assert (page.author, page.date) == ("Ann", "2026-03-31")
    assert (page.description, page.language) == ("All about lamps", "en-GB")


def test_the_text_of_a_page_describes_it_without_metas():
    content = (
        "<h1>On lamps</h1><a rel=author href=/ann>Ann</a><time datetime='2026-03-31'>today</time>"
    )
    page = article("<title>On lamps - The Site</title>", content + PROSE, lang="de-AT")

    assert (page.title, page.author, page.date) == ("On lamps", "Ann", "2026-03-31")
    assert page.language == "de-AT"


def test_a_heading_with_the_name_of_the_site_is_not_the_title():
    page = article(metas(og__title="On lamps"), "<h1>The Site</h1>" + PROSE)

    assert page.title == "On lamps"


def test_an_address_is_not_the_name_of_an_author():
    page = article(metas(article__author="https://social.example/ann") + jsonld({"author": URL}))

    assert page.author is None


def test_a_page_that_says_nothing_has_no_values():
    page = Response(URL, request=Request(URL), body=b"<p></p>").article()

    assert page == Article(
        title=None,
        author=None,
        date=None,
        language=None,
        description=None,
        text="",
        markdown="",
        links=(),
        images=(),
    )


@pytest.mark.parametrize(
    "thing",
    [
        None,
        {"author": [[{"name": {"name": 1}}]], "headline": ["a"], "datePublished": {"a": 2}},
        {"@id": ["x"], "author": {"@id": ["x"]}, "datePublished": 20260331},
        {"author": {"name": ["Ann"]}, "headline": " ", "datePublished": "2026-99-99"},
    ],
)
def test_values_of_a_wrong_kind_are_ignored(thing: object):
    page = article(jsonld(thing), lang="'<b>'")

    assert (page.title, page.author, page.date, page.language) == (None, None, None, None)


def test_a_response_that_is_not_html_has_no_article():
    page = Response(URL, request=Request(URL), headers={"Content-Type": "application/json"})

    with pytest.raises(ValueError, match=r"article\(\) needs an HTML page: .* is application/json"):
        page.article()
