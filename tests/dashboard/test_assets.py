"""The files of the page: part of the wheel, self-contained, and free of inline scripts."""

import re
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from crawlcw.dashboard.assets import assets

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "crawlcw" / "dashboard" / "static"
OWN = [each for each in sorted(STATIC.iterdir()) if not each.name.startswith("uPlot")]


def test_the_wheel_carries_every_file_of_the_page():
    carried = {each.distribution_path for each in WheelBuilder(str(ROOT)).recurse_included_files()}

    there = {f"crawlcw/dashboard/static/{each.name}" for each in STATIC.iterdir()}
    assert there
    assert there <= carried


def test_every_file_is_served_and_every_file_that_is_named_is_there():
    served = assets()
    named = {
        found
        for each in OWN
        for found in re.findall(r"""["'(](/[a-z][\w./-]*\.(?:js|css|svg))["')]""", each.read_text())
    }

    assert {f"/static/{each.name}" for each in STATIC.iterdir()} <= served.keys()
    assert "/static/page.js" in named
    assert named <= served.keys()


def test_the_charts_library_is_there_with_its_licence():
    assert "The MIT License" in (STATIC / "uPlot.LICENSE.txt").read_text()


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_no_file_takes_data_for_markup_or_asks_elsewhere(path: Path):
    text = path.read_text()

    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser"
    )
    assert not re.search(forbidden, text)
    allowed = ("http://www.w3.org/2000/svg", "https://books.toscrape.com/")
    for address in allowed:
        text = text.replace(address, "")
    assert not re.search(r"""["'(]https?://\w""", text)
    if path.suffix == ".html":
        # No inline script, style or handler: the policy would refuse them.
        assert not re.search(r"<style|style=|<script>|\son\w+=", text)
