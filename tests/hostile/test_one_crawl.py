"""One crawl of the pages of the hostile server, on one host: it drains by itself.

Pages that send bytes after their answer are left out: these may be recorded for a healthy one.
"""

from pathlib import Path
from statistics import median

import pytest

from crawlcw.model.task import Status
from tests.hostile import server
from tests.hostile.catalogue import Endpoint, crawled_endpoints, healthy_paths, quick_endpoints
from tests.hostile.crawls import Crawled, crawled
from tests.hostile.endpoints.healthy import title_of

#: Seconds that a page may take longer on a busy machine.
_NOISE = 0.03
_MOST_MEMORY = 300
_LONGEST_STALL = 0.5


def wrong(crawl: Crawled, endpoints: list[Endpoint]) -> dict[str, object]:
    """Return the pages with another outcome than in the catalogue."""
    return {
        endpoint.path: seen.outcome if seen else "not crawled"
        for endpoint in endpoints
        if (seen := crawl.tasks.get(endpoint.path)) is None or not endpoint.allows(seen.outcome)
    }


def healthy_seconds(crawl: Crawled) -> list[float]:
    """Check that all healthy pages are complete; return their times from request to end."""
    seconds = []
    for number, path in enumerate(healthy_paths()):
        seen = crawl.tasks[path]
        assert seen.outcome.status is Status.FINISHED, path
        assert (seen.title, seen.attempts) == (title_of(number), 0), path
        assert seen.elapsed is not None
        seconds.append(seen.elapsed)
    return seconds


def figures(crawl: Crawled) -> str:
    took = sorted(healthy_seconds(crawl))
    last = max(crawl.tasks[path].ended for path in healthy_paths())
    return (
        f"{len(crawl.tasks)} pages in {crawl.seconds:.1f} s, exit {crawl.code}; loop lag at most "
        f"{crawl.lag:.2f} s, {crawl.peak} MiB; a healthy page takes {median(took):.4f} s, "
        f"95 % {took[94]:.4f} s; the last one has ended after {last:.1f} s"
    )


@pytest.mark.thorough
def test_a_crawl_of_one_page_of_each_kind_ends_as_the_catalogue_says(tmp_path: Path) -> None:
    """The pages that are small and need no deadline: this takes seconds."""
    with server.in_a_process() as (port, _):
        crawl = crawled(tmp_path / "crawl", f"http://127.0.0.1:{port}/index?quick")

    print(figures(crawl))
    assert wrong(crawl, quick_endpoints()) == {}
    assert (crawl.code, crawl.report["message"]) == (0, "drained"), crawl.log[-2000:]
    assert not any(seen.poison for seen in crawl.tasks.values())


#: A fifth of the defaults: the crawl takes minutes instead of a quarter of an hour, with
#: the same outcomes.
_SHORT_DEADLINES = ("read_timeout=2s", "timeout=6s")


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(_SHORT_DEADLINES, id="short deadlines"),
        pytest.param((), id="default deadlines", marks=pytest.mark.soak),
    ],
)
def test_a_crawl_of_every_page_ends_as_the_catalogue_says_and_costs_the_others_little(
    tmp_path: Path, settings: tuple[str, ...]
) -> None:
    """24 fetchers on one host with 100 healthy pages among the others; `-s` shows figures."""
    with server.in_a_process() as (port, _):
        alone = crawled(tmp_path / "alone", f"http://127.0.0.1:{port}/index?none", *settings)
        crawl = crawled(tmp_path / "all", f"http://127.0.0.1:{port}/index?all", *settings)

    print(f"\nalone: {figures(alone)}\nall:   {figures(crawl)}")
    assert wrong(crawl, crawled_endpoints()) == {}
    assert (crawl.code, crawl.report["message"]) == (0, "drained"), crawl.log[-2000:]
    assert not any(seen.poison for seen in crawl.tasks.values())
    # Links of error pages are not followed.
    assert "/from-an-error-page" not in crawl.tasks
    assert median(healthy_seconds(crawl)) <= 1.5 * median(healthy_seconds(alone)) + _NOISE
    assert crawl.lag < _LONGEST_STALL
    assert crawl.peak < _MOST_MEMORY
