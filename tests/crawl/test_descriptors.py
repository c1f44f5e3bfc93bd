"""HOSTILE 1.18: a crawl that would run out of file descriptors does not begin."""

import resource
import sys
from pathlib import Path

import pytest

from crawlcw.crawl.control import secure_descriptors
from crawlcw.errors import SettingsError
from tests.support.programs import run_to_end

_SPIDER = """
from crawlcw import Spider

class Pages(Spider):
    name = "pages"
    start_urls = ["http://127.0.0.1:9/"]

    def parse(self, response):
        pass
"""


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, int]]:
    """The limits of this process, in place of the real ones."""
    kept = {"now": (1024, 4096)}

    def setrlimit(_kind: int, wanted: tuple[int, int]) -> None:
        if wanted[0] > kept["now"][1]:
            raise ValueError("current limit exceeds maximum limit")
        kept["now"] = wanted

    monkeypatch.setattr(resource, "getrlimit", lambda _kind: kept["now"])
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    return kept


@pytest.mark.quick
def test_a_limit_that_is_high_enough_is_left_alone(limits: dict[str, tuple[int, int]]) -> None:
    secure_descriptors(100)

    assert limits["now"] == (1024, 4096)


@pytest.mark.quick
def test_a_limit_that_is_too_low_is_raised(limits: dict[str, tuple[int, int]]) -> None:
    secure_descriptors(1000)

    assert limits["now"] == (2 * (1000 + 150), 4096)


@pytest.mark.quick
def test_a_limit_that_cannot_be_raised_is_an_error(limits: dict[str, tuple[int, int]]) -> None:
    with pytest.raises(SettingsError, match=r"concurrency=2000 needs 4,300 .* allows 4,096"):
        secure_descriptors(2000)

    assert limits["now"] == (1024, 4096)


def test_run_says_so_in_one_sentence_and_exits_with_2(tmp_path: Path) -> None:
    spider = tmp_path / "pages.py"
    spider.write_text(_SPIDER)
    run = [sys.executable, "-m", "crawlcw", "run", str(spider), "--concurrency", "1000"]

    ended = run_to_end(
        ["/bin/sh", "-c", 'ulimit -n 1024; exec "$@"', "sh", *run], folder=tmp_path, within=30
    )

    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "concurrency=1000 needs 2,300 file descriptors" in ended.stderr
    assert not (tmp_path / ".crawlcw").exists()
