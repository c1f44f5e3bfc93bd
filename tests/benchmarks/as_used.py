"""Whole crawls as a user runs them, beside a bare loop and other frameworks, in one run.

    python -m tests.benchmarks.as_used [--peers-python VENV/bin/python] [--tls --round-trip 20]
    python -m tests.benchmarks.as_used --small --follow each --against COMMIT --members 0

Every engine crawls the same real pages from nginx, each by its own command in a fresh
process, in turns, with the same number of requests at once. It records url and title of each
page and follows every link of the host. Settings are the defaults but for the limit of the
host. The pages are the manuals of Python and PostgreSQL, or, with `--small`, the 3,753 small
linked ones of libstdc++.

`--against COMMIT` adds rows for crawlcw at that commit, which pip installs in an environment
of its own with the same packages. Options that the commit lacks are named, and their rows are
left out.

The site's log separates the crawl from its process. `crawl` is the time from the first request
to the last answer, `start` the time before it, and `end` the time after it: the last commit
and the exit. `first 100` is the time of the first hundred answers, which shows the cost of a
slow start. Pages a second are those of the crawl, `whole` those of the whole command; `CPU` is
that of the command and its children, for each page. Medians are printed.

Every engine finds its modules compiled, as after an installation by pip. Otherwise crawlcw,
which runs from its sources here, might be compiled in each process.

The other frameworks need an environment of their own:

    python -m venv /tmp/peers
    /tmp/peers/bin/pip install scrapy 'crawlee[parsel,sql-sqlite,httpx]'
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.benchmarks import docs_server, machine, other_commit, replica_set
from tests.support import postgres
from tests.support.docs import REPOSITORY
from tests.support.tls_site import make_certificate

_PEERS = Path(__file__).parent / "peers"
#: Added in Scrapy 2.19.
_SQLITE_QUEUE = "scrapy.squeues.PickleLifoSQLiteQueue"
_NO_BYTE_CODE = "PYTHONDONTWRITEBYTECODE"
BARE = "bare loop"
_DRIVERS = ("motor", "pymongo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The start URL of one crawl, and its folder."""

    start: str
    folder: Path
    database: str


@dataclass(frozen=True, slots=True)
class Engine:
    """One way to crawl."""

    name: str
    command: Callable[[Place], list[str]]
    folder: Path = REPOSITORY
    optional: bool = False  #: its row is left out if it fails


@dataclass(frozen=True, slots=True)
class Run:
    """One crawl: times in seconds, and counts from the site's log."""

    pages: int
    requests: int
    connections: int
    start: float
    crawl: float
    end: float
    first_100: float  #: seconds of the crawl until 100 requests were answered
    cpu: float

    @property
    def rate(self) -> float:
        """Pages a second of the crawl."""
        return self.pages / self.crawl

    @property
    def whole(self) -> float:
        """Pages a second of the whole command."""
        return self.pages / (self.start + self.crawl + self.end)

    @property
    def cpu_of_page(self) -> float:
        """Milliseconds of CPU a page."""
        return 1000 * self.cpu / self.pages


def engines(
    arguments: argparse.Namespace,
    mongodb: str | None,
    own_postgres: postgres.Server | None,
    others: dict[str, str],
) -> list[Engine]:
    """Return the engines, in the order of the table; *others* maps commits to their Pythons."""
    wide = str(arguments.concurrency)
    bare = [sys.executable, str(Path(__file__).with_name("bare_loop.py"))]
    found = [Engine(BARE, lambda place: [*bare, place.start, wide])]
    for crawlcw in (_Crawlcw(arguments), *(_Crawlcw(arguments, *each) for each in others.items())):
        found += crawlcw.engines(mongodb, own_postgres)
    if arguments.peers_python:
        found += _peers(arguments.peers_python, wide)
    chosen = arguments.only.split(",")
    return [e for e in found if e.name == BARE or any(text in e.name for text in chosen)]


