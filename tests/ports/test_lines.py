"""Each port has at most as many lines as Scrapy's documentation needs for the same spider.

The count is of lines of code, without blank lines, comments, docstrings and imports. The
counts of Scrapy are those of the examples in its documentation (commit 11079cb1c of August
2026), with their settings and pipelines. If it documents only parts of a spider, the count
is the sum of the parts and of the tutorial's spider (13) around them.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from types import ModuleType

import pytest

from crawlcw import Spider
from tests.ports import test_data, test_fetching, test_following, test_ports

#: Name of the class -> lines in Scrapy's documentation, and where.
SCRAPY = {
    "Quotes": (13, "intro/tutorial"),
    "Books": (36, "topics/spiders: CrawlSpider, 26; topics/item-pipeline: prices, 10"),
    "Login": (11, "topics/request-response: LoginSpider"),
    "Api": (15, "topics/request-response: JsonRequest, 5, in the tutorial's first spider, 10"),
    "Archive": (14, "intro/tutorial, and the setting DEPTH_LIMIT"),
    "Scroll": (13, "topics/dynamic-content names it; the tutorial's spider"),
    "Authors": (16, "intro/tutorial: AuthorSpider"),
    "Search": (11, "topics/request-response: FormRequest.from_response in a LoginSpider"),
    "Manuals": (8, "topics/spiders: SitemapSpider, of robots.txt with sitemap_follow"),
    "Everywhere": (15, "intro/tutorial, with the settings of topics/broad-crawls"),
    "Fragile": (30, "topics/request-response: ErrbackSpider"),
    "Typed": (19, "topics/loaders: ItemLoader of a dataclass"),
    "News": (15, "topics/spiders: XMLFeedSpider"),
    "Rows": (14, "topics/spiders: CSVFeedSpider"),
    "Table": (13, "intro/tutorial, with XPath"),
    "Shop": (33, "intro/tutorial; topics/item-pipeline: prices, 10, duplicates, 10"),
    "Exported": (13, "intro/tutorial; its feeds are named on the command line, too"),
    "Covers": (15, "intro/tutorial; topics/media-pipeline: two settings"),
    "Papers": (15, "intro/tutorial; topics/media-pipeline: two settings"),
    "Signed": (33, "intro/tutorial; topics/downloader-middleware: TokenMiddleware, 20"),
    "Members": (11, "topics/request-response: LoginSpider, which logs in once"),
    "Rendered": (10, "topics/dynamic-content: PlaywrightSpider, which reads a screenshot"),
}
MODULES = (test_data, test_fetching, test_following, test_ports)


def ports() -> Iterator[tuple[ModuleType, type[Spider]]]:
    for module in MODULES:
        for found in vars(module).values():
            is_spider = inspect.isclass(found) and issubclass(found, Spider)
            if is_spider and found.__module__ == module.__name__:
                yield module, found


def lines_of(kind: type[Spider]) -> int:
    """Return the number of lines of code of a spider."""
    source = textwrap.dedent(inspect.getsource(kind))
    dropped: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            assert node.end_lineno is not None
            dropped.update(range(node.lineno, node.end_lineno + 1))
    code = [
        line
        for number, line in enumerate(source.splitlines(), 1)
        if number not in dropped and line.strip() and not line.strip().startswith("#")
    ]
    return len(code)


def test_there_are_enough_ports_for_what_is_common():
    names = {f"{module.__name__}.{kind.__name__}" for module, kind in ports()}

    assert len(names) >= 17


@pytest.mark.parametrize("name", sorted(SCRAPY))
def test_a_port_is_no_longer_than_what_scrapy_documents(name: str):
    (found,) = [kind for _, kind in ports() if kind.__name__ == name]
    most, _ = SCRAPY[name]

    assert lines_of(found) <= most
