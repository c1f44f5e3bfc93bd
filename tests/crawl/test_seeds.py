"""What a spider starts with, as it is told apart, and whether a crawl goes deeper than the last."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from crawlcw import Request, Spider
from crawlcw.crawl.seeds import Seeds, fingerprint, is_deeper
from tests.support.docs import REPOSITORY

WORDS = ["a", "b"]


class Plain(Spider):
    name = "plain"
    start_urls = ["http://a.example/"]
    kinds = {"x", "y"}

    def parse(self, response):
        yield {"n": 1}


def helped(word: str) -> str:
    return f"http://a.example/{word}"


class Words(Spider):
    name = "words"

    async def start(self):
        for word in WORDS:
            yield Request(self.address(helped(word)))

    @staticmethod
    def address(word: str) -> str:
        return word

    def parse(self, response):
        yield {"n": 1}


def test_the_same_spider_has_the_same_fingerprint_in_every_process():
    spiders = "Plain(region='x'), Words()"
    code = f"from tests.crawl.test_seeds import *; print(*map(fingerprint, [{spiders}]))"

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


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setattr(sys.modules[__name__], "WORDS", ["a", "c"]),
        lambda patch: patch.setattr(sys.modules[__name__], "helped", lambda word: word),
        lambda patch: patch.setattr(Words, "address", staticmethod(lambda word: word + "/")),
        lambda patch: patch.setattr(Words, "start", OtherStart.start),
        lambda patch: patch.setattr(Words, "pages", 3, raising=False),
    ],
    ids=["a global", "a function", "a method", "start", "an attribute"],
)
def test_what_the_code_of_start_reaches_is_part_of_it(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[pytest.MonkeyPatch], None]
):
    before = fingerprint(Words())

    change(monkeypatch)

    assert fingerprint(Words()) != before


def test_what_only_callbacks_do_is_no_part_of_it(monkeypatch: pytest.MonkeyPatch):
    before = fingerprint(Words())

    monkeypatch.setattr(Words, "parse", lambda self, response: {"n": 2})

    assert fingerprint(Words()) == before


def test_an_argument_that_is_no_plain_value_has_no_fingerprint():
    class Given(Plain):
        def __init__(self, connection: Any) -> None:
            super().__init__()

    assert fingerprint(Given(connection=object())) is None
    assert fingerprint(Given(connection="postgres://")) is not None
    assert fingerprint(Given(connection={"a": [1, (2.5, None)], "b": {b"x"}})) is not None
    assert fingerprint(Given(connection={"a": {object()}})) is None


def test_seeds_come_back_from_their_document():
    seeds = Seeds(fingerprint="f", hosts=frozenset({"b.example", "a.example"}))

    assert Seeds.read(seeds.document()) == seeds
    assert Seeds.read(None) is None


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
