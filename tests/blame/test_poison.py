"""Pages that kill their process, and processes that are killed: who pays for it.

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

from crawlcw.cli.exit_codes import INTERNAL
from crawlcw.model.task import Status
from tests.blame.crawl_command import Command, children_of, crawlcw
from tests.faults.scenario import crawled_without_faults, examined, items_of, without
from tests.support import docs
from tests.support.crawl_process import Store, wait_until
from tests.support.docs import Site

pytestmark = pytest.mark.thorough

#: Pages that others link to as well, and whose links are all on others too.
POISON = ("/sql-select.html", "/sql-selectinto.html", "/app-psql.html")
MANY = (
    *POISON,
    *("/sql-insert.html", "/sql-update.html", "/sql-delete.html", "/sql-copy.html"),
    *("/sql-grant.html", "/sql-revoke.html", "/sql-analyze.html"),
)
#: Of the small site.
LEAVES = 40
LEAF = ("/7.html",)
CONVICTED_WITHIN = 30.0


@pytest.fixture
def store(ledger_url: str) -> Store:
    return Store(ledger_url)


@pytest.fixture
def crawl(store: Store, tmp_path: Path, processes) -> Callable[..., Command]:
    """Start `crawlcw run` of the documentation."""

    def crawl(site: Site, *options: str, **arguments: str) -> Command:
        given = [f"-a{name}={value}" for name, value in arguments.items()]
        return processes.enter_context(
            Command(
                tmp_path,
                f"{docs.REPOSITORY}/tests/blame/poison_spider.py",
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
    """A site of one page that links to all others, which link to nothing."""
    folder = tmp_path_factory.mktemp("star")
    leaves = [f"{number}.html" for number in range(LEAVES)]
    links = "".join(f'<a href="{leaf}">{leaf}</a>' for leaf in leaves)
    (folder / "index.html").write_text(f"<title>all</title>{links}")
    for leaf in leaves:
        (folder / leaf).write_text(f"<title>{leaf}</title>")
    return folder


@pytest.fixture(scope="module")
def star(star_folder: Path) -> Iterator[Site]:
    with docs.served(star_folder) as site:
        yield site


@pytest.fixture(scope="module")
def faultless(site: Site, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The items of a crawl to which nothing happened."""
    return crawled_without_faults(site, tmp_path_factory.mktemp("faultless"))


def assert_nothing_innocent_is_lost(
    store: Store, faultless: bytes, *, poison: tuple[str, ...] = ()
) -> None:
    walked = docs.walked("postgresql")
    assert_all_ended(store, walked.found, walked.refused | {*poison})
    assert items_of(store.url) == without(faultless, poison)


def assert_all_ended(store: Store, found: Collection[str], ignored: Collection[str]) -> None:
    rows = store.rows()
    assert {row.path for row in rows} == {*found, *ignored}
    assert {row.path for row in rows if row.status == Status.IGNORED} == set(ignored)
    assert [row for row in rows if row.lock is not None] == []
    report = examined(store.url, max_retry=3, max_lost=5)
    assert report.clean, report.findings


@pytest.mark.representative("mongodb-kill")
@pytest.mark.parametrize("how", ["exit-0", "exit-2", "exit-70", "segfault", "kill", "memory"])
def test_a_page_that_kills_its_process_is_convicted_with_no_hand_at_the_keyboard(
    how: str, store: Store, star: Site, crawl: Callable[..., Command]
):
    began = datetime.now(UTC)

    crawling = crawl(star, how=how, pages=LEAF[0])
    code, report = crawling.end()

    pages = {"/index.html", *(f"/{number}.html" for number in range(LEAVES))}
    assert_all_ended(store, pages, LEAF)
    assert report["finish_reason"] == "drained", crawling.log
    assert report["failures"] == {"crashed-worker": 1}
    assert code == 0, crawling.log
    assert len(crawling.events("worker_crashed")) == 1
    (conviction,) = crawling.events("convicted")
    assert HOW[how] in conviction["message"]
    took = (datetime.fromisoformat(conviction["time"]) - began).total_seconds()
    assert took < CONVICTED_WITHIN
    print(f"{how}: convicted after {took:.1f} s")


HOW = {
    "exit-0": "exit code 0",
    "exit-2": "exit code 2",
    "exit-70": "exit code 70",
    "segfault": "signal 11, Segmentation fault",
    "kill": "signal 9, Killed",
    "memory": "signal 6, Aborted",
}


@pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
def test_many_pages_that_kill_their_process_need_nobodys_hand(
    store: Store, site: Site, crawl: Callable[..., Command], faultless: bytes
):
    crawling = crawl(site, how="exit-9", pages=",".join(MANY))
    _, report = crawling.end()

    assert_nothing_innocent_is_lost(store, faultless, poison=MANY)
    assert report["failures"] == {"crashed-worker": len(MANY)}
    assert crawling.events("worker_down") == []
    print(f"{len(MANY)} pages, {len(crawling.events('worker_crashed'))} crashes")


def test_a_convicted_page_that_is_brought_back_kills_no_worker(
    store: Store, site: Site, crawl: Callable[..., Command], faultless: bytes
):
    crawl(site, how="kill", pages=POISON[0]).end()

    spider = f"{docs.REPOSITORY}/tests/blame/poison_spider.py"
    crawlcw("retry-failed", spider, "--ledger", store.url)
    again = crawl(site, how="kill", pages=POISON[0])
    again.end()

    assert_nothing_innocent_is_lost(store, faultless, poison=POISON[:1])
    assert again.events("worker_crashed") == []
    assert len(again.events("convicted")) == 1


def test_a_page_that_killed_its_process_once_is_recorded(
    store: Store, site: Site, crawl: Callable[..., Command], faultless: bytes
):
    crawl(site, how="kill", pages=POISON[0], times="2").end()

    assert_nothing_innocent_is_lost(store, faultless)


def test_the_death_of_the_parent_convicts_nobody(
    store: Store, site: Site, crawl: Callable[..., Command], faultless: bytes
):
    crawling = crawl(site, how="parent", pages=POISON[0], times="4")
    crawling.end()

    assert_nothing_innocent_is_lost(store, faultless)
    # The first as it had no child yet, the others while a child was at work.
    assert len(crawling.events("worker_crashed")) == 4


def _kinds() -> Iterator[Any]:
    """Which ledger, who is killed, of how many workers: two kinds, and all with `--soak`."""
    for kind in itertools.product(("sqlite", "mongodb"), ("workers", "group"), (1, 2)):
        usual = kind in [("sqlite", "workers", 1), ("mongodb", "group", 2)]
        for seed in range(20):
            yield pytest.param(*kind, seed, marks=() if usual and not seed else pytest.mark.soak)


@pytest.mark.parametrize(
    ("ledger_url", "victims", "number", "seed"), [*_kinds()], indirect=["ledger_url"]
)
@pytest.mark.timeout(600)
def test_no_innocent_page_is_given_up_for_kills_at_random_moments(
    victims: str,
    number: int,
    seed: int,
    store: Store,
    crawl: Callable[..., Command],
    faultless: bytes,
    request: pytest.FixtureRequest,
):
    kills = 30 if request.config.getoption("--soak", default=False) else 6
    chance = random.Random(seed)
    latency, shortest, longest = (20, 0.3, 0.8) if seed % 2 else (40, 0.6, 1.3)
    killed = 0
    with docs.served(docs.folder("postgresql"), latency=latency) as slow:
        crawling = crawl(slow, "--processes", str(number))
        while crawling.is_running() and killed < kills:
            wait_until(_at_work(slow, crawling))
            time.sleep(chance.uniform(0.0, longest - shortest))
            if victims == "group":
                crawling.kill_all()
                killed += 1
                crawling = crawl(slow, "--processes", str(number))
            elif pids := children_of(crawling.pid):
                # Any worker, or what works on a suspect for one.
                with suppress(ProcessLookupError):
                    os.kill(chance.choice(pids), signal.SIGKILL)
                    killed += 1
        slow.heal()
        # A crawl of a thousand pages, on a machine that may have as much else to do.
        code, _ = crawling.end(within=400)
        if code == INTERNAL:
            # Its workers were killed five times before they had finished anything.
            code, _ = crawl(slow, "--processes", str(number)).end()

    assert code == 0, crawling.log
    assert_nothing_innocent_is_lost(store, faultless)
    suspects = sum(row.fence > 1 for row in store.rows())
    print(f"seed {seed}: {killed} kills, {suspects} of {len(store.rows())} tasks claimed again")


def _at_work(site: Site, crawl: Command) -> Callable[[], bool]:
    hits = site.hits().total()
    return lambda: site.hits().total() > hits or not crawl.is_running()
