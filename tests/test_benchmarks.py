"""Checks of the benchmarks without running them."""

import importlib
from pathlib import Path

import pytest

from tests.benchmarks.allowed import Limits, least_seconds

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    "name", [path.stem for path in Path(__file__).parent.glob("benchmarks/[!_]*.py")]
)
def test_a_benchmark_finds_all_that_it_imports(name: str):
    """No other test runs the benchmarks."""
    importlib.import_module(f"tests.benchmarks.{name}")


def test_a_crawl_takes_at_least_what_its_limits_make_of_the_latencies():
    """robots.txt, the first page with the links, and the four others."""
    one_by_one = Limits(slots=10, per_host=1, delay=0.0)
    at_once = Limits(slots=10, per_host=4, delay=0.0)
    slowly = Limits(slots=10, per_host=4, delay=0.0, slow_start=True)
    apart = Limits(slots=10, per_host=4, delay=1.0)

    assert least_seconds([0.1], pages=5, limits=one_by_one) == pytest.approx(0.6)
    assert least_seconds([0.1], pages=5, limits=at_once) == pytest.approx(0.3)
    assert least_seconds([0.1], pages=5, limits=slowly) == pytest.approx(0.4)
    assert least_seconds([0.1, 0.1], pages=5, limits=apart) == pytest.approx(5.1)
