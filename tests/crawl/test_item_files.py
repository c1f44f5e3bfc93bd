"""Items that contain requests for files: path, digest and size without a join, on every store."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from crawlcw import Request, Response, Settings, Spider, open_ledger, run_spider
from tests.support import media_site
from tests.support.commands import invoke
from tests.support.media_site import Media, MediaSite

SETTINGS = Settings(delay="0s", auto_throttle=False, max_retry=1, backoff_base="0s")


@dataclass
class Product:
    name: str
    cover: Request | None
    images: list[Request]


class Shop(Spider):
    """An item for each page, with the files of the page's images."""

    name = "shop"
    settings = SETTINGS
    folder = "images"

    def parse(self, response: Response) -> Iterator[Any]:
        images = [response.follow(node, save_to=self.folder) for node in response.css("img")]
        yield Product(response.url, images[0] if images else None, images)
        yield from response.follow_all("a")


@pytest.fixture
async def site() -> AsyncIterator[MediaSite]:
    async with media_site.running() as running:
        running.files = {"/a.png": Media(size=1000), "/b.png": Media(size=2000, version=2)}
        yield running


def shop(site: MediaSite, folder: Path) -> Shop:
    return Shop(start_urls=[site.url("/")], folder=str(folder))


async def products(ledger_url: str) -> dict[str, dict[str, Any]]:
    ledger = await open_ledger(ledger_url, Shop.name)
    try:
        return {row.item["name"]: row.item async for row in ledger.queries.items()}
    finally:
        await ledger.close()


def saved(site: MediaSite, folder: Path, path: str, *, url: str = "") -> dict[str, Any]:
    media = site.files[path]
    digest = media.sha256
    name = f"{digest}-{path[1:-4]}.png"
    return {
        "url": site.url(url or path),
        "path": str(folder / digest[:2] / name),
        "sha256": digest,
        "size": media.size,
        "status": "finished",
        "reason": None,
    }


def pending(url: str, status: str | None, reason: str | None = None) -> dict[str, Any]:
    return dict.fromkeys(("path", "sha256", "size")) | {
        "url": url,
        "status": status,
        "reason": reason,
    }


async def test_an_item_has_the_path_digest_and_size_of_its_files(
    site: MediaSite, ledger_url: str, tmp_path: Path
):
    site.pages["/"] = '<img src="/a.png"><img src="/old.png"><a href="/2">'
    site.pages["/2"] = '<img src="/a.png">'
    site.moved["/old.png"] = "/b.png"

    report = await run_spider(shop(site, tmp_path), ledger=ledger_url)

    assert (report.items, report.given_up) == (2, 0)
    a = saved(site, tmp_path, "/a.png")
    b = saved(site, tmp_path, "/b.png", url="/old.png")
    by_name = await products(ledger_url)
    assert by_name[site.url("/")] == {"name": site.url("/"), "cover": a, "images": [a, b]}
    assert by_name[site.url("/2")] == {"name": site.url("/2"), "cover": a, "images": [a]}
    assert {path.name for path in tmp_path.glob("??/*")} == {
        Path(file["path"]).name for file in (a, b)
    }
    assert [path for path, _ in site.asked].count("/a.png") == 1


async def test_an_item_says_why_it_has_no_file(site: MediaSite, ledger_url: str, tmp_path: Path):
    site.pages["/"] = (
        '<img src="/gone.png"><img src="http://other.example/a.png">'
        '<img src="mailto:a@b.example"><img src="/a.png">'
    )
    settings = replace(SETTINGS, max_pages=1)

    await run_spider(shop(site, tmp_path), ledger=ledger_url, settings=settings)
    (before,) = (await products(ledger_url)).values()
    await run_spider(shop(site, tmp_path), ledger=ledger_url)
    (after,) = (await products(ledger_url)).values()

    dropped = [
        pending("http://other.example/a.png", None, "refused-scope"),
        pending("mailto:a@b.example", None, "refused-scheme"),
    ]
    assert before["images"] == [
        pending(site.url("/gone.png"), "todo"),
        *dropped,
        pending(site.url("/a.png"), "todo"),
    ]
    assert after["images"] == [
        pending(site.url("/gone.png"), "ignored", "http-status"),
        *dropped,
        saved(site, tmp_path, "/a.png"),
    ]


