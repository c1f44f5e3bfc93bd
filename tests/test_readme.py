"""README and ARCHITECTURE agree with the code: the spider, the output, the figures."""

import re
import subprocess
import sys
import tomllib

from crawlcw import run_spider
from crawlcw.errors import Reason
from crawlcw.guide.pages import NAMES
from crawlcw.testing import ReplayDownloader
from tests.support import pages
from tests.support.examples import output_of
from tests.support.pages import ROOT

README = pages.text_of(pages.README)
ARCHITECTURE = pages.text_of(pages.ARCHITECTURE)


def test_the_readme_takes_ten_minutes():
    assert len(README.splitlines()) <= 150


async def test_the_spider_of_the_readme_crawls(tmp_path):
    names: dict = {}
    exec(pages.block(README, "python", "class Books"), names)
    start = "https://books.toscrape.com/"
    site = {
        start: '<article class="product_pod"><h3><a href="a.html">A</a></h3></article>'
        '<li class="next"><a href="page-2.html">next</a></li>',
        # Like on the real site, every page of the catalogue is one link deeper.
        **{
            f"{start}page-{n}.html": f'<li class="next"><a href="page-{n + 1}.html">next</a></li>'
            for n in range(2, 50)
        },
        f"{start}page-50.html": '<article class="product_pod"><h3><a href="b.html">B</a></h3>',
        f"{start}a.html": '<h1>A</h1><p class="price_color">1.00</p>',
        f"{start}b.html": '<h1>B</h1><p class="price_color">2.00</p>',
    }

    report = await run_spider(
        names["Books"](), ledger=f"sqlite:///{tmp_path}/x.db", downloader=ReplayDownloader(site)
    )

    assert (report.pages, report.items, report.drained) == (52, 2, True)


def test_the_demo_prints_what_the_readme_shows(tmp_path):
    demo = subprocess.run(
        [sys.executable, "-m", "crawlcw", "demo"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    # The width of a column depends on its longest figure, which may be the time.
    printed = {" ".join(line.split()) for line in demo.stdout.splitlines()}

    shown = pages.block(README, "", "Crawling the bookshop").splitlines()
    differs = ("Crawling", " ...", " elapsed")  # a port, omitted lines, a time
    missing = [
        line
        for line in shown
        if not line.startswith(differs) and " ".join(line.split()) not in printed
    ]
    assert missing == []


def test_the_figures_of_the_readme_are_those_of_the_page_about_performance():
    table = pages.block(pages.guide("performance"), "", "bare loop")
    rates = {line[:28].strip(): int(line[28:].split()[0]) for line in table.splitlines()[1:]}
    rates["mongodb"] = max(rate for engine, rate in rates.items() if engine.startswith("mongodb"))
    # Three digits: the machine is noisy.
    shown = {engine: f"{float(f'{rate:.2e}'):,.0f}" for engine, rate in rates.items()}

    text = " ".join(README.split())
    sqlite, postgres, mongodb = (shown[name] for name in ("sqlite", "postgres", "mongodb"))
    assert f"`crawlcw run` crawls {sqlite} pages a second" in text
    assert f"on SQLite, {postgres} on PostgreSQL and {mongodb} on MongoDB" in text
    assert f"does {shown['bare loop']} pages a second. Scrapy does {shown['scrapy']} pages" in text


def test_the_readme_leads_to_every_page_of_the_manual():
    led_to = set(re.findall(r"\(crawlcw/guide/([\w-]+)\.md\)", README))

    assert led_to == {name for name in NAMES if not name.startswith("api-")}


def test_the_architecture_is_read_in_half_an_hour():
    assert len(ARCHITECTURE.encode()) <= 25_000


def test_the_architecture_has_a_row_for_each_room():
    named = set(rooms_in_order())
    package = ROOT / "crawlcw"
    there = {path.parent.name for path in package.glob("*/__init__.py")}
    there |= {path.stem for path in package.glob("*.py") if not path.stem.startswith("__")}

    assert there <= named


def test_the_architecture_has_the_rooms_in_the_order_that_the_linter_checks():
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = reversed(contract["contracts"][0]["layers"])
    level = {name: number for number, layer in enumerate(layers) for name in layer.split(" | ")}
    levels = [level[name] for name in rooms_in_order()]

    assert levels == sorted(levels)


def rooms_in_order():
    rooms = ARCHITECTURE.partition("## Rooms, bottom first")[2].partition("\n## ")[0]
    firsts = re.findall(r"(?m)^\| (`[^|]+) \|", rooms)
    return re.findall(r"`([a-z_]+)/?`", " ".join(firsts))


def test_the_examples_run(tmp_path):
    assert "drained:" in output_of("embed_crawl.py", tmp_path)


def test_the_example_of_a_sitemap_asks_for_no_book_twice(tmp_path):
    first, second = output_of("sitemap.py", tmp_path).splitlines()

    assert first == "first run: 240 items on 243 pages"
    assert second == "second run: 0 items on 2 pages"


def test_no_update_is_a_pipeline():
    files = list((ROOT / "crawlcw" / "ledger" / "mongo").glob("*.py"))
    source = "".join(file.read_text(encoding="utf-8") for file in files)
    assert "update_many(" in source

    # A pipeline is a list in the place of an update.
    assert not re.search(r"update_(one|many)\([^,]+,\s*\[", source)
    assert not re.search(r"UpdateOne\([^,]+,\s*\[", source)


def test_reasons_are_written_with_hyphens_only():
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", reason) for reason in Reason)
