"""Pages that kill their process, and killed processes: only guilty pages lose attempts.

Each crawl is the real command, on both ledgers.
"""

import itertools
import os
import random
import signal
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from crawlcw.cli.exit_codes import INTERNAL, NOT_WELL
from crawlcw.model.task import Status
from tests.blame.code_site import Command, started
from tests.faults.scenario import crawled_without_faults, examined, items_of, without
from tests.support import docs
from tests.support.crawl_process import Store, wait_until
from tests.support.docs import Site
from tests.support.programs import children_of
from tests.support.work_process import crawlcw

pytestmark = pytest.mark.thorough

#: Pages without which the crawl still finds every other page.
POISON = ("/sql-select.html", "/sql-selectinto.html", "/app-psql.html")
#: The number of pages of the small site.
LEAVES = 40
LEAF = ("/7.html",)
#: Crashes beside other pages until a page runs alone, and crashes alone until it is given up.
BESIDE_OTHERS = 2
MAX_LOST = 5
FOUND_WITHIN = 45.0


@pytest.fixture
def store(ledger_url: str) -> Store:
    return Store(ledger_url)


@pytest.fixture
def crawl(store: Store, tmp_path: Path, processes) -> Callable[..., Command]:
    """Start `crawlcw run` of the documentation."""

    def crawl(site: Site, *options: str, spider: str = "poison", **arguments: str) -> Command:
        given = [f"-a{name}={value}" for name, value in arguments.items()]
        return processes.enter_context(
            started(
                tmp_path,
                f"{docs.REPOSITORY}/tests/blame/{spider}_spider.py",
                *("--ledger", store.url, f"-astart_url={site.start}"),
                *given,
                *options,
            )
        )

    return crawl


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with docs.served(docs.folder("postgresql")) as site:
        yield site


@pytest.fixture(scope="module")
def star_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site of one page that links to all others, which have no links."""
    return docs.star(tmp_path_factory.mktemp("star"), leaves=LEAVES)


@pytest.fixture(scope="module")
def star(star_folder: Path) -> Iterator[Site]:
    with docs.served(star_folder) as site:
        yield site


@pytest.fixture(scope="module")
def expected_items(site: Site, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The items of an undisturbed crawl."""
    return crawled_without_faults(site, tmp_path_factory.mktemp("expected_items"))


def assert_nothing_innocent_is_lost(
    store: Store, expected_items: bytes, *, poison: tuple[str, ...] = ()
) -> None:
    walked = docs.walked("postgresql")
    assert_all_ended(store, walked.found, walked.refused | {*poison})
    assert items_of(store.url) == without(expected_items, poison)


def given_up(crawling: Command) -> list[dict[str, Any]]:
    """Return the log records of pages that were given up because they killed workers."""
    ends = crawling.records("given_up")
    return [each for each in ends if each["reason"] == "crashed-worker"]


def assert_all_ended(store: Store, found: Collection[str], ignored: Collection[str]) -> None:
    rows = store.rows()
    assert {row.path for row in rows} == {*found, *ignored}
    assert {row.path for row in rows if row.status == Status.IGNORED} == set(ignored)
    assert [row for row in rows if row.lock is not None] == []
    assert [row for row in rows if row.retry > 3 or row.lost > 5] == []
    report = examined(store.url)
    assert report.is_clean, report.findings


@pytest.mark.representative("mongodb-kill")
@pytest.mark.parametrize("how", ["exit-0", "exit-2", "exit-70", "segfault", "kill", "memory"])
def test_a_page_that_kills_its_process_is_found_with_no_hand_at_the_keyboard(
    how: str, store: Store, star: Site, crawl: Callable[..., Command]
):
    began = datetime.now(UTC)

    crawling = crawl(star, spider="hurried_poison", how=how, pages=LEAF[0])
    code, report = crawling.end()

    pages = {"/index.html", *(f"/{number}.html" for number in range(LEAVES))}
    assert_all_ended(store, pages, LEAF)
    assert report["finish_reason"] == "drained", crawling.log
    assert [row.lost for row in store.rows() if row.lost] == [MAX_LOST]
    assert code == 0, crawling.log
    crashes = crawling.records("worker_crashed")
    assert len(crashes) == BESIDE_OTHERS + MAX_LOST
    assert all(HOW[how] in crash["message"] for crash in crashes)
    (end,) = given_up(crawling)
    took = (datetime.fromisoformat(end["time"]) - began).total_seconds()
    assert took < FOUND_WITHIN
    print(f"{how}: found after {took:.1f} s")


HOW = {
    "exit-0": "exit code 0",
    "exit-2": "exit code 2",
    "exit-70": "exit code 70",
    "segfault": "signal 11, Segmentation fault",
    "kill": "signal 9, Killed",
    "memory": "signal 6, Aborted",
}


@pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
@pytest.mark.timeout(300)
def test_several_pages_that_kill_their_process_need_nobodys_hand(
    store: Store, site: Site, crawl: Callable[..., Command], expected_items: bytes
):
    crawling = crawl(site, how="exit-9", pages=",".join(POISON))
    code, _ = crawling.end(within=240)

    assert code == 0, crawling.log
    assert_nothing_innocent_is_lost(store, expected_items, poison=POISON)
    assert [row.lost for row in store.rows() if row.lost] == [MAX_LOST] * len(POISON)
    assert crawling.records("worker_down") == []
    print(f"{len(POISON)} pages, {len(crawling.records('worker_crashed'))} crashes")


