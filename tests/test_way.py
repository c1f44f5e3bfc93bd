"""The way of one URL stays short.

To reach: 55 modules, 260 functions, 900 calls and 450 switches between modules. A change that
shortens the way lowers `LIMITS`; `python -m tests.support.way` prints the way and its counts.
"""

from pathlib import Path

import pytest

from tests.support.way import counts, walked

pytestmark = pytest.mark.quick

#: Counts of today, and one in fifty for timers and watches that meet every page.
LIMITS = {"modules": 96, "functions": 540, "calls": 1165, "switches": 710}
#: To tell which module came in. A module that is gone may stay in this list.
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

    assert {"crawl.coordinator", "crawl.committer", "model.urls", "ledger.sqlite.tasks"} <= modules