class _Crawlcw:
    """The rows of one version: this one, or *commit*, which is installed for *python*."""

    def __init__(
        self, arguments: argparse.Namespace, commit: str = "", python: str = sys.executable
    ) -> None:
        self._arguments, self._commit, self._python = arguments, commit, python

    def engines(self, mongodb: str | None, own_postgres: postgres.Server | None) -> list[Engine]:
        """Return a row for each ledger, way to claim, driver and number of processes.

        Another commit runs with its default driver.
        """
        numbers = self._arguments.processes
        sqlite = "sqlite:///{folder}/ledger.db"
        found = [self._engine(f"sqlite{_times(number)}", sqlite, number) for number in numbers]
        if own_postgres and not self._commit:
            url = own_postgres.url("{database}")
            found += [self._engine(f"postgres{_times(number)}", url, number) for number in numbers]
        if not mongodb:
            return found
        base, _, options = mongodb.partition("?")
        ledger = f"{base.rstrip('/')}/{{database}}" + (f"?{options}" if options else "")
        drivers = (
            [((), "")]
            if self._commit
            else [(("-s", f"mongo_driver={name}"), f" {name}") for name in _DRIVERS]
        )
        for claim in ("each", "batch"):
            for chosen, driver in drivers:
                for number in numbers:
                    name = f"mongodb {claim}{driver}{_times(number)}"
                    found.append(self._engine(name, ledger, number, "--claim", claim, *chosen))
        return found

    def _engine(self, name: str, ledger: str, processes: int, *more: str) -> Engine:
        wide, follow = self._arguments.concurrency, self._arguments.follow
        options = ["-q", "--concurrency", str(wide), "-s", f"per_host_concurrency={wide}", *more]
        options += ["--processes", str(processes)] if processes > 1 else []
        options += ["-s", "insecure=yes"] if self._arguments.tls else []
        spider = str(Path(__file__).with_name("docs_spider.py"))

        def command(place: Place) -> list[str]:
            url = ledger.format(folder=place.folder, database=place.database)
            run = [self._python, "-m", "crawlcw", "run", spider, *options]
            return [*run, "-a", f"start={place.start}", "-a", f"follow={follow}", "--ledger", url]

        if not self._commit:
            return Engine(name, command)
        # In the repository, its Python would import these sources.
        folder = Path(self._python).parent
        return Engine(f"{name} @{self._commit}", command, folder, optional=True)


def _times(processes: int) -> str:
    return f", {processes} processes" if processes > 1 else ""


def _peers(python: str, wide: str) -> list[Engine]:
    scrapy = [python, "-m", "scrapy", "runspider", str(_PEERS / "scrapy_docs.py"), "-L", "WARNING"]
    for name in ("CONCURRENT_REQUESTS", "CONCURRENT_REQUESTS_PER_DOMAIN"):
        scrapy += ["-s", f"{name}={wide}"]
    crawlee = [python, str(_PEERS / "crawlee_docs.py")]

    def scrapes(place: Place) -> list[str]:
        return [*scrapy, "-a", f"start={place.start}", "-o", f"{place.folder}/items.jsonl"]

    def resumes(place: Place) -> list[str]:
        return [*scrapes(place), "-s", f"JOBDIR={place.folder}/job"]

    def queues(place: Place) -> list[str]:
        return [*resumes(place), "-s", f"SCHEDULER_DISK_QUEUE={_SQLITE_QUEUE}"]

    def keeps(kind: str) -> Callable[[Place], list[str]]:
        return lambda place: [*crawlee, place.start, wide, kind, str(place.folder)]

    return [
        Engine("scrapy", scrapes),
        Engine("scrapy JOBDIR", resumes),
        Engine("scrapy JOBDIR SQLite", queues, optional=True),
        Engine("crawlee files", keeps("file")),
        Engine("crawlee sql", keeps("sql")),
    ]


class FailedError(Exception):
    """A crawl's process has failed; the message has the end of its output."""


