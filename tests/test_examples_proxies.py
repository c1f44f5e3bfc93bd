"""The example of a crawl through proxies, run by the command in its docstring."""

from pathlib import Path

import pytest

from tests.support.examples import output_of


@pytest.mark.thorough
def test_a_crawl_whose_proxies_die_and_are_banned_finishes_every_page(tmp_path: Path):
    said = "31 pages, {} failures\nthe banned proxy was left aside: True\n"

    assert output_of("proxies.py", tmp_path) == said
