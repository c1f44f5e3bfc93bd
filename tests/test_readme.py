"""What the README says of the code is true: the diagram, the settings, the examples, the links."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from crawlcw import run_spider
from crawlcw.errors import Reason
from crawlcw.limits import Limit, Limits
from crawlcw.retry import RETRY_STATUSES
from crawlcw.settings import described
from crawlcw.spider import check
from crawlcw.testing import ReplayDownloader
from crawlcw.transitions import diagram

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "crawlcw" / "ARCHITECTURE.md").read_text(encoding="utf-8")


def settings_table() -> str:
    rows = ["| setting | default | |", "|---|---|---|"]
    rows += [f"| `{name}` | {field.shown()} | {field.doc} |" for name, field in described()]
    return "\n".join(rows)


def block(language: str, containing: str) -> str:
    """Return the README's first block of *language* with *containing* in it."""
    blocks = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    return next(text for text in blocks if containing in text)


def test_the_state_diagram_is_drawn_from_the_table():
    assert block("mermaid", "stateDiagram") == diagram() + "\n"


def test_the_table_of_settings_has_every_setting_as_it_is():
    assert settings_table() in README


async def test_the_spider_of_the_readme_crawls(tmp_path):
    names: dict = {}
    exec(block("python", "class Books"), names)
    start = "https://books.toscrape.com/"
    pages = {
        start: '<article class="product_pod"><h3><a href="a.html">A</a></h3></article>'
        '<li class="next"><a href="page-2.html">next</a></li>',
        # As on the real site, every page of the catalogue is one link deeper.
        **{
            f"{start}page-{n}.html": f'<li class="next"><a href="page-{n + 1}.html">next</a></li>'
            for n in range(2, 50)
        },
        f"{start}page-50.html": '<article class="product_pod"><h3><a href="b.html">B</a></h3>',
        f"{start}a.html": '<h1>A</h1><p class="price_color">1.00</p>',
        f"{start}b.html": '<h1>B</h1><p class="price_color">2.00</p>',
    }

    report = await run_spider(
        names["Books"](), ledger=f"sqlite:///{tmp_path}/x.db", downloader=ReplayDownloader(pages)
    )

    assert (report.pages, report.items, report.drained) == (52, 2, True)


def test_the_limits_of_the_readme_are_those_it_says():
    names: dict = {}
    exec(block("python", "limits = {"), names)
    spider = names["Prices"]()

    check(spider)
    limits = Limits(spider.limits)
    assert limits.of("shop.example.com") == Limit(concurrency=1, delay="2s")
    assert limits.of("shop.example.com:8443") == Limit(concurrency=1, delay="2s")
    assert limits.of("shop.example.com:8080") == Limit(concurrency=4)
    assert limits.of("www.example.org") == Limit(delay="500ms")
    assert limits.of("example.org") == Limit(concurrency=2)


@pytest.mark.parametrize("text", [README, ARCHITECTURE], ids=["README", "ARCHITECTURE"])
def test_every_file_that_is_named_exists(text):
    named = set(re.findall(r"\]\(([\w./-]+)\)|`?((?:tests|examples|spiders)/[\w/]+\.py)", text))

    missing = [path for pair in named for path in pair if path and not (ROOT / path).exists()]

    assert missing == []


def test_the_retried_statuses_are_those_of_the_readme():
    assert "408, 425, 429, 500, 502-504 and 520-526" in README
    assert {408, 425, 429, 500, *range(502, 505), *range(520, 527)} == RETRY_STATUSES


def test_every_module_is_in_the_code_map():
    parts = {path.stem for path in (ROOT / "crawlcw").glob("*.py")} - {"__init__", "__main__"}
    parts |= {path.stem for path in (ROOT / "crawlcw" / "ledger").rglob("*.py")} - {"__init__"}
    parts |= {path.stem for path in (ROOT / "crawlcw" / "downloader").glob("*.py")} - {"__init__"}

    missing = [part for part in sorted(parts) if f"`{part}`" not in ARCHITECTURE]

    assert [part for part in missing if part != "testing"] == []


def test_the_examples_run():
    finished = subprocess.run(
        [sys.executable, "examples/embed_crawl.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert finished.returncode == 0, finished.stderr
    assert "drained:" in finished.stdout


def test_no_update_is_a_pipeline():
    files = list((ROOT / "crawlcw" / "ledger" / "mongo").glob("*.py"))
    source = "".join(file.read_text(encoding="utf-8") for file in files)
    assert "update_many(" in source

    # A pipeline is a list where an update is expected.
    assert not re.search(r"update_(one|many)\([^,]+,\s*\[", source)
    assert not re.search(r"UpdateOne\([^,]+,\s*\[", source)


def test_reasons_are_written_with_hyphens_only():
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", reason) for reason in Reason)
