"""Crawls of the project `shop` by crawlcw, in processes of their own."""

import sys
from pathlib import Path

from tests.scrapy.site import Site
from tests.scrapy.truth import PROJECT, Crawl, items_in, signals_in, variables
from tests.support.programs import run_to_end


def command_of(spider: str, site: Site, ledger: str, *options: str) -> list[str]:
    """Return the command that crawls *site* by a spider of the project."""
    hosts = [address.split("/")[2] for address in (site.url, site.closed_url)]
    settings = {
        "allow_private": ",".join(hosts),
        # Scrapy retries without a wait.
        "backoff_base": "50ms",
        "host_backoff_base": "50ms",
    }
    return [
        *(sys.executable, "-m", "crawlcw", "run", f"{PROJECT}:{spider}", "--ledger", ledger),
        *(option for name, value in settings.items() for option in ("-s", f"{name}={value}")),
        *options,
    ]


def crawled_by_crawlcw(site: Site, spider: str, folder: Path, *options: str) -> Crawl:
    """Run `crawlcw run PROJECT:SPIDER` to its end, and return its items and signals."""
    site.reset()
    command = command_of(spider, site, f"sqlite:///{folder}/ledger.db", *options)
    items = finished(command, site, folder)
    return Crawl(items, signals_in(folder), site.requests.copy())


def finished(command: list[str], site: Site, folder: Path) -> list[str]:
    """Run *command* to its end, and return all items of the crawl in order."""
    output = folder / "items.jsonl"
    done = run_to_end(
        [*command, "-o", str(output)], folder=folder, variables=variables(site, folder)
    )
    # 3: it has given up a host, as the spider wants it.
    assert done.returncode in {0, 3}, done.stderr
    return items_in(output)
