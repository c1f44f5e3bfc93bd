"""A Scrapy project by Scrapy and by crawlcw, beside a spider that is written for crawlcw.

    python -m tests.benchmarks.scrapy_projects [--rounds 3] [--sites small,manual] [--only TEXTS]

All engines crawl the same pages from nginx, each by its own command in a fresh process, in
turns, with 100 requests at once. Every second round runs backwards. The project has one spider,
which yields URL and title of each page and a request for each link. Scrapy also writes a feed,
because it has no other result; with JOBDIR it can resume. crawlcw runs the same folder
unchanged on SQLite.

`small` is a generated site of 3,000 pages of 9 kB, and each page has 40 links. `manual` is the
manual of libstdc++ in Debian's package libstdc++-12-doc, which Doxygen generated: links lead to
3,753 pages, and a page has 72 links in the mean.

`CPU` is user and system time of the command and its children for each page. Pages a second are
those between the first request and the last answer in the log of nginx. `whole` counts start and
end of the command too. The table has the medians.
"""

import argparse
import random
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.benchmarks import docs_server, machine
from tests.benchmarks.as_used import Engine, Place, Run, compile_sources, crawled

CONCURRENCY = 100
PAGES = 3000
PAGE_BYTES = 9000
LINKS = 40
_BENCHMARKS = Path(__file__).parent
_SETTINGS = f"""
BOT_NAME = "docs"
SPIDER_MODULES = ["docs_project.spiders"]
CONCURRENT_REQUESTS = CONCURRENT_REQUESTS_PER_DOMAIN = {CONCURRENCY}
LOG_LEVEL = "WARNING"
"""
_WORDS = ("crawler", "page", "link", "item", "ledger", "request", "response", "host", "limit")


def write_project(folder: Path) -> None:
    """Write a Scrapy project with the spider of `peers/scrapy_docs.py`."""
    spiders = folder / "docs_project" / "spiders"
    spiders.mkdir(parents=True)
    (folder / "scrapy.cfg").write_text("[settings]\ndefault = docs_project.settings\n")
    (folder / "docs_project" / "settings.py").write_text(_SETTINGS)
    for package in (spiders, spiders.parent):
        (package / "__init__.py").touch()
    shutil.copy(_BENCHMARKS / "peers" / "scrapy_docs.py", spiders / "docs.py")


def write_small_site(folder: Path) -> Path:
    """Write the generated site; return its folder. Two links of each page build a tree."""
    folder.mkdir()
    chance = random.Random(1)
    for number in range(PAGES):
        targets = [number * 2 + 1, number * 2 + 2]
        targets += [chance.randrange(PAGES) for _ in range(LINKS - len(targets))]
        links = "".join(
            f'<li><a href="{_file(target % PAGES)}">Page {target % PAGES}</a></li>'
            for target in targets
        )
        text = f"<!doctype html><title>Page {number}</title><ul>{links}</ul>"
        while len(text) < PAGE_BYTES:
            text += f"<p>{' '.join(chance.choices(_WORDS, k=60))}.</p>"
        (folder / _file(number)).write_text(text)
    return folder


def _file(number: int) -> str:
    return f"page{number}.html" if number else "index.html"


def engines(project: Path) -> list[Engine]:
    """Return the four ways to crawl."""
    python, wide = sys.executable, str(CONCURRENCY)

    def scrapy(place: Place) -> list[str]:
        command = [python, "-m", "scrapy", "crawl", "docs", "-a", f"start={place.start}"]
        return [*command, "-o", f"{place.folder}/items.jsonl"]

    def crawlcw(spider: str, *options: str) -> Callable[[Place], list[str]]:
        return lambda place: [
            *(python, "-m", "crawlcw", "run", spider, "-q", "-a", f"start={place.start}"),
            *("--ledger", f"sqlite:///{place.folder}/ledger.db", *options),
        ]

    limits = ("--concurrency", wide, "-s", f"per_host_concurrency={wide}")
    own_spider = str(_BENCHMARKS / "docs_spider.py")
    return [
        Engine("Scrapy", scrapy, project),
        Engine("Scrapy, JOBDIR", lambda p: [*scrapy(p), "-s", f"JOBDIR={p.folder}/job"], project),
        Engine("the project on crawlcw", crawlcw(f"{project}:docs"), project),
        Engine("a spider of crawlcw", crawlcw(own_spider, *limits)),
    ]


def compare(root: Path, chosen: list[Engine], *, rounds: int) -> dict[str, list[Run]]:
    """Run the engines in turns on the site *root*; return the runs by engine."""
    runs: dict[str, list[Run]] = {engine.name: [] for engine in chosen}
    for number in range(rounds):
        for engine in chosen[:: -1 if number % 2 else 1]:
            run = crawled(engine, root, "")
            runs[engine.name].append(run)
            print(
                f"round {number + 1}: {engine.name}: {run.pages} pages, {run.rate:.0f} pages/s,"
                f" {run.cpu_of_page:.2f} ms CPU a page",
                file=sys.stderr,
                flush=True,
            )
    return runs


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sites", default="small,manual")
    parser.add_argument("--only", default="", help="texts of engines' names, with commas between")
    arguments = parser.parse_args()
    about = machine.described() | machine.installed(sys.executable, ("scrapy", "twisted"))
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    compile_sources()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        write_project(folder / "project")
        chosen = [
            engine
            for engine in engines(folder / "project")
            if any(text in engine.name for text in arguments.only.split(","))
        ]
        for site in arguments.sites.split(","):
            if site == "small":
                root = write_small_site(folder / "small")
            else:
                root = docs_server.lay_out(folder, docs_server.SMALL, copies=1)
            print(f"{site:<24} pages  CPU ms/page  pages/s   whole  start    end")
            for engine, runs in compare(root, chosen, rounds=arguments.rounds).items():
                print(_line(engine, runs), flush=True)


def _line(engine: str, runs: list[Run]) -> str:
    """Return a row of the table: medians."""

    def median(value: Callable[[Run], float]) -> float:
        return statistics.median(value(run) for run in runs)

    return (
        f"{engine:<23} {median(lambda run: run.pages):>6.0f}"
        f" {median(lambda run: run.cpu_of_page):>12.2f} {median(lambda run: run.rate):>8.0f}"
        f" {median(lambda run: run.whole):>7.0f} {median(lambda run: run.start):>6.2f}"
        f" {median(lambda run: run.end):>6.2f}"
    )


if __name__ == "__main__":
    main()
