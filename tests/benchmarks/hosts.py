"""Cost of crawls of many hosts by several processes, and the gain of a second process.

    python -m tests.benchmarks.hosts broad --mongodb URI [--processes 8] [--hosts 2000]
    python -m tests.benchmarks.hosts processes [--mongodb URI] [--rounds 3]

`broad`: processes that start together crawl hosts of 2 pages each. It prints the
share of claims that missed, and the database's count of commands for each page.
`processes`: `crawlcw run --processes 1` and `2` in turns on 50 hosts of 300 pages
that nginx serves (Debian's package nginx-light). It prints medians of pages per
second over whole commands.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pymongo

from crawlcw import Settings, Spider
from tests.support.crawl_process import Process, Store, begin_together
from tests.support.docs import REPOSITORY
from tests.support.many_hosts import Host, HostsSpider, addresses, served

PAGES = 300
HOSTS = 50
#: Commands of crawls; drivers and the server send others by themselves.
COMMANDS = ("find", "getMore", "insert", "update", "delete", "findAndModify", "aggregate")


class Manual(Spider):
    """One item for each page of many hosts."""

    name = "manual"
    settings = Settings(user_agent="crawlcw-benchmark", max_depth=None)

    def __init__(self, hosts: str) -> None:
        super().__init__()
        self.start_urls = [f"http://{host}/" for host in hosts.split(",")]

    def parse(self, response):
        title = response.css_first("title")
        yield {"url": response.url, "title": title.text() if title else ""}
        yield from response.follow_all("a[href]")


def commands(client: "pymongo.MongoClient[dict[str, object]]") -> int:
    """Return the number of crawl commands that the server has received."""
    counted = client.admin.command("serverStatus")["metrics"]["commands"]
    return sum(counted.get(name, {}).get("total", 0) for name in COMMANDS)


def broad(mongodb: str, *, processes: int, hosts: int) -> None:
    """Crawl many small hosts with several processes, and print the cost."""
    database = f"bench_{os.getpid()}"
    with ExitStack() as stack:
        client = stack.enter_context(pymongo.MongoClient(mongodb))
        stack.callback(client.drop_database, database)
        site = stack.enter_context(served([Host(address=a, pages=2) for a in addresses(hosts)]))
        store = Store(_with_database(mongodb, database), HostsSpider.name)
        log = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "log"
        crawls = [
            stack.enter_context(Process(store, site.urls, log, on_cue=True))
            for _ in range(processes)
        ]
        before, began = commands(client), time.monotonic()
        begin_together(crawls)
        reports = [crawl.drained(within=300) for crawl in crawls]
        elapsed, sent = time.monotonic() - began, commands(client) - before
    pages = sum(report["pages"] for report in reports)
    claims = sum(report["claims"] for report in reports)
    missed = sum(report["claims_missed"] for report in reports)
    print(f"{processes} processes, {hosts:,} hosts, {pages:,} pages in {elapsed:.1f} s")
    print(f"claims missed: {missed:,} of {claims:,}, {missed / claims:.1%}")
    print(f"database commands a page: {sent / pages:.2f}")
    print("pages by process:", *sorted(report["pages"] for report in reports))


def in_processes(mongodb: str | None, *, rounds: int) -> None:
    """Crawl with one process and with two, in turns, and print the speeds."""
    rates: dict[int, list[float]] = {1: [], 2: []}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        hosts = stack.enter_context(_nginx(folder))
        for n in range(rounds):
            for number in rates:
                ledger = f"sqlite:///{folder}/{n}-{number}.db"
                if mongodb:
                    ledger = _with_database(mongodb, f"bench_{os.getpid()}_{n}_{number}")
                rates[number].append(_rate(ledger, hosts, processes=number, folder=folder))
    for number, found in rates.items():
        print(f"--processes {number}: {statistics.median(found):,.0f} pages/s")
    print(f"ratio of medians: {statistics.median(rates[2]) / statistics.median(rates[1]):.2f}")


def _rate(ledger: str, hosts: list[str], *, processes: int, folder: Path) -> float:
    output = folder / "out.jsonl"
    command = [sys.executable, "-m", "crawlcw", "run", f"{__file__}:Manual", "--quiet"]
    command += ["--ledger", ledger, "--processes", str(processes), "-o", str(output)]
    began = time.monotonic()
    subprocess.run([*command, "-a", f"hosts={','.join(hosts)}"], check=True, cwd=REPOSITORY)
    elapsed = time.monotonic() - began
    pages = sum(1 for line in output.open() if json.loads(line))
    assert pages == HOSTS * PAGES, pages
    return pages / elapsed


@contextmanager
def _nginx(folder: Path) -> Iterator[list[str]]:
    """Serve one folder at 50 addresses; yield the hosts."""
    found = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    assert found, "nginx is missing: apt-get install nginx-light"
    root = folder / "html"
    root.mkdir(mode=0o755)
    folder.chmod(0o755)
    for n in range(PAGES):
        links = "".join(f'<a href="/{m}.html">{m}</a>' for m in range(n + 1, min(n + 21, PAGES)))
        text = f"<p>{'The quick brown fox jumps over the lazy dog. ' * 150}</p>"
        name = f"{n}.html" if n else "index.html"
        (root / name).write_text(f"<title>Page {n}</title>{links}{text}")
    port = 18_000 + os.getpid() % 1000
    hosts = [f"{address}:{port}" for address in addresses(HOSTS)]
    listen = "".join(f"listen {host};" for host in hosts)
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/error.log; worker_processes 1;"
        f"events {{ worker_connections 4096; }} http {{ access_log off; types {{ text/html html; }}"
        f"server {{ {listen} root {root}; }} }}"
    )
    server = subprocess.Popen([found, "-c", str(folder / "nginx.conf"), "-p", str(folder)])
    try:
        deadline = time.monotonic() + 10
        while not (folder / "pid").exists():
            assert server.poll() is None, "nginx does not start"
            assert time.monotonic() < deadline, "nginx does not start"
            time.sleep(0.05)
        yield hosts
    finally:
        server.terminate()
        server.wait()


def _with_database(mongodb: str, name: str) -> str:
    base, _, options = mongodb.partition("?")
    return base.rstrip("/") + f"/{name}" + (f"?{options}" if options else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["broad", "processes"])
    parser.add_argument("--mongodb", metavar="URI")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--hosts", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.what == "processes":
        in_processes(arguments.mongodb, rounds=arguments.rounds)
    elif arguments.mongodb:
        broad(arguments.mongodb, processes=arguments.processes, hosts=arguments.hosts)
    else:
        parser.error("broad counts the commands of a MongoDB: name it by --mongodb")


if __name__ == "__main__":
    main()