async def test_max_depth_does_not_cut_an_item_in_two(
    site: MediaSite, ledger_url: str, tmp_path: Path
):
    site.pages |= {"/": '<a href="/2">', "/2": '<img src="/a.png"><a href="/3">'}

    await run_spider(
        shop(site, tmp_path), ledger=ledger_url, settings=replace(SETTINGS, max_depth=1)
    )

    by_name = await products(ledger_url)
    assert [*sorted(by_name)] == [site.url("/"), site.url("/2")]
    assert by_name[site.url("/2")]["cover"] == saved(site, tmp_path, "/a.png")


async def test_an_item_of_a_page_beyond_max_depth_keeps_its_files(
    site: MediaSite, ledger_url: str, tmp_path: Path
):
    """A page that is visited again may be deeper than a lower limit."""
    site.pages |= {"/": '<a href="/2">', "/2": '<img src="/a.png">'}
    spider = shop(site, tmp_path)
    await run_spider(spider, ledger=ledger_url, settings=replace(SETTINGS, max_pages=1))

    await run_spider(
        shop(site, tmp_path), ledger=ledger_url, settings=replace(SETTINGS, max_depth=0)
    )

    by_name = await products(ledger_url)
    assert by_name[site.url("/2")]["cover"] == saved(site, tmp_path, "/a.png")


async def test_the_commands_show_the_files(site: MediaSite, ledger_url: str, tmp_path: Path):
    site.pages["/"] = '<img src="/a.png">'
    await run_spider(shop(site, tmp_path), ledger=ledger_url)
    digest = site.files["/a.png"].sha256
    at = ("--ledger", ledger_url)

    page = invoke("show", "shop", site.url("/"), *at)
    image = invoke("show", "shop", site.url("/a.png"), *at)
    lines = invoke("export", "shop", "-o", "-", "--follow", *at)
    table = invoke("export", "shop", "-o", "-:csv:Product", "--fields", "cover", *at)

    assert f'"sha256":"{digest}","size":1000,"status":"finished"' in page.stdout
    assert f"  saved to {tmp_path}" in image.stdout
    for output in (lines.stdout, table.stdout.replace('""', '"')):
        assert f'"sha256":"{digest}","size":1000,"status":"finished"' in output


async def test_a_request_without_a_file_is_no_value_of_an_item(
    site: MediaSite, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    class Wrong(Shop):
        def parse(self, response: Response) -> Iterator[Any]:
            yield {"image": response.follow("/a.png")}

    site.pages["/"] = ""
    wrong = Wrong(start_urls=[site.url("/")])

    report = await run_spider(wrong, ledger=f"sqlite:///{tmp_path}/ledger.db")

    assert report.given_up == 1
    assert "'image' is a Request: did you mean .url or a request with save_to?" in caplog.text


_CRAWL = """
import asyncio, sys
from crawlcw import run_spider
from tests.crawl.test_item_files import Shop

start, folder, ledger = sys.argv[1:]
asyncio.run(run_spider(Shop(start_urls=[start], folder=folder), ledger=ledger))
"""


@pytest.fixture
def served_site() -> Iterator[MediaSite]:
    with media_site.served() as running:
        yield running


@pytest.mark.thorough
@pytest.mark.representative("sqlite")
def test_two_processes_complete_the_items_of_a_killed_one(
    served_site: MediaSite, ledger_url: str, tmp_path: Path
):
    site, folder = served_site, tmp_path / "images"
    site.files = {f"/{n}.png": Media(size=9000, version=n) for n in range(30)}
    site.pages["/"] = "".join(f'<img src="{path}">' for path in site.files)
    site.cuts.append(3000)  # the first image hangs until its process is killed
    command = [sys.executable, "-c", _CRAWL, site.url("/"), str(folder), ledger_url]

    killed = subprocess.Popen(command)
    try:
        deadline = time.monotonic() + 60
        while site.cuts or not (cut := asyncio.run(products(ledger_url))):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    workers = [subprocess.Popen(command) for _ in range(2)]
    codes = [worker.wait(timeout=120) for worker in workers]

    assert None in {file["path"] for file in cut[site.url("/")]["images"]}
    assert codes == [0, 0]
    (item,) = asyncio.run(products(ledger_url)).values()
    assert item["images"] == [saved(site, folder, path) for path in site.files]