def crawled(
    engine: Engine,
    root: Path,
    database: str,
    *,
    certificate: Path | None = None,
    round_trip: int = 0,
) -> Run:
    """Crawl the site once, in a fresh process, on a fresh server. Raises `FailedError`."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        (folder / "kept").mkdir()
        serving = docs_server.serving(folder / "nginx", root, certificate=certificate)
        with serving as site:
            port = _far(stack, site.port, round_trip) if round_trip else site.port
            start = f"{site.scheme}://127.0.0.1:{port}/index.html"
            place = Place(start=start, folder=folder / "kept", database=database)
            with (folder / "said").open("w+") as said:
                began = time.time()
                process = subprocess.Popen(
                    engine.command(place),
                    cwd=engine.folder,
                    env=_environment(),
                    stdout=said,
                    stderr=subprocess.STDOUT,
                )
                # Unlike `wait`, `wait4` returns the CPU time of the process and its children.
                _, status, used = os.wait4(process.pid, 0)
                ended = time.time()
                process.returncode = os.waitstatus_to_exitcode(status)
                said.seek(0)
                if process.returncode:
                    raise FailedError(f"{engine.name} ended with {status}: {said.read()[-3000:]}")
        seen = site.seen
    return Run(
        pages=seen.pages,
        requests=seen.requests,
        connections=seen.connections,
        start=seen.first - began,
        crawl=seen.last - seen.first,
        end=ended - seen.last,
        first_100=seen.hundredth - seen.first,
        cpu=used.ru_utime + used.ru_stime,
    )


def _environment() -> dict[str, str]:
    """Return this environment, with writing of byte code allowed."""
    return {name: value for name, value in os.environ.items() if name != _NO_BYTE_CODE}


def compile_sources() -> None:
    """Compile the modules that run from sources, before the first crawl."""
    folders = [str(REPOSITORY / "crawlcw"), str(Path(__file__).parent)]
    command = [sys.executable, "-m", "compileall", "-q", *folders]
    subprocess.run(command, env=_environment(), check=True)


def _far(stack: ExitStack, port: int, round_trip: int) -> int:
    """Return the port of a relay to *port* with a round trip of *round_trip* milliseconds."""
    command = [sys.executable, "-m", "tests.support.delaying_relay", str(port), str(round_trip)]
    relay = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    stack.callback(relay.communicate)
    stack.callback(relay.kill)
    assert relay.stdout is not None
    return int(relay.stdout.readline())


def compare(
    arguments: argparse.Namespace,
    folder: Path,
    mongodb: str | None,
    own_postgres: postgres.Server | None,
) -> dict[str, list[Run]]:
    """Run every engine in turns; return the runs of each, by name."""
    docs = docs_server.SMALL if arguments.small else docs_server.DOCS
    root = docs_server.lay_out(folder, arguments.folder or docs, copies=arguments.copies)
    certificate = None
    if arguments.tls:
        certificate = folder / "certificate"
        make_certificate(certificate)
    others = {
        other_commit.described(commit): other_commit.install(commit, folder / f"other{number}")
        for number, commit in enumerate(arguments.against)
    }
    chosen = engines(arguments, mongodb, own_postgres, others)
    compile_sources()
    results: dict[str, list[Run]] = {engine.name: [] for engine in chosen}
    for round_ in range(arguments.rounds):
        # Every second round runs backwards, so that a drift of the machine affects all alike.
        for place, engine in list(enumerate(chosen))[:: -1 if round_ % 2 else 1]:
            database = f"bench_{os.getpid()}_{round_}_{place}"
            if own_postgres and engine.name.startswith("postgres"):
                own_postgres.database(database)
            try:
                run = crawled(
                    engine, root, database, certificate=certificate, round_trip=arguments.round_trip
                )
            except FailedError as failed:
                if not engine.optional:
                    raise SystemExit(str(failed)) from failed
                print(f"left out: {failed}", file=sys.stderr, flush=True)
                chosen.remove(engine)
                del results[engine.name]
                continue
            finally:
                if mongodb and engine.name.startswith("mongodb"):
                    replica_set.drop(mongodb, database)
            results[engine.name].append(run)
            print(
                f"round {round_ + 1}: {engine.name}: {run.rate:.0f} pages/s,"
                f" {run.cpu_of_page:.3f} ms CPU a page",
                file=sys.stderr,
                flush=True,
            )
    _check(results)
    return results


def _check(results: dict[str, list[Run]]) -> None:
    """Print the engines with another number of pages than the bare loop."""
    expected = results[BARE][0].pages
    for name, runs in results.items():
        for run in runs:
            if run.pages != expected:
                print(f"{name}: {run.pages} pages, not {expected}", file=sys.stderr)


def table(results: dict[str, list[Run]]) -> list[dict[str, float | str]]:
    """Return the medians of each engine; ratios are those within a round."""
    rows: list[dict[str, float | str]] = []
    for name, runs in results.items():
        pairs = list(zip(runs, results[BARE], strict=True))
        names = ("pages", "connections", "rate", "whole", "start", "end", "first_100")
        row: dict[str, float | str] = {"engine": name}
        row |= {key: statistics.median(getattr(run, key) for run in runs) for key in names}
        row["of_bare"] = statistics.median(run.rate / bare.rate for run, bare in pairs)
        row["cpu"] = statistics.median(run.cpu_of_page for run in runs)
        rows.append(row)
    return rows


_HEAD = (
    "engine                           pages  pages/s  of bare    whole  start    end"
    "  CPU ms/page  connections  first 100"
)
_LINE = (
    "{engine:<31} {pages:>6.0f} {rate:>8.0f} {of_bare:>8.2f} {whole:>8.0f} {start:>6.2f}"
    " {end:>6.2f} {cpu:>12.3f} {connections:>12.0f} {first_100:>8.2f} s"
)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, action="append", help="HTML with an index.html")
    parser.add_argument("--small", action="store_true", help="small pages: libstdc++'s manual")
    parser.add_argument(
        "--follow",
        choices=("all", "each"),
        default="all",
        help="crawlcw's links: all by `follow_all`, or each by `follow`",
    )
    parser.add_argument(
        "--against", metavar="COMMIT", action="append", default=[], help="compare that commit too"
    )
    parser.add_argument("--copies", type=int, default=1, help="crawl so many copies of them")
    parser.add_argument("--concurrency", type=int, default=100)
    parser.add_argument("--processes", type=int, nargs="+", default=[1])
    parser.add_argument("--only", default="", help="texts of engines' names, with commas between")
    parser.add_argument("--mongodb", metavar="URI", help="else one is started, or three")
    parser.add_argument("--members", type=int, default=1, help="of the replica set; 0: no MongoDB")
    parser.add_argument("--postgres", action="store_true", help="a row on PostgreSQL as well")
    parser.add_argument("--peers-python", metavar="PATH", help="the Python that has the peers")
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--round-trip", type=int, default=0, help="milliseconds")
    parser.add_argument("--json", action="store_true", help="print machine, medians and runs")
    return parser.parse_args()


def main() -> None:
    arguments = _arguments()
    # So that SIGTERM ends the servers too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    about = machine.described() | {"site": docs_server.kind()}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o755)
        mongodb = arguments.mongodb
        if not mongodb and arguments.members:
            started = replica_set.running(folder, members=arguments.members)
            mongodb = stack.enter_context(started)
        if mongodb:
            about["MongoDB"] = replica_set.version(mongodb)
        own_postgres = None
        if arguments.postgres:
            own_postgres = stack.enter_context(postgres.server(folder / "postgres"))
            about["PostgreSQL"] = postgres.version()
        if arguments.peers_python:
            about |= machine.installed(arguments.peers_python, ("scrapy", "crawlee"))
        results = compare(arguments, folder, mongodb, own_postgres)
    rows = table(results)
    if arguments.json:
        runs = {name: [asdict(run) for run in of_one] for name, of_one in results.items()}
        print(json.dumps({"machine": about, "medians": rows, "runs": runs}, indent=1))
        return
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    print(_HEAD)
    for row in rows:
        print(_LINE.format(**row))


if __name__ == "__main__":
    main()
