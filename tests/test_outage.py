"""A MongoDB that goes away in the middle of a crawl: frozen, killed and restarted, or gone."""

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from crawlcw.task import Status
from tests import docs, mongod
from tests.crawl_process import LEDGER_UNAVAILABLE, Process, Store, wait_until
from tests.docs import Site

#: Long enough for operations to time out and be sent again, see `Server.uri`.
OUTAGE = 4.0
CONCURRENCY = 40
#: What a process holds at the most: under way, claimed ahead, and not yet written.
HELD = CONCURRENCY + 2 * CONCURRENCY + 2 * CONCURRENCY


class Server:
    """A mongod of a test's own, on one port and one folder over any number of starts."""

    def __init__(self, found: mongod.Found, folder: Path) -> None:
        assert found.binary is not None
        found.binary.chmod(found.binary.stat().st_mode | 0o100)
        self._folder = folder
        self._environment = os.environ | found.environment
        self._port = mongod._free_port()
        self._command = [str(found.binary), "--bind_ip", "127.0.0.1", "--port", str(self._port)]
        self._command += ["--dbpath", str(folder), "--logpath", str(folder / "mongod.log")]
        self._command += ["--nounixsocket", "--replSet", "tests", "--oplogSize", "64"]
        self._command += ["--wiredTigerCacheSizeGB", "0.5"]

    @property
    def uri(self) -> str:
        """A ledger on it, whose operations time out well within the outage."""
        return f"mongodb://127.0.0.1:{self._port}/crawl?directConnection=true&timeoutMS=1000"

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, env=self._environment)

    def await_primary(self) -> None:
        mongod._await_primary(self._process, self._port, self._folder / "mongod.log")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    # One that runs already is somebody else's, and not to be killed.
    monkeypatch.delenv(mongod.VARIABLE, raising=False)
    found = mongod.find()
    if found is None:
        pytest.fail(mongod.MISSING, pytrace=False)
    folder = tmp_path / "mongod"
    folder.mkdir()
    server = Server(found, folder)
    server.start()
    try:
        server.await_primary()
        yield server
    finally:
        server.kill()


@pytest.fixture
def site() -> Iterator[Site]:
    with docs.served(docs.folder("postgresql"), latency=20) as site:
        yield site


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "crawl.log"


def crawl(server: Server, site: Site, log: Path, *, ledger_give_up: str) -> Process:
    return Process(
        Store(server.uri),
        [site.start],
        log,
        on_cue=False,
        concurrency=CONCURRENCY,
        ledger_give_up=ledger_give_up,
    )


def assert_nothing_was_lost_or_failed(server: Server) -> None:
    expected = docs.walked("postgresql")
    rows = Store(server.uri).rows()
    assert {row.path for row in rows if row.status == Status.FINISHED} == expected.found
    assert {row.path for row in rows if row.status == Status.IGNORED} == expected.refused
    assert {row.path: row.items for row in rows if row.items} == dict.fromkeys(expected.pages, 1)
    assert {(row.retry, row.lost, row.lock) for row in rows} == {(0, 0, None)}


def wait_out(seconds: float) -> None:
    """Let an outage last: how long it takes is what is tested."""
    time.sleep(seconds)


@pytest.mark.parametrize("pages", [50, 500])
def test_a_crawl_waits_for_a_frozen_server_and_loses_nothing(
    pages: int, server: Server, site: Site, log: Path
):
    with crawl(server, site, log, ledger_give_up="60s") as crawling:
        wait_until(lambda: site.hits().total() >= pages)

        server.freeze()
        wait_out(OUTAGE)
        server.thaw()
        report = crawling.drained(within=60)

    assert "the ledger does not answer, trying again" in crawling.log
    assert "the ledger answers again" in crawling.log
    assert_nothing_was_lost_or_failed(server)
    assert report["leases_lost"] == 0
    expected = docs.walked("postgresql")
    assert site.hits() == Counter(expected.found | expected.refused)


@pytest.mark.parametrize("pages", [50, 500])
def test_a_crawl_waits_for_a_server_that_is_killed_and_restarted_and_loses_nothing(
    pages: int, server: Server, site: Site, log: Path
):
    with crawl(server, site, log, ledger_give_up="60s") as crawling:
        wait_until(lambda: site.hits().total() >= pages)

        server.kill()
        wait_until(lambda: "the ledger does not answer, trying again" in crawling.log)
        server.start()
        report = crawling.drained(within=60)

    assert_nothing_was_lost_or_failed(server)
    # A claim is not journaled: one that the server has forgotten is a repeated fetch.
    repeated = site.hits().total() - len(site.hits())
    assert repeated <= report["leases_lost"] <= HELD


@pytest.mark.parametrize("end", [Server.kill, Server.freeze])
def test_a_crawl_whose_server_stays_away_ends_with_an_error_that_says_so(
    end, server: Server, site: Site, log: Path
):
    with crawl(server, site, log, ledger_give_up="2s") as crawling:
        wait_until(lambda: site.hits().total() >= 200)

        end(server)
        code, report = crawling.end(within=20)

    assert (code, report) == (LEDGER_UNAVAILABLE, {})
    assert "LedgerUnavailableError: the ledger has not answered for 2.0 s" in crawling.log
    assert "Traceback" not in crawling.log
