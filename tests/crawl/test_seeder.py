"""Start requests: recognition of unchanged ones, and of a crawl deeper than the last."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from crawlcw import Request, Spider
from crawlcw.cli.loading import find, make
from crawlcw.crawl.seeder import fingerprint, is_deeper
from tests.support.docs import REPOSITORY


class Plain(Spider):
    name = "plain"
    start_urls = ["http://a.example/"]
    kinds = {"x", "y"}

    def parse(self, response):
        yield {"n": 1}


def test_the_same_spider_has_the_same_fingerprint_in_every_process():
    spiders = "Plain(region='x'), OtherStart()"
    code = f"from tests.crawl.test_seeder import *; print(*map(fingerprint, [{spiders}]))"

    def told(hashing: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", code],
            cwd=REPOSITORY,
            env={"PYTHONHASHSEED": hashing, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    assert told("1") == told("2")
    assert "None" not in told("1")


class OtherPages(Plain):
    start_urls = ["http://a.example/", "http://a.example/2"]


class OtherKinds(Plain):
    kinds = {"x", "z"}


class OtherStart(Plain):
    async def start(self):
        yield Request("http://a.example/")


class YetAnother(Plain):
    async def start(self):
        yield Request("http://a.example/other")


def test_spiders_that_start_with_something_else_have_other_fingerprints():
    spiders = [
        Plain(),
        Plain(region="north"),
        Plain(region="south"),
        Plain(start_urls=["http://b.example/"]),
        OtherPages(),
        OtherKinds(),
        OtherStart(),
        YetAnother(),
    ]

    fingerprints = [fingerprint(spider) for spider in spiders]

    assert None not in fingerprints
    assert len(set(fingerprints)) == len(spiders)


SPIDER = """
from pathlib import Path

from crawlcw import Request, Spider
from crawlcw.cli.loading import find, make

WORDS = Path({words!r}).read_text().split()


class Words(Spider):
    name = "words"

    async def start(self):
        for word in WORDS:
            yield Request(f"http://a.example/{{word}}")

    def parse(self, response):
        yield {{"n": 1}}
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [("words.py", "\n# a comment"), ("words.txt", " c")],
    ids=["its source", "a file that its module reads"],
)
def test_a_change_of_a_file_that_a_spider_comes_from_changes_its_fingerprint(
    tmp_path: Path, name: str, text: str
):
    (tmp_path / "words.txt").write_text("a b")
    (tmp_path / "words.py").write_text(SPIDER.format(words=str(tmp_path / "words.txt")))
    spider = f"{tmp_path}/words.py"
    before = fingerprint(make(find(spider), ()))
    assert before == fingerprint(make(find(spider), ()))

    with (tmp_path / name).open("a") as file:
        file.write(text)

    after = fingerprint(make(find(spider), ()))
    assert None not in (before, after)
    assert after != before


def test_a_spider_without_a_source_file_has_no_fingerprint(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(sys.modules[__name__], "__file__")

    assert fingerprint(Plain()) is None


def test_an_argument_that_is_no_plain_value_has_no_fingerprint():
    class Given(Plain):
        def __init__(self, connection: Any) -> None:
            super().__init__()

    assert fingerprint(Given(connection=object())) is None
    assert fingerprint(Given(connection="postgres://")) is not None
    assert fingerprint(Given(connection={"a": [1, (2.5, None)], "b": {b"x"}})) is not None
    assert fingerprint(Given(connection={"a": {object()}})) is None


@pytest.mark.parametrize(
    ("now", "before", "deeper"),
    [
        (3, 2, True),
        (2, 2, False),
        (1, 2, False),
        (None, 2, True),
        (None, None, False),
        (2, None, False),
    ],
)
def test_no_limit_is_deeper_than_any(now: int | None, before: int | None, deeper: bool):
    assert is_deeper(now, than=before) == deeper
