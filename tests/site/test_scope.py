"""The scope of a site, and the name of its crawl."""

import pytest

from crawlcw.errors import UsageError
from crawlcw.site.scope import SiteScope, folder_of, site_name

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("start", "led_to", "home"),
    [
        ("https://a.example", "https://a.example/", "https://a.example/"),
        ("https://a.example/", "https://www.a.example/en/", "https://www.a.example/"),
        ("http://a.example/docs", "https://a.example/docs/", "https://a.example/docs/"),
        ("https://a.example/docs/", "https://a.example/docs/", "https://a.example/docs/"),
        ("https://a.example/docs/index.html", "https://a.example/docs/index.html", "https://a.example/docs/"),
        ("https://a.example/docs/", "https://b.example:8443/v2/", "https://b.example:8443/v2/"),
    ],
)  # fmt: skip
def test_the_home_is_the_folder_to_which_the_start_has_led(start: str, led_to: str, home: str):
    assert SiteScope.of(start).home_at(led_to) == home


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("https://a.example/docs/x?y=1", "https://a.example/docs/x?y=1"),
        ("http://www.a.example/docs/x", "https://a.example/docs/x"),
        ("https://a.example/docs", "https://a.example/docs"),
        ("https://a.example/docsearch", None),
        ("https://a.example/blog/", None),
        ("https://b.a.example/docs/", None),
        ("https://a.example:8443/docs/", None),
    ],
)
def test_a_page_is_below_the_home_and_at_its_host(url: str, address: str | None):
    scope = SiteScope.of("https://a.example/docs/")

    assert scope.address_in("https://a.example/docs/", url) == address


@pytest.mark.parametrize(
    ("include", "exclude", "inside"),
    [
        ([], [], ["/", "/a/1", "/a/1?p=2", "/b/a/1"]),
        (["/a/*"], [], ["/a/1", "/a/1?p=2"]),
        (["*/1"], ["/b/*"], ["/a/1", "/a/1?p=2"]),
        ([], ["*?p=*"], ["/", "/a/1", "/b/a/1"]),
        (["/a/1", "/"], ["*?*"], ["/", "/a/1"]),
        (["/a"], [], []),
        (["/[a]/*", "/./1"], [], []),
    ],
)
def test_a_glob_matches_a_whole_path(include: list[str], exclude: list[str], inside: list[str]):
    home = "https://a.example/"
    scope = SiteScope.of(home, include=include, exclude=exclude)
    paths = ["/", "/a/1", "/a/1?p=2", "/b/a/1"]

    assert [p for p in paths if scope.address_in(home, f"https://a.example{p}")] == inside


def test_a_glob_that_no_path_matches_is_refused():
    with pytest.raises(UsageError, match="a path begins with /: write '/docs/\\*'"):
        SiteScope.of("https://a.example/", include=["docs/*"])


def test_a_glob_takes_no_long_time_on_a_hostile_path():
    scope = SiteScope.of("https://a.example/", exclude=["*/a*/b*/c*/d", "*/e*e"])

    path = f"/{'/a' * 200}{'/b' * 200}{'/c' * 200}"  # a backtracking match takes over five seconds
    assert scope.address_in("https://a.example/", f"https://a.example{path}") is not None
    for path in ("/a/b/c/c/d", "/x/a1/a/b/c/d/d", "/e/e", "/ee"):
        assert scope.address_in("https://a.example/", f"https://a.example{path}") is None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("https://docs.example.com", "docs-example-com"),
        ("http://www.example.com/docs/index.html", "example-com-docs"),
        ("docs.example.com", "docs-example-com"),
        ("example.com/docs", "example-com-docs"),
        ("http://127.0.0.1:8000/", "site-127-0-0-1-8000"),
        ("http://user:secret@a.example/", "a-example"),
        ("https://bücher.example/", "xn-bcher-kva-example"),
        ("books", None),
        ("books.py", None),
        ("spiders/books.py", None),
        ("package.module:Books", None),
        ("http://", None),
    ],
)
def test_the_name_of_a_crawl_is_made_of_its_start(text: str, name: str | None):
    assert site_name(text) == name


def test_a_long_start_has_a_name_that_a_spider_can_have():
    names = {site_name(f"https://a.example/{'long/' * 20}{number}/") for number in (1, 2)}

    assert [len(name or "") for name in names] == [60, 60]


def test_the_folder_of_a_path():
    paths = ["/", "/docs", "/docs/", "/docs/index.html", "/v1.2/"]

    assert [folder_of(path) for path in paths] == ["/", "/docs/", "/docs/", "/docs/", "/v1.2/"]
