"""Tests that need optional programs: skipped without them, and failed if all are required."""

import re
from pathlib import Path

import pytest

from tests.support import needed

pytestmark = pytest.mark.quick

TESTS = Path(__file__).parent


def test_what_is_there_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(needed.VARIABLE, "1")

    assert Path(needed.program("sh")).name == "sh"
    assert needed.module("pytest", extra="test") is pytest
    assert needed.file(f"{TESTS}/test_need*.py", package="x") == Path(__file__)


@pytest.mark.parametrize(
    ("ask", "reason"),
    [
        (lambda: needed.program("no-such"), "no-such is missing: apt-get install no-such"),
        (lambda: needed.module("no_such", extra="x"), "no_such is missing: pip install -e '.[x]'"),
        (
            lambda: needed.file("/no/*/such", package="y"),
            "/no/*/such is missing: apt-get install y",
        ),
    ],
)
def test_what_is_missing_skips_a_test_or_fails_it(ask, reason: str, monkeypatch):
    monkeypatch.delenv(needed.VARIABLE, raising=False)
    with pytest.raises(pytest.skip.Exception, match=re.escape(reason)):
        ask()

    monkeypatch.setenv(needed.VARIABLE, "1")
    with pytest.raises(pytest.fail.Exception, match=re.escape(reason)):
        ask()


def test_without_a_chromium_or_its_playwright_the_browser_is_missing(monkeypatch):
    monkeypatch.delenv(needed.VARIABLE, raising=False)
    monkeypatch.setenv("PATH", "/nowhere")

    with pytest.raises(pytest.skip.Exception, match=r"Chromium|playwright"):
        needed.chromium()


def test_no_test_looks_for_such_a_thing_by_itself():
    """Exceptions: the searches for servers, the time limit in `conftest`, the right to mount."""
    own = {
        "conftest.py",
        "faults/test_disk_faults.py",
        "support/mongod.py",
        "support/needed.py",
        "support/postgres.py",
    }
    looks = re.compile(r"\b(shutil\.which|importorskip|pytest\.skip|skipif)\(")

    found = {
        str(path.relative_to(TESTS))
        for path in TESTS.rglob("*.py")
        if path.parent.name != "benchmarks" and looks.search(path.read_text())
    }

    assert found - {"test_needed.py"} == own