@pytest.mark.parametrize("processes_", [1, 2])
def test_a_start_page_that_kills_its_process_is_found(
    processes_: int, store: Store, star: Site, crawl: Callable[..., Command]
):
    """No page is ever finished, but the workers are still restarted."""
    options = ("--processes", str(processes_))
    crawling = crawl(star, *options, how="kill", pages="/index.html")
    code, report = crawling.end()

    assert_all_ended(store, {"/index.html"}, {"/index.html"})
    assert report["faults"] == "nothing was finished"
    assert code == NOT_WELL, crawling.log
    assert len(given_up(crawling)) == 1


def test_a_page_that_is_brought_back_is_alone_from_the_beginning(
    store: Store, site: Site, crawl: Callable[..., Command], expected_items: bytes
):
    crawl(site, how="kill", pages=POISON[0]).end()

    spider = f"{docs.REPOSITORY}/tests/blame/poison_spider.py"
    assert crawlcw("retry-failed", spider, "--ledger", store.url).returncode == 0
    again = crawl(site, how="kill", pages=POISON[0])
    again.end()

    assert_nothing_innocent_is_lost(store, expected_items, poison=POISON[:1])
    assert len(again.records("worker_crashed")) == MAX_LOST
    assert len(given_up(again)) == 1


def test_a_page_that_killed_its_process_some_times_is_recorded(
    store: Store, site: Site, crawl: Callable[..., Command], expected_items: bytes
):
    times = BESIDE_OTHERS + MAX_LOST - 1
    crawling = crawl(site, how="kill", pages=POISON[0], times=str(times))
    crawling.end()

    assert_nothing_innocent_is_lost(store, expected_items)
    assert len(crawling.records("worker_crashed")) == times


@pytest.mark.representative("sqlite")
def test_one_kill_of_everything_lets_no_page_run_alone(
    store: Store, star_folder: Path, crawl: Callable[..., Command]
):
    with docs.served(star_folder, latency=100) as slow:
        killed = crawl(slow)
        wait_until(_at_work(slow, killed))
        wait_until(lambda: any(row.lock is not None for row in store.rows()))
        killed.kill_all()
        code, _ = crawl(slow).end()

    assert code == 0
    rows = store.rows()
    assert any(row.fence > 1 for row in rows)
    assert {(row.lost, row.quarantine_fence) for row in rows} == {(0, None)}


def _kinds() -> Iterator[Any]:
    """Yield the store, the victims, the number of workers, poison or not, kills, and seed."""
    yield pytest.param("sqlite", "group", 1, False, 6, 0, id="sqlite-6")
    stores, victims = ("sqlite", "mongodb"), ("group", "workers")
    for kind in itertools.product(stores, victims, (1, 2), (False, True)):
        for seed in range(10):
            # One for each store and number of workers; all with `--soak`.
            usual = kind in [
                ("sqlite", "group", 1, False),
                ("sqlite", "group", 2, True),
                ("sqlite", "workers", 1, False),
                ("mongodb", "group", 1, True),
                ("mongodb", "group", 2, False),
            ]
            marks = () if usual and not seed else pytest.mark.soak
            yield pytest.param(*kind, 30, seed, marks=marks)


@pytest.mark.parametrize(
    ("ledger_url", "victims", "number", "poisoned", "kills", "seed"),
    [*_kinds()],
    indirect=["ledger_url"],
)
@pytest.mark.timeout(600)
def test_no_innocent_page_is_given_up_for_kills_at_random_moments(
    victims: str,
    number: int,
    poisoned: bool,
    kills: int,
    seed: int,
    store: Store,
    crawl: Callable[..., Command],
    expected_items: bytes,
):
    chance = random.Random(seed)
    latency, longest = (20, 0.5) if seed % 2 else (40, 0.7)
    poison = POISON[:1] if poisoned else ()
    given = {"how": "kill", "pages": ",".join(poison)}
    killed = 0
    with docs.served(docs.folder("postgresql"), latency=latency) as slow:
        crawling = crawl(slow, "--processes", str(number), **given)
        while crawling.is_running() and killed < kills:
            wait_until(_at_work(slow, crawling))
            time.sleep(chance.uniform(0.0, longest))
            if victims == "group":
                crawling.kill_all()
                killed += 1
                crawling = crawl(slow, "--processes", str(number), **given)
            elif pids := children_of(crawling.pid):
                with suppress(ProcessLookupError):
                    os.kill(chance.choice(pids), signal.SIGKILL)
                    killed += 1
        slow.heal()
        # A crawl of a thousand pages, on a busy machine.
        code, _ = crawling.end(within=400)
        if code == INTERNAL:
            # Five workers in a row were killed before they had finished a page.
            code, _ = crawl(slow, "--processes", str(number), **given).end()

    assert code == 0, crawling.log
    assert_nothing_innocent_is_lost(store, expected_items, poison=poison)
    rows = store.rows()
    lost = [row.lost for row in rows if row.path not in poison]
    print(
        f"seed {seed}: {killed} kills, {sum(row.fence > 1 for row in rows)} of {len(rows)} tasks "
        f"claimed again, {sum(each > 0 for each in lost)} counted a loss, {max(lost)} at most"
    )


def _at_work(site: Site, crawl: Command) -> Callable[[], bool]:
    hits = site.hits().total()
    return lambda: site.hits().total() > hits or not crawl.is_running()
