"""The tool that lists the protections of a file that no test misses."""

import subprocess
import sys
from pathlib import Path

_SHOP = """
def price(text):
    if not text:
        return 0
    return min(int(text), 100)
"""
_TESTS = """
import shop

def test_a_price():
    assert shop.price("") == 0
    assert shop.price("5") == 5
"""


def test_a_protection_without_a_test_is_listed(tmp_path: Path):
    (tmp_path / "shop.py").write_text(_SHOP)
    (tmp_path / "test_shop.py").write_text(_TESTS)

    done = subprocess.run(
        [sys.executable, "-m", "tests.support.protections", tmp_path / "shop.py", tmp_path],
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.splitlines()[:2] == [
        "   5 only `int(text)`: min(int(text), 100) (1 of 1 tests)",
        "4 protections, 1 that no test misses",
    ]
