"""Every row of the hostile catalogue is named by a test or explained in the README."""

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.hostile.catalogue import ENDPOINTS, ROWS, healthy_paths
from tests.support.docs import REPOSITORY

TESTS = REPOSITORY / "tests"
OTHERWISE = TESTS / "hostile" / "README.md"
_ROW = r"\d+\.\d+(?:\s*-\s*\d+\.\d+)?"
_NAMED = re.compile(rf"HOSTILE ({_ROW}(?:(?:,| and)\s+{_ROW})*)")


def expanded(text: str) -> Iterator[str]:
    """Yield the rows that *text* names, `1.7` or `1.7-1.9`."""
    for first, last in re.findall(r"(\d+\.\d+)(?:\s*-\s*(\d+\.\d+))?", text):
        section, start = first.split(".")
        end = (last or first).split(".")[1]
        yield from (f"{section}.{row}" for row in range(int(start), int(end) + 1))


@cache
def named_by_tests() -> set[str]:
    found = {row for endpoint in ENDPOINTS for row in endpoint.rows}
    for path in TESTS.rglob("test_*.py"):
        if path == Path(__file__):
            continue
        for rows in _NAMED.findall(path.read_text()):
            found.update(expanded(rows))
    return found


def explained() -> set[str]:
    lines = (line for line in OTHERWISE.read_text().splitlines() if re.match(r"\| \d", line))
    return {row for line in lines for row in expanded(line.split("|")[1])}


@pytest.mark.parametrize("section", sorted({row.split(".")[0] for row in ROWS}))
def test_every_row_is_named_by_a_test_or_explained(section: str) -> None:
    rows = [row for row in ROWS if row.startswith(f"{section}.")]
    known = named_by_tests() | explained()

    assert [row for row in rows if row not in known] == []


def test_no_row_is_named_that_is_not_there() -> None:
    assert (named_by_tests() | explained()) - set(ROWS) == set()


def test_every_page_of_the_server_has_an_outcome_in_the_table() -> None:
    # Targets of other pages, or pages of a single test.
    besides = {"/index", "/healthy", "/robots.txt", "/ok", "/to", "/head"}
    besides |= {"/synspr%F8ve", "/synspr%C3%B8ve"}

    paths = [endpoint.path for endpoint in ENDPOINTS]
    assert len(paths) == len(set(paths))
    assert _served() - besides == set(paths)
    assert set(paths).isdisjoint(healthy_paths())


def _served() -> set[str]:
    """Return the pages of the server, without those that other tests have registered."""
    code = "from tests.hostile import server, pages; print(*pages.PAGES, sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines())
