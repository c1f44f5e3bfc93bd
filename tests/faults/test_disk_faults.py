"""Crawls into a ledger on a disk that is full or read-only.

There are three ways to make a disk full:

- `limit`: the kernel refuses writes of a process beyond a file size (RLIMIT_FSIZE).
  The limit can be set and removed for a running process without special rights.
  SQLite reports an I/O error.
- `tmpfs`: a file system without free space, the real error (ENOSPC). It needs the
  right to mount, which many containers lack; the test is skipped there. The limit
  covers the same code of the crawl.
- `postgres`: the same for a tablespace of PostgreSQL, which reports SQLSTATE 53100. Its
  log of writes is elsewhere: a server stops that has no room for that.

A file that becomes read-only in the middle of a crawl is a limit of 0 bytes. The file
is open for writing already, so its mode has no effect. A file system that a faulty
device makes read-only refuses the next write, which SQLite reports as an I/O error too.
"""

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.faults.scenario import Crew, assert_as_without_faults, fetched_again
from tests.support import docs, needed, postgres
from tests.support.crawl_process import (
    LEDGER_NOT_USABLE,
    LEDGER_UNAVAILABLE,
    Process,
    Store,
    wait_until,
)
from tests.support.docs import REPOSITORY, Site

pytestmark = pytest.mark.thorough

_MEBIBYTE = 1 << 20
#: In bytes. The crawl's file has 0.7 MB at its end, its WAL up to 4 MB before that.
_FULL = _MEBIBYTE // 2
_DISK = 16 * _MEBIBYTE
WAITING = "the ledger does not answer; trying again"
AGAIN = "the ledger answers again"

SPIDER = """
from tests.support.docs import DocsSpider

class Docs(DocsSpider):
    name = "docs"
    start_urls = [{start!r}]
"""


class Limited:
    """A disk that is full for chosen processes, by a limit on their file sizes."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/ledger.db"
        self.complaint = str(folder / "ledger.db")
        self._full_for: set[int] = set()

    def fill(self, worker: Process) -> None:
        """Limit the worker's files to slightly more than their present size."""
        _, most = resource.prlimit(worker.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (_FULL, most))
        self._full_for.add(worker.pid)

    def make_room(self) -> None:
        for pid in self._full_for:
            # Some processes have given up.
            with suppress(ProcessLookupError):
                _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))
        self._full_for.clear()


class Mounted:
    """A disk that is full for all processes, by a large file beside the ledger."""

    def __init__(self, folder: Path, url: str, complaint: str) -> None:
        self.url = url
        self.complaint = complaint  #: part of the message about a full disk
        self._filler = folder / "filler"

    def fill(self, worker: Process) -> None:  # the signature of `Limited`
        with self._filler.open("wb", buffering=0) as filler:
            try:
                while filler.write(bytes(1 << 16)):
                    pass
            except OSError:
                pass  # the disk is full now

    def make_room(self) -> None:
        self._filler.unlink(missing_ok=True)


