"""Fixtures for every test: a clock, a MongoDB, and the ledgers on each store."""

import gc
import itertools
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from crawlcw.ledger.protocol import Ledger
from tests.support import docs, driver_sockets, ledgers, mongod, needed, postgres
from tests.support.ledgers import BACKENDS, FakeClock, LedgerFactory

# Tests must not use the proxies of this machine's environment.
for _name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
    os.environ.pop(_name, None)
    os.environ.pop(_name.upper(), None)

# On a busy machine the time of an example says nothing of the tested code.
settings.register_profile("crawlcw", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("crawlcw")

_numbers = itertools.count()


def pytest_addoption(parser: pytest.Parser) -> None:
    # Here and not in tests/faults: pytest reads the options of a conftest.py in a
    # subfolder too late.
    parser.addoption(
        "--soak",
        action="store_true",
        help="let the tests with faults (tests/faults) last longer: more kills, longer pauses",
    )
    parser.addoption(
        "--all",
        action="store_true",
        help="run the thorough tests as well; those of files that are named always run",
    )
    parser.addoption(
        "--rest",
        action="store_true",
        help="run only what is left out without --all",
    )
    parser.addoption(
        "--within",
        type=float,
        metavar="MINUTES",
        help="begin no test later than that; each commit begins with other files",
    )


#: Folders of quick tests: with `-m quick`, no others are imported.
_QUICK = ("model", "api", "engine", "crawl", "items", "ledger", "scrapy", "tests")
#: A file with this line, and without representatives, is imported with `--all` only.
_ALL_LEFT_OUT = "\npytestmark = pytest.mark.thorough\n"
_CHOICE = pytest.StashKey[str]()
_LIMIT = pytest.StashKey["Limit | None"]()


@dataclass(frozen=True, slots=True)
class Limit:
    """The time limit for starting tests, and the seed for the order of their files."""

    minutes: float
    until: float  #: a `time.time()`, the same for all processes
    seed: str


def limit_of(minutes: float | None) -> Limit | None:
    if minutes is None:
        return None
    commit = ["git", "rev-parse", "HEAD"]
    seed = subprocess.run(commit, capture_output=True, text=True, check=False).stdout
    return Limit(minutes, time.time() + 60 * minutes, seed)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Without named files, choose the tests, and use several processes: most tests wait."""
    if hasattr(config, "workerinput"):
        config.stash[_CHOICE] = config.workerinput["choice"]
        limit = config.workerinput["limit"]
        config.stash[_LIMIT] = limit and Limit(*limit)
        return
    config.stash[_LIMIT] = limit_of(config.option.within)
    everywhere = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    usual = "representatives" if everywhere and not config.option.all else "all"
    config.stash[_CHOICE] = "rest" if config.option.rest else usual
    if everywhere and config.option.numprocesses is None and not config.option.usepdb:
        # Two thorough tests keep a machine with two cores busy.
        config.option.numprocesses = 5 if config.stash[_CHOICE] == "representatives" else 2
        config.option.dist = "loadfile"


def pytest_configure(config: pytest.Config) -> None:
    # Python would look for garbage among a million objects that all stay.
    gc.disable()
    _keep_bytecode(config)
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        _compile_tests(config)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Let no search for garbage pass the collected tests and their modules again.

    That would take a tenth of the time of all tests.
    """
    gc.freeze()
    gc.enable()


def _keep_bytecode(config: pytest.Config) -> None:
    """Keep bytecode for the tests and their hundreds of processes, even if that is switched off.

    Without it, a third of a command's time is spent on compiling the same modules.
    """
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        kept = str(config.cache.mkdir("bytecode"))
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = kept
        sys.dont_write_bytecode = False


def _compile_tests(config: pytest.Config) -> None:
    """Compile the tests once, before several processes would each compile all of them.

    With pytest's assertions, that takes three times as long as collecting them.
    """
    if config.cache.get("crawlcw/compiled", None) == sys.version:
        return
    folders = sorted(each for each in Path(__file__).parent.iterdir() if each.is_dir())
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n0"]
    halves = [
        subprocess.Popen([*collect, *map(str, half)], stdout=subprocess.DEVNULL)
        for half in (folders[::2], folders[1::2])
    ]
    for half in halves:
        half.wait()
    config.cache.set("crawlcw/compiled", sys.version)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the options to each process of xdist, which has other arguments."""
    node.workerinput["choice"] = node.config.stash[_CHOICE]
    limit = node.config.stash[_LIMIT]
    node.workerinput["limit"] = limit and astuple(limit)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect thorough tests except their representatives, or, with --rest, all others."""
    chosen = items
    if not config.option.soak:
        chosen = [item for item in chosen if item.get_closest_marker("soak") is None]
    if (choice := config.stash[_CHOICE]) != "all":
        chosen = [item for item in chosen if is_left_out(item) == (choice == "rest")]
    config.hook.pytest_deselected(items=list(set(items) - set(chosen)))
    if limit := config.stash[_LIMIT]:
        files = sorted({item.path for item in chosen})
        random.Random(limit.seed).shuffle(files)
        order = {file: place for place, file in enumerate(files)}
        chosen = sorted(chosen, key=lambda item: order[item.path])
    items[:] = chosen


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path.suffix != ".py":
        return None
    text = collection_path.read_text()
    is_whole = _ALL_LEFT_OUT in text and "mark.representative" not in text
    if is_whole and config.stash[_CHOICE] == "representatives":
        return True
    if config.option.markexpr != "quick":
        return None
    is_quick = collection_path.parent.name in _QUICK and (
        "mark.quick" in text or "_contract" in collection_path.name
    )
    return None if is_quick or not collection_path.name.startswith("test_") else True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    limit = item.config.stash[_LIMIT]
    if limit and time.time() > limit.until:
        pytest.skip(f"not begun within {limit.minutes:g} minutes: another commit begins with it")


def is_left_out(item: pytest.Item) -> bool:
    """Return whether a test is for `--all` only.

    `representative("sqlite", "kill")` keeps the cases of a test whose ids have all of
    these words.
    """
    if item.get_closest_marker("thorough") is None:
        return False
    chosen = item.get_closest_marker("representative")
    return chosen is None or not all(word in item.name for word in chosen.args)


def pytest_report_header() -> str:
    found = mongod.find()
    return f"mongodb: {found.source if found else mongod.MISSING}"


@pytest.fixture(scope="session", autouse=True)
def driver_sockets_closed() -> Iterator[None]:
    """No socket of MongoDB's driver is left to the garbage collector.

    For each test: many have a server of their own, and their clients end with it.
    """
    with driver_sockets.closed_when_cancelled():
        yield


@pytest.fixture(scope="session")
def mongodb_uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real MongoDB server."""
    try:
        with mongod.running(tmp_path_factory.mktemp("mongod")) as uri:
            yield uri
    except mongod.MongodMissingError as error:
        needed.lack(str(error))


@pytest.fixture
def database_name(mongodb_uri: str) -> Iterator[str]:
    """A new database, dropped after the test."""
    name = f"crawlcw_test_{os.getpid()}_{next(_numbers)}"
    yield name
    ledgers.drop_database(mongodb_uri, name)


@pytest.fixture(scope="session")
def shared_database(mongodb_uri: str) -> Iterator[str]:
    """A database that the tests of this process share."""
    name = f"crawlcw_test_{os.getpid()}_shared"
    yield name
    ledgers.drop_database(mongodb_uri, name)


@pytest.fixture
def emptied_database(mongodb_uri: str, shared_database: str) -> Iterator[str]:
    """The shared database, for tests that do not check its creation; emptied after the test."""
    yield shared_database
    ledgers.empty_database(mongodb_uri, shared_database)


@pytest.fixture(scope="session")
def postgres_databases() -> Iterator[Callable[[str], str]]:
    """The function that makes a database on a real PostgreSQL and returns its URL."""
    needed.module("psycopg", extra="postgres")
    # Only their owner may enter the folders of pytest, and the server has another user.
    with (
        tempfile.TemporaryDirectory() as folder,
        # What survives a crash is tested on servers of those tests' own.
        postgres.running(Path(folder) / "server", fsync=False) as make,
    ):
        yield make


@pytest.fixture(scope="session")
def shared_postgres(postgres_databases: Callable[[str], str]) -> str:
    """A database that the tests of this process share."""
    return postgres_databases("shared")


@pytest.fixture
def emptied_postgres(shared_postgres: str) -> Iterator[str]:
    """The database for a test that does not ask how its ledger was made; emptied afterwards."""
    yield shared_postgres
    ledgers.empty_postgres(shared_postgres)


@pytest.fixture
def postgres_url(postgres_databases: Callable[[str], str]) -> Iterator[str]:
    """A database of this test's own."""
    url = postgres_databases(f"crawlcw_test_{next(_numbers)}")
    yield url
    ledgers.drop_postgres(url)


@pytest.fixture(scope="session")
def durable_postgres() -> Iterator[Callable[[str], str]]:
    """As `postgres_databases`, on a server that syncs, as `doctor` wants it."""
    needed.module("psycopg", extra="postgres")
    with (
        tempfile.TemporaryDirectory() as folder,
        postgres.running(Path(folder) / "server") as make,
    ):
        yield make


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("mongodb", marks=pytest.mark.thorough),
        pytest.param("postgres", marks=pytest.mark.thorough),
    ]
)
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a new ledger, on each store that processes can share in turn."""
    if request.param == "postgres":
        make: Callable[[str], str] = request.getfixturevalue("durable_postgres")
        url = make(f"crawlcw_test_{next(_numbers)}")
        yield url
        ledgers.drop_postgres(url)
    else:
        yield _sqlite_or_mongodb(request, tmp_path)


@pytest.fixture(params=["sqlite", "mongodb"])
def either_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a new ledger, on each store that quick tests have."""
    return _sqlite_or_mongodb(request, tmp_path)


def _sqlite_or_mongodb(request: pytest.FixtureRequest, folder: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{folder}/ledger.db"
    uri = request.getfixturevalue("mongodb_uri")
    return mongod.with_database(uri, request.getfixturevalue("database_name"))


@pytest.fixture
def processes() -> Iterator[ExitStack]:
    """A stack that ends the processes and servers of a test."""
    with ExitStack() as ended:
        yield ended


@pytest.fixture
def serve(processes: ExitStack) -> Callable[..., docs.Site]:
    """The function that serves the manual of PostgreSQL until the end of the test."""

    def serve(**options: int) -> docs.Site:
        return processes.enter_context(docs.served(docs.folder("postgresql"), **options))

    return serve


@pytest.fixture(params=BACKENDS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LedgerFactory]:
    """A ledger with a frozen clock on each store in turn, with any number of clients."""
    opened = ledgers.on_backend(request, tmp_path)
    yield opened
    await opened.close()


@pytest.fixture
def clock(store: LedgerFactory) -> FakeClock:
    """The frozen clock of all clients of the store."""
    return store.clock


@pytest.fixture
async def ledger(store: LedgerFactory) -> Ledger:
    """One client of the store."""
    return await store.open()
