"""Cost of a ledger by its size, and tracked tasks beside job queues, with a null job.

    python -m tests.benchmarks.queues sizes [--postgres | --mongodb URI] [--sizes 10000 1000000]
    python -m tests.benchmarks.queues peers --peers-python PATH [--mongodb URI] [--json FILE]

`sizes`: the ledger alone, on SQLite, on a PostgreSQL of its own or on a MongoDB. One ledger of
each size; in turns, tasks are added, listed, claimed, committed and counted. Prints medians, and
their ratios to the first size. `--sizes 10000 1000000 5000000` needs some GB.

`peers`: a worker beside those of SAQ and arq (Redis) and of pgqueuer and procrastinate
(PostgreSQL), with the same number of jobs at once; each in a process of its own, in turns, on a
fresh store. Prints medians of jobs per second, and the durability of each store. The benchmark
starts and ends Redis and PostgreSQL (Debian's redis-server and postgresql-15). The peers are no
dependencies of this project:

    python -m venv P && P/bin/pip install saq[redis] arq pgqueuer[asyncpg] procrastinate
"""

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from crawlcw.cli.loop import run
from tests.benchmarks import machine, queue_ledger, queue_servers, replica_set, tracking
from tests.support import postgres
from tests.support.docs import REPOSITORY

_PEERS = Path(__file__).parent / "peers"
_PACKAGES = ("saq", "arq", "pgqueuer", "procrastinate", "redis", "asyncpg", "psycopg")
#: A function that makes a store, and the command that runs the jobs on it.
Contender = Callable[[ExitStack, Path], list[str]]


def sizes(
    mongodb: str | None, of: list[int], rounds: int, *, on_postgres: bool
) -> dict[str, dict[str, float]]:
    """Measure the ledger alone; return seconds by step and size."""
    with ExitStack() as stack:
        if on_postgres:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            database = stack.enter_context(postgres.running(folder / "postgres"))
            numbers = count()
            store, fresh = "PostgreSQL", lambda: database(f"sizes_{next(numbers)}")
        elif mongodb is None:
            store, fresh = "SQLite", stack.enter_context(tracking.files())
        else:
            store, fresh = "MongoDB", stack.enter_context(tracking.databases(mongodb))
        found = run(queue_ledger.measured([(size, fresh()) for size in of], rounds=rounds))
    print(f"{store}, ms for {queue_ledger.SOME} tasks:")
    print(f"{'':10}" + "".join(f"{size:>22,}" for size in of))
    for step, seconds in found.items():
        shown = [f"{s * 1000:13,.1f} {s / seconds[of[0]]:7.2f}x" for s in seconds.values()]
        print(f"{step:10}" + "".join(shown))
    return {step: {str(size): s for size, s in each.items()} for step, each in found.items()}


def contenders(
    stack: ExitStack, folder: Path, python: str, mongodb: str | None
) -> dict[str, Contender]:
    """Return the contenders, by name and durability."""
    database = stack.enter_context(postgres.running(folder / "postgres"))
    here = [sys.executable, "-m", "tests.benchmarks.queue_tracked"]
    taking_part: dict[str, Contender] = {
        "crawlcw, SQLite (synced WAL)": lambda _, where: [*here, f"sqlite:///{where}.db"],
        "crawlcw, PostgreSQL (fsync on)": lambda _, where: [*here, database(where.name)],
    }
    if mongodb is not None:
        fresh = stack.enter_context(tracking.databases(mongodb))
        for driver in ("motor", "pymongo"):
            taking_part[f"crawlcw, MongoDB by {driver} (majority, journal)"] = (
                lambda _, where, driver=driver: [*here, fresh(), driver]
            )
    for name in ("saq", "arq"):
        script = str(_PEERS / f"queue_{name}.py")
        for fsync in ("everysec", "always"):
            taking_part[f"{name}, Redis (appendfsync {fsync})"] = (
                lambda one, where, script=script, fsync=fsync: [
                    python,
                    script,
                    one.enter_context(queue_servers.redis(where, fsync=fsync)),
                ]
            )
    for name in ("pgqueuer", "procrastinate"):
        script = str(_PEERS / f"queue_{name}.py")
        taking_part[f"{name}, PostgreSQL (fsync on)"] = lambda _, where, script=script: [
            python,
            script,
            database(where.name),
        ]
    return taking_part


def rates(
    python: str, mongodb: str | None, *, jobs: int, concurrency: int, rounds: int, only: str
) -> dict[str, dict[str, float]]:
    """Run the jobs of each contender, in turns; return the medians of jobs per second."""
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        taking_part = contenders(stack, folder, python, mongodb)
        for name, where in _turns(taking_part, folder, rounds):
            if only not in name:
                continue
            with ExitStack() as one:
                command = taking_part[name](one, where)
                found[name].append(_asked(command, jobs=jobs, concurrency=concurrency))
    medians = {
        name: {step: statistics.median(each[step] for each in rounds_) for step in ("add", "work")}
        for name, rounds_ in found.items()
    }
    print(f"{jobs:,} jobs, {concurrency} at once, medians of {rounds}, jobs/s:")
    for name, rate in medians.items():
        print(f"    {name:48} added {rate['add']:8,.0f}   done {rate['work']:8,.0f}")
    return medians


def _turns(
    taking_part: dict[str, Contender], folder: Path, rounds: int
) -> Iterator[tuple[str, Path]]:
    for n in range(rounds):
        for number, name in enumerate(taking_part):
            yield name, folder / f"round_{n}_{number}"


def _asked(command: list[str], *, jobs: int, concurrency: int) -> dict[str, float]:
    done = subprocess.run(
        [*command, str(jobs), str(concurrency)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["sizes", "peers"])
    parser.add_argument("--mongodb", metavar="URI")
    parser.add_argument("--postgres", action="store_true", help="sizes: on a server of its own")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--peers-python", metavar="PATH", help="a Python that has the peers")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--concurrency", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="peers whose name has this in it")
    parser.add_argument("--json", metavar="FILE", type=Path)
    arguments = parser.parse_args()
    # So that SIGTERM ends the servers too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    told = {"machine": machine.described()}
    if arguments.mongodb:
        told["machine"]["MongoDB"] = replica_set.version(arguments.mongodb)
    if arguments.postgres or arguments.what == "peers":
        told["machine"]["PostgreSQL"] = postgres.version()
    if arguments.what == "peers":
        if arguments.peers_python is None:
            parser.error("name a Python that has the peers by --peers-python, see above")
        told["machine"] |= machine.installed(arguments.peers_python, _PACKAGES)
        told["machine"]["Redis"] = queue_servers.redis_version()
    print(*(f"{name} {value}" for name, value in told["machine"].items()), sep="; ")
    if arguments.what == "sizes":
        result = sizes(
            arguments.mongodb, arguments.sizes, arguments.rounds, on_postgres=arguments.postgres
        )
    else:
        result = rates(
            arguments.peers_python,
            arguments.mongodb,
            jobs=arguments.jobs,
            concurrency=arguments.concurrency,
            rounds=arguments.rounds,
            only=arguments.only,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps({**told, arguments.what: result}, indent=2))


if __name__ == "__main__":
    main()