@contextmanager
def mounted(folder: Path) -> Iterator[None]:
    """Mount a small file system in memory at *folder*."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "crawlcw", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not mount a tmpfs (CAP_SYS_ADMIN)")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


Disk = Limited | Mounted


@pytest.fixture(params=["limit", "tmpfs", "postgres"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """A disk of each kind in turn, with a ledger on it."""
    if request.param == "postgres":
        # Only their owner may enter the folders of pytest, and the server has another user.
        with tempfile.TemporaryDirectory() as folder:
            yield from _with_tablespace(Path(folder))
        return
    folder = tmp_path / "disk"
    limited = Limited(folder)
    if request.param == "limit":
        folder.mkdir()
        yield limited
        return
    with mounted(folder):
        yield Mounted(folder, limited.url, limited.complaint)


def _with_tablespace(folder: Path) -> Iterator[Mounted]:
    psycopg = needed.module("psycopg", extra="postgres")
    space = folder / "disk"
    with mounted(space), postgres.server(folder / "server") as server:
        shutil.chown(space, server.user)
        with psycopg.connect(server.url("postgres"), autocommit=True) as db:
            db.execute(f"CREATE TABLESPACE small LOCATION '{space}'")
            db.execute("CREATE DATABASE crawl TABLESPACE small")
        yield Mounted(space, server.url("crawl"), "No space left on device")


@pytest.fixture
def store(disk: Disk) -> Store:
    return Store(disk.url)


@pytest.fixture
def site() -> Iterator[Site]:
    with docs.served(docs.folder("postgresql"), latency=100) as site:
        yield site


def crew(store: Store, site: Site, folder: Path, **settings: object) -> Crew:
    return Crew(store, site, folder / "crawls.log", concurrency=40, **settings)


def said(crew: Crew, sentence: str, *, times: int = 1) -> Callable[[], bool]:
    return lambda: crew.log.count(sentence) >= times


# --- a disk that is full


def test_a_crawl_waits_for_room_on_a_full_disk_and_goes_on(
    disk: Disk, store: Store, site: Site, expected_items: bytes, tmp_path: Path
):
    with crew(store, site, tmp_path) as workers:
        for _ in range(2):
            workers.start()
        wait_until(lambda: site.hits().total() >= 100)
        wait_until(lambda: all(store.held_by(worker.pid) for worker in workers.workers))
        for worker in workers.workers:
            disk.fill(worker)
        # Each worker writes at the latest when its pages have arrived.
        wait_until(said(workers, WAITING, times=4))
        pages = site.hits().total()
        disk.make_room()
        reports = workers.drained()

    assert pages < 1000, "the disk was full too late"
    assert AGAIN in workers.log
    assert [report["leases_lost"] for report in reports] == [0, 0]
    assert {(row.retry, row.lost) for row in store.rows()} == {(0, 0)}
    assert fetched_again(site) == 0
    assert_as_without_faults(store, expected_items)
    assert "Traceback" not in workers.log


def test_a_crawl_gives_up_where_nobody_makes_room_and_the_next_one_completes(
    disk: Disk, store: Store, site: Site, expected_items: bytes, tmp_path: Path
):
    with crew(store, site, tmp_path, ledger_give_up="2s") as workers:
        gave_up = workers.start()
        wait_until(lambda: site.hits().total() >= 200)
        disk.fill(gave_up)
        wait_until(lambda: not gave_up.is_running())
        code, _ = gave_up.end()
        held = len(store.held_by(gave_up.pid))
        last = workers.log.splitlines()[-1]
        disk.make_room()
        workers.workers.remove(gave_up)
        workers.start()
        workers.drained()

    assert code == LEDGER_UNAVAILABLE
    assert "the ledger has not answered for" in last
    assert disk.complaint in last
    assert fetched_again(site) <= held
    assert_as_without_faults(store, expected_items)
    assert "Traceback" not in workers.log


# --- a file that is read-only


@pytest.fixture
def bound() -> list[str]:
    """Return the prefix that makes a command obey file modes, which root does not."""
    return ["setpriv", "--bounding-set=-dac_override"] if os.geteuid() == 0 else []


def crawlcw(spider: Path, store: Store, *more: str) -> list[str]:
    return [
        *(sys.executable, "-m", "crawlcw", "run", str(spider), "--quiet"),
        *("--ledger", store.url, *more),
    ]


def crawlcw_itself(spider: Path, store: Store, *more: str) -> list[str]:
    """Return the command of a crawl without worker processes, for faults of that process."""
    return crawlcw(spider, store, "--processes", "0", *more)


def run(command: list[str]) -> tuple[int, str]:
    """Run a command to its end; return its exit code and its stderr."""
    ended = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    return ended.returncode, ended.stderr


@pytest.fixture
def spider(site: Site, tmp_path: Path) -> Path:
    path = tmp_path / "spider.py"
    path.write_text(SPIDER.format(start=site.start))
    return path


@pytest.mark.parametrize(("what", "processes"), [("file", "1"), ("folder", "1"), ("both", "2")])
def test_a_ledger_that_is_read_only_at_the_start_is_a_matter_of_configuration(
    what: str,
    processes: str,
    site: Site,
    spider: Path,
    bound: list[str],
    expected_items: bytes,
    tmp_path: Path,
):
    folder = tmp_path / "ledger"
    store = Store(f"sqlite:///{folder}/ledger.db")
    made = run([*bound, *crawlcw(spider, store, "--max-pages", "50")])
    before = site.hits()
    if what in ("file", "both"):
        (folder / "ledger.db").chmod(0o444)
    if what in ("folder", "both"):
        folder.chmod(0o555)

    code, sentence = run([*bound, *crawlcw(spider, store, "--processes", processes)])
    asked = site.hits()
    folder.chmod(0o755)
    (folder / "ledger.db").chmod(0o644)
    site.heal()
    again = run([*bound, *crawlcw(spider, store)])

    assert (made[0], again) == (0, (0, ""))
    assert code == LEDGER_NOT_USABLE
    assert sentence.count("\n") == 1, sentence
    assert sentence.startswith(f"crawlcw: The ledger {folder}/ledger.db ")
    assert asked == before
    assert_as_without_faults(store, expected_items)


def test_on_a_full_disk_the_command_ends_with_one_sentence(
    spider: Path, bound: list[str], expected_items: bytes, tmp_path: Path
):
    store = Store(f"sqlite:///{tmp_path}/ledger/ledger.db")
    crawl = crawlcw_itself(spider, store, "-s", "ledger_give_up=1s")

    code, said = run(["prlimit", f"--fsize={_FULL}:", *crawl])
    again = run(crawl)

    assert code == LEDGER_UNAVAILABLE
    assert said.count("crawlcw: the ledger cannot be reached: ") == 1
    assert "Traceback" not in said
    assert again == (0, "")
    assert_as_without_faults(store, expected_items)


@pytest.mark.parametrize("for_good", [False, True])
def test_a_file_that_is_read_only_in_the_middle_is_waited_for(
    for_good: bool, spider: Path, site: Site, expected_items: bytes, tmp_path: Path
):
    store = Store(f"sqlite:///{tmp_path}/ledger.db")
    give_up = "1s" if for_good else "60s"
    crawl = crawlcw_itself(spider, store, "-s", f"ledger_give_up={give_up}")
    with subprocess.Popen(crawl, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True) as crawling:
        assert crawling.stderr is not None
        wait_until(lambda: site.hits().total() >= 200)
        # No byte of any file can be written; the log goes into a pipe.
        _, most = resource.prlimit(crawling.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        waiting = next(line for line in crawling.stderr if WAITING in line)
        if not for_good:
            resource.prlimit(crawling.pid, resource.RLIMIT_FSIZE, (most, most))
        said = crawling.stderr.read()
    held = len(store.held_by())
    again = run(crawl)

    assert "cannot be read or written" in waiting
    assert crawling.returncode == (LEDGER_UNAVAILABLE if for_good else 0)
    assert said.count("crawlcw: the ledger cannot be reached: ") == for_good
    assert (AGAIN in said) != for_good
    assert "Traceback" not in said
    assert again[0] == 0
    assert fetched_again(site) <= held
    assert_as_without_faults(store, expected_items)
