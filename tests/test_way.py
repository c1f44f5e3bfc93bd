"""The way of one URL stays short.

A change that shortens the way lowers `LIMITS`; `python -m tests.support.way` prints the way and its
counts.
"""

import re
from pathlib import Path

import pytest

from tests.support.docs import REPOSITORY
from tests.support.way import counts, lines_to_read, walked

pytestmark = pytest.mark.quick

#: Current counts, and one in fifty more for timers and watches during a page.
LIMITS = {"modules": 55, "functions": 260, "calls": 600, "switches": 400}
#: Lines of `crawl` that a reader opens to follow a page from the coordinator to its commit.
MOST_LINES = 1_500
#: Known modules, to name new ones in a failure. Removed modules may stay in this list.
KNOWN = Path(__file__).parent / "support" / "way_modules.txt"


def test_one_page_passes_few_modules_functions_and_calls():
    ways = walked()

    found = counts(ways)
    excess = {name: count for name, count in found.items() if count > LIMITS[name]}
    shortest = min((way.modules for way in ways), key=len)
    came_in = sorted(shortest - set(KNOWN.read_text().split()))
    assert not excess, f"{found}, the limits are {LIMITS}; modules that came in: {came_in}"


def test_the_way_of_a_page_is_seen_whole():
    modules = set.union(*(way.modules for way in walked()))

    assert {"crawl.coordinator", "crawl.committer", "model.urls", "ledger.sql.tasks"} <= modules


def test_who_follows_a_page_through_the_crawl_reads_few_lines():
    files = min((lines_to_read(way, "crawl") for way in walked()), key=lambda f: sum(f.values()))

    assert sum(files.values()) <= MOST_LINES, files


def test_the_way_in_the_architecture_leads_to_files():
    page = REPOSITORY / "crawlcw" / "ARCHITECTURE.md"
    way = page.read_text().partition("## The way of one URL")[2].partition("\n## ")[0]
    links = re.findall(r"\]\(([^)]+\.py)\)", way)

    assert len(links) >= 5
    assert [link for link in links if not (page.parent / link).is_file()] == []
