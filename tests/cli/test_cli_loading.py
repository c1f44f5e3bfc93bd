import os
import sys
from pathlib import Path

import pytest

from crawlcw import SpiderError, UsageError
from crawlcw.cli import loading
from crawlcw.cli.loading import BrokenFile, ListedSpider

SPIDER = """\
from crawlcw import Spider

class {kind}(Spider):
    '''All of {name}.

    And more.
    '''
    name = "{name}"
    start_urls = ["http://example.com/"]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty current folder; modules loaded from it are unloaded afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(path: str, text: str) -> Path:
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    return place


def spider(path: str, name: str = "books", kind: str = "Books") -> Path:
    return write(path, SPIDER.format(name=name, kind=kind))


@pytest.mark.parametrize("text", ["books", "spiders/a.py", "spiders/a.py:Books", "spiders.a:Books"])
def test_a_spider_is_found_by_name_file_and_module(text):
    spider("spiders/a.py")

    found = loading.find(text)

    assert (found.__name__, found.name) == ("Books", "books")


def test_a_file_is_loaded_as_it_is_now(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    first = spider("books.py", "books1")
    before = loading.find("books.py").name
    written = first.stat()
    spider("books.py", "books2")
    os.utime("books.py", ns=(written.st_atime_ns, written.st_mtime_ns))

    assert (before, loading.find("books.py").name) == ("books1", "books2")


def test_a_use_case_in_the_place_of_a_spider_is_told_what_works_on_it():
    write("orders.py", "from crawlcw.tracking import UseCase\norders = UseCase('orders')\n")

    with pytest.raises(
        SpiderError, match=r"orders\.py has a use case, not a spider: `crawlcw work"
    ):
        loading.find("orders.py")


def test_a_name_that_is_unknown_lists_those_there_are_and_the_nearest():
    spider("spiders/a.py")
    spider("spiders/b.py", "quotes", "Quotes")

    with pytest.raises(SpiderError) as caught:
        loading.find("boks")

    assert str(caught.value) == (
        "there is no spider 'boks' in ./spiders; did you mean books?; there are books, quotes"
    )


def test_without_a_folder_of_spiders_the_other_ways_are_named():
    with pytest.raises(SpiderError, match=r"no folder \./spiders here: give a file"):
        loading.find("books")


def test_a_name_that_two_files_use_asks_which():
    spider("spiders/a.py")
    spider("spiders/b.py")

    with pytest.raises(
        SpiderError, match=r"choose one of spiders/a\.py:Books, spiders/b\.py:Books"
    ):
        loading.find("books")


def test_a_file_with_several_spiders_asks_which():
    two = SPIDER.format(name="a", kind="A") + SPIDER.format(name="b", kind="B")
    write("two.py", two)

    with pytest.raises(SpiderError, match=r"\(A, B\): choose one, such as two\.py:A"):
        loading.find("two.py")
    assert loading.find("two.py:B").name == "b"


def test_a_base_class_without_a_name_and_an_imported_spider_are_not_the_files_own():
    spider("other.py", "other", "Other")
    base = "from crawlcw import Spider\nfrom other import Other\nclass Base(Spider): pass\n"
    write("one.py", base + SPIDER.format(name="one", kind="One"))

    assert loading.find("one.py").name == "one"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import no_such_thing\n", "bad.py, line 1: ModuleNotFoundError: No module named"),
        ("x = 1\ny = x / 0\n", "bad.py, line 2: ZeroDivisionError: division by zero"),
        ("x = 1\ndef f(:\n", "bad.py, line 2: SyntaxError: "),
        ("import sys\nsys.exit(3)\n", "bad.py, line 2: it exits while loading"),
        ("import json\njson.loads('{')\n", "bad.py, line 2: JSONDecodeError: "),
        ("x = 1\n", "bad.py has no spider"),
    ],
)
def test_an_error_in_the_users_file_names_file_line_and_error(code, said):
    write("bad.py", code)

    with pytest.raises(SpiderError) as caught:
        loading.find("bad.py")

    assert str(caught.value).startswith(said)


def test_a_spider_that_exits_in_its_constructor_is_named():
    write(
        "bad.py",
        "import sys\n" + SPIDER.format(name="bad", kind="Bad") + "\n    def __init__(self):\n"
        "        sys.exit(5)\n",
    )

    with pytest.raises(SpiderError, match=r"bad\.py, line \d+: it exits while loading"):
        loading.make(loading.find("bad.py"), [])


def test_a_relative_import_in_a_file_is_told_the_ways_out():
    write("helpers.py", "x = 1\n")
    write("bad.py", "from .helpers import x\n")

    with pytest.raises(SpiderError, match=r"bad\.py, line 1: ImportError: ") as told:
        loading.find("bad.py")

    assert "`from helpers" in str(told.value)
    assert "package.module:Class" in str(told.value)


def test_an_error_in_what_the_users_file_imports_names_the_line_that_did():
    write("inner.py", "raise RuntimeError('inside')\n")
    write("bad.py", "\nimport inner\n")

    with pytest.raises(SpiderError, match=r"bad\.py, line 2: RuntimeError: inside"):
        loading.find("bad.py")


def test_a_broken_file_does_not_hide_the_others_and_says_why_when_it_is_meant():
    spider("spiders/a.py")
    write("spiders/quotes.py", "1 / 0\n")

    assert loading.find("books").name == "books"
    with pytest.raises(SpiderError, match=r"spiders/quotes\.py, line 1: ZeroDivisionError"):
        loading.find("quotes")
    with pytest.raises(SpiderError, match=r"spiders/quotes\.py cannot be loaded"):
        loading.find("other")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nowhere.py", "there is no file nowhere.py"),
        ("sub/books", "did you mean sub/books.py?"),
        ("sub/", "sub is a folder"),
        ("sub/books.py:Nope", "has no spider class 'Nope'; its spiders: Books"),
        ("nowhere.at_all:Books", "there is no module 'nowhere'"),
        ("sub.nowhere:Books", "there is no module 'sub.nowhere'"),
        ("json:JSONDecoder", "has no spider class 'JSONDecoder'; it has no spider"),
        ("sub.books", "'sub.books' names no spider"),
        (":Books", "is not a module name"),
        ("", "'' names no spider"),
        ("../../etc/passwd", "there is no file ../../etc/passwd"),
    ],
)
def test_what_names_no_spider_says_so(text, said):
    spider("sub/books.py")

    with pytest.raises(SpiderError) as caught:
        loading.find(text)

    assert said in str(caught.value)


def test_a_spider_may_import_what_lies_beside_it_and_shadows_no_library():
    write("sub/prices_of_ours.py", "CURRENCY = 'EUR'\n")
    code = "from prices_of_ours import CURRENCY\n" + SPIDER.format(name="queue", kind="Queue")
    write("sub/queue.py", code)

    assert loading.find("sub/queue.py").name == "queue"
    assert hasattr(__import__("queue"), "SimpleQueue")


def test_a_bare_name_needs_no_spider_to_look_at_what_it_left():
    spider("sub/books.py")

    assert loading.name_of("gone") == "gone"
    assert loading.name_of("sub/books.py") == "books"


def test_listing_shows_what_cannot_be_loaded_beside_what_can():
    spider("spiders/a.py")
    spider("spiders/_private.py", "hidden")
    write("spiders/bad.py", "1 / 0\n")

    first, second = loading.listed()

    assert isinstance(first, ListedSpider)
    assert (first.name, first.reference) == ("books", "spiders/a.py:Books")
    assert isinstance(second, BrokenFile)
    assert "ZeroDivisionError" in str(second.error)


def test_arguments_reach_the_constructor():
    spider("books.py")

    made = loading.make(loading.find("books.py"), ["shelf=top", "note=a=b"])

    assert (made.shelf, made.note) == ("top", "a=b")


@pytest.mark.parametrize(
    ("body", "arguments", "said"),
    [
        ("", ["shelf"], "-a takes NAME=VALUE, not 'shelf'"),
        ("", ["parse=x"], "-a parse=... cannot be set"),
        ("    def __init__(self, shelf): super().__init__()\n", [], "missing a required argument"),
        (
            "    def __init__(self): super().__init__()\n",
            ["x=1"],
            "unexpected keyword argument 'x'",
        ),
        (
            "    def __init__(self): int('x')\n",
            [],
            "books.py, line 10: ValueError: invalid literal",
        ),
        ("    start_urls = 'http://example.com/'\n", [], "start_urls is a single text"),
    ],
)
def test_a_spider_that_cannot_be_made_says_why(body, arguments, said):
    write("books.py", SPIDER.format(name="books", kind="Books") + body)

    with pytest.raises(UsageError) as caught:
        loading.make(loading.find("books.py"), arguments)

    assert said in str(caught.value)
