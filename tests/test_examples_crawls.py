"""The examples of large crawls, each by the one command that its first lines name."""

from pathlib import Path

import pytest

from tests.support.examples import output_of


@pytest.mark.thorough
def test_a_crawl_goes_on_when_two_of_three_machines_die(
    ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CRAWLCW_LEDGER", ledger_url)
    (tmp_path / "empty").mkdir()

    assert output_of("machines.py", tmp_path / "empty").splitlines() == [
        "machine 1 is dead",
        "machine 2 is dead",
        "the last machine ended with 0",
        "240 books, 240 titles",
    ]


@pytest.mark.thorough
def test_a_long_list_of_urls_is_crawled_in_two_runs(tmp_path: Path):
    said = output_of("million.py", tmp_path, "400").splitlines()

    assert said == ["400 added, 0 known already", "400 of 400 products"]
