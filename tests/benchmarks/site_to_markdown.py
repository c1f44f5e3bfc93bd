"""A documentation site as Markdown files by one command, beside other tools, in one run.

    python -m tests.benchmarks.site_to_markdown [--peers-python VENV/bin/python] [--rounds 3]

The site is the manual of PostgreSQL (Debian's postgresql-doc-15, 1,169 pages) behind nginx. The
pages are served without their XML declaration, because Crawl4AI reads no page that has one. Each
tool crawls it by its own command in a fresh process, in turns, and writes a file for each page.
Wall and CPU times are those of the whole command and its children; memory is that of its largest
process; requests are those in the site's log. `--only TEXT` measures some tools only.

After the rounds, crawlcw crawls the site once more. The whole process tree is killed by SIGKILL as
soon as half of the files exist, the same command runs again, and the two folders are compared.

The other tools need an environment of their own. Crawl4AI needs no browser here:

    python -m venv /tmp/peers
    /tmp/peers/bin/pip install crawl4ai trafilatura lxml_html_clean
"""

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks import as_used, docs_server, machine
from tests.support.docs import REPOSITORY

_PEERS = Path(__file__).parent / "peers"
#: The other tools take only a host with a domain; their scripts resolve it to this machine.
_HOST = "docs.example.com"
_XML_DECLARATION = re.compile(rb"\A<\?xml[^>]*\?>\s*")

#: Makes the command that crawls a start URL into a folder.
Command = Callable[[str, Path], list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One crawl of a tool: times in seconds, memory in MiB."""

    files: int
    requests: int
    wall: float
    cpu: float
    memory: float


def tools(arguments: argparse.Namespace) -> dict[str, Command]:
    """Return the commands by the name of their tool."""
    wide = str(arguments.concurrency)
    limits = ["--concurrency", wide, "-s", f"per_host_concurrency={wide}"]

    def crawlcw(*options: str) -> Command:
        def command(start: str, folder: Path) -> list[str]:
            crawl = [sys.executable, "-m", "crawlcw", "crawl", start, "-q", *limits, *options]
            ledger = f"sqlite:///{folder.parent}/{folder.name}.db"
            return [*crawl, "--markdown", str(folder), "--ledger", ledger]

        return command

    found = {
        "crawlcw": crawlcw(),
        "crawlcw --whole": crawlcw("--whole"),
        "crawlcw, 2 processes": crawlcw("--processes", "2"),
    }
    if python := arguments.peers_python:
        crawl4ai, trafilatura = (
            [python, str(_PEERS / f"{name}_markdown.py")] for name in ("crawl4ai", "trafilatura")
        )
        found["crawl4ai"] = lambda start, folder: [*crawl4ai, _named(start), wide, str(folder)]
        found["trafilatura"] = lambda start, folder: [*trafilatura, _named(start), str(folder)]
    return {name: command for name, command in found.items() if arguments.only in name}


def _named(start: str) -> str:
    return start.replace("127.0.0.1", _HOST)


def lay_out(folder: Path) -> Path:
    """Return a folder with the pages of the site."""
    root = folder / "site"
    root.mkdir()
    for path in docs_server.DOCS[1].iterdir():
        if path.is_file():
            (root / path.name).write_bytes(_XML_DECLARATION.sub(b"", path.read_bytes()))
    return root


def measured(command: Command, root: Path) -> Run:
    """Crawl the site once, in a fresh process, on a fresh server."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "out").mkdir()
        with docs_server.serving(folder / "nginx", root) as site:
            begun = time.monotonic()
            process = subprocess.Popen(
                command(f"http://127.0.0.1:{site.port}/index.html", folder / "out"),
                cwd=REPOSITORY,
                stdout=subprocess.DEVNULL,
            )
            # Unlike `wait`, `wait4` returns the CPU time of the process and its children.
            _, status, used = os.wait4(process.pid, 0)
            wall = time.monotonic() - begun
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                raise SystemExit(f"{process.args} ended with {process.returncode}")
        return Run(
            files=len(list((folder / "out").rglob("*.md"))),
            requests=site.seen.requests,
            wall=wall,
            cpu=used.ru_utime + used.ru_stime,
            memory=used.ru_maxrss / 1024,
        )


def killed(command: Command, root: Path) -> str:
    """Kill a crawl in the middle, run it again, and compare its files with those of another."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        whole, broken = folder / "whole", folder / "broken"
        with docs_server.serving(folder / "nginx", root) as site:
            start = f"http://127.0.0.1:{site.port}/index.html"
            subprocess.run(command(start, whole), cwd=REPOSITORY, check=True)
            half = len(list(whole.rglob("*.md"))) // 2
            process = subprocess.Popen(command(start, broken), cwd=REPOSITORY)
            while (written := len(list(broken.rglob("*.md")))) < half:
                if process.poll() is not None:
                    raise SystemExit("the crawl has ended before it was killed")
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            for pid in [*map(int, children.split()), process.pid]:
                os.kill(pid, signal.SIGKILL)
            process.wait()
            subprocess.run(command(start, broken), cwd=REPOSITORY, check=True)
        diff = ["diff", "-r", str(whole), str(broken)]
        equal = subprocess.run(diff, stdout=subprocess.DEVNULL, check=False).returncode == 0
    result = "equal" if equal else "NOT equal"
    return f"killed at {written} files, run again: the folders are {result}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--only", default="", help="a text of the tools' names")
    parser.add_argument("--peers-python", metavar="PATH", help="the Python that has the peers")
    arguments = parser.parse_args()
    about = machine.described() | {"site": docs_server.kind()}
    if arguments.peers_python:
        about |= machine.installed(arguments.peers_python, ("crawl4ai", "trafilatura"))
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    as_used.compile_sources()
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        compare(tools(arguments), lay_out(Path(name)), rounds=arguments.rounds)


def compare(chosen: dict[str, Command], root: Path, *, rounds: int) -> None:
    """Run each tool in turns, and print the medians and the results of the kills."""
    runs: dict[str, list[Run]] = {name: [] for name in chosen}
    for round_ in range(rounds):
        # Every second round runs backwards, so that a drift of the machine affects all alike.
        for name in list(chosen)[:: -1 if round_ % 2 else 1]:
            runs[name].append(measured(chosen[name], root))
            print(f"round {round_ + 1}: {name}: {runs[name][-1]}", file=sys.stderr, flush=True)
    print(f"{'tool':24} {'files':>6} {'requests':>9} {'wall s':>8} {'CPU s':>8} {'MiB':>6}")
    for name, of_tool in runs.items():
        files, requests, wall, cpu, memory = (
            statistics.median(getattr(run, field) for run in of_tool)
            for field in ("files", "requests", "wall", "cpu", "memory")
        )
        print(f"{name:24} {files:6.0f} {requests:9.0f} {wall:8.1f} {cpu:8.1f} {memory:6.0f}")
    for name in [name for name in chosen if name.startswith("crawlcw")]:
        print(f"{name}: {killed(chosen[name], root)}")


if __name__ == "__main__":
    main()
