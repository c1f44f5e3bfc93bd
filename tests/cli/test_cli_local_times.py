"""Times in a ledger: naive ones stay naive, and aware ones keep their instant."""

import csv
import json
import subprocess
from datetime import datetime
from pathlib import Path

from pyarrow import parquet

from tests.cli.test_cli import PATIENCE, command, environment
from tests.support import docs
from tests.support.dashboards import dashboard

ZONE = "America/Chicago"
OPENS, OPENED = "2026-07-04T14:30:00", "2026-07-04T19:30:00Z"
SPIDER = """\
from datetime import datetime, timezone, timedelta
from crawlcw import Settings, Spider

OPENS = datetime(2026, 7, 4, 14, 30)

class Shops(Spider):
    name = "shops"
    start_urls = [{start!r}]
    settings = Settings(delay="0s", auto_throttle=False)

    def parse(self, response):
        yield response.follow("shop.html", self.parse_shop, context={{"hours": [OPENS]}})

    def parse_shop(self, response):
        (opens,) = response.context["hours"]
        yield {{
            "opens": opens,
            "instant": opens.replace(tzinfo=timezone(timedelta(hours=-5))),
            "same": opens == OPENS,
            "hours": {{"of a day": [opens]}},
        }}

    def item(self, item, response):
        return {{**item, "is_local": item["opens"].tzinfo is None}}
"""
ITEM = {
    "opens": OPENS,
    "instant": OPENED,
    "same": True,
    "hours": {"of a day": [OPENS]},
    "is_local": True,
}


def crawlcw(*arguments: str) -> str:
    run = subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=environment() | {"TZ": ZONE},
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


async def test_a_local_time_is_shown_as_it_was_written(
    tmp_path: Path, monkeypatch, ledger_url: str
):
    monkeypatch.chdir(tmp_path)
    pages = tmp_path / "site"
    pages.mkdir()
    for name in "index.html", "shop.html":
        (pages / name).write_text("<h1>a shop</h1>")
    Path("spiders").mkdir()
    at = ("--ledger", ledger_url)
    with docs.served(pages) as served:
        shop = f"{served.origin}/shop.html"
        start = f"{served.origin}/index.html"
        Path("spiders", "shops.py").write_text(SPIDER.format(start=start))
        outputs = [f"-oshops.{form}" for form in ("jsonl", "json", "csv", "parquet")]
        crawlcw("run", "shops", "-q", *at, *outputs)

    assert json.loads(Path("shops.jsonl").read_text()) == ITEM
    assert json.loads(Path("shops.json").read_text()) == [ITEM]
    (row,) = csv.DictReader(Path("shops.csv").read_text().splitlines())
    assert (row["opens"], row["instant"]) == (OPENS, OPENED)
    (row,) = parquet.read_table("shops.parquet").to_pylist()
    times = (datetime.fromisoformat(OPENS), datetime.fromisoformat(OPENED))
    assert (row["opens"], row["instant"]) == times
    assert json.loads(crawlcw("export", "shops", "-o", "-", *at)) == ITEM
    shown = json.loads(crawlcw("show", "shops", shop, "--json", *at))
    assert shown["items"] == [ITEM]
    assert shown["context"] == {"hours": [OPENS]}
    async with dashboard(ledger_url, "shops") as page:
        await page.start()
        status, found = await page.get(f"/api/crawls/shops/tasks/{shown['id']}")
        assert status == 200, found
        assert json.loads(found["items"][0]) == ITEM
        assert json.loads(found["context"]) == {"hours": [OPENS]}
