"""Run a spider of the project `shop` by Scrapy itself, in a process of its own.

    python -m tests.scrapy.truth crawl SPIDER [options of `scrapy crawl`]

runs Scrapy with the shims of `crawlcw.scrapy.older`, so that the spiders of older projects run
on each version.
"""

import json
import os
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.scrapy.site import Site
from tests.support.programs import environment, run_to_end

PROJECT = Path(__file__).parent / "project"


@dataclass(frozen=True, slots=True)
class Crawl:
    """The items of a crawl in a fixed order, and the counts of signals and statistics."""

    items: list[str]  #: JSON with sorted keys, which a difference shows best
    signals: Counter[str]
    requests: Counter[str]  #: that the site received


def variables(site: Site, folder: Path) -> dict[str, str]:
    """Return the environment of a program that crawls *site* and writes into *folder*."""
    paths = [environment()["PYTHONPATH"], os.environ.get("PYTHONPATH", "")]
    return {
        # Another version of Scrapy than the installed one may stand in it.
        "PYTHONPATH": os.pathsep.join(path for path in reversed(paths) if path),
        "SHOP_SITE": site.url,
        "SHOP_CLOSED": site.closed_url,
        "SHOP_SIGNALS": str(folder / "signals.json"),
        "SHOP_DATABASE": str(folder / "shop.db"),
        "SHOP_FILES": str(folder / "files"),
    }


def crawled_by_scrapy(site: Site, spider: str, folder: Path) -> Crawl:
    """Run `scrapy crawl SPIDER`, and return its items and signals."""
    site.reset()
    command = [sys.executable, "-m", "tests.scrapy.truth", "crawl", spider]
    output = folder / "items.jsonl"
    done = run_to_end(
        [*command, "-o", f"{output}:jsonlines"],
        folder=PROJECT,
        variables=variables(site, folder),
    )
    assert done.returncode == 0, done.stderr
    return Crawl(items_in(output), signals_in(folder), site.requests.copy())


def items_in(output: Path) -> list[str]:
    """Return the items of a file in JSON Lines in a fixed order, because pages end in any order."""
    lines = output.read_text().splitlines() if output.exists() else []
    return sorted(
        json.dumps(json.loads(line), sort_keys=True, ensure_ascii=False) for line in lines
    )


def signals_in(folder: Path) -> Counter[str]:
    """Return the counts of signals that the project's extension has written."""
    return Counter(json.loads((folder / "signals.json").read_text()))


if __name__ == "__main__":
    from scrapy.cmdline import execute

    from crawlcw.scrapy import older

    older.install()
    execute(["scrapy", *sys.argv[1:]])
