"""Crawls that save files: each content once, on both ledgers, whatever interrupts them."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crawlcw import (
    FinishReason,
    Reason,
    Report,
    Request,
    Response,
    Settings,
    Spider,
    Status,
    run_spider,
)
from crawlcw.ledger_opening import open_ledger
from crawlcw.testing import Replay, ReplayDownloader
from tests.support import media_site
from tests.support.examples import output_of
from tests.support.media_site import BLOCK, Media, MediaSite

MIB = 1 << 20
FILM = Media(size=5 * BLOCK)
SETTINGS = Settings(delay="0s", auto_throttle=False, backoff_base="0s", backoff_max="0s")


class Films(Spider):
    """Saves the files that the start page links to."""

    name = "films"
    settings = SETTINGS
    folder = "films"

    def parse(self, response: Response) -> Iterator[Request]:
        for link in response.css("a"):
            yield response.follow(link, self.parse_film, save_to=self.folder)

    def parse_film(self, response: Response) -> Iterator[dict[str, Any]]:
        yield {"url": response.url, "status": response.status, "file": response.file}


@pytest.fixture
async def site() -> AsyncIterator[MediaSite]:
    async with media_site.running(film=FILM) as running:
        running.pages["/"] = '<a href="/film.mp4">'
        yield running


def spider(site: MediaSite, folder: Path) -> Films:
    return Films(start_urls=[site.url("/")], folder=str(folder))


async def items_in(ledger_url: str) -> list[dict[str, Any]]:
    ledger = await open_ledger(ledger_url, Films.name)
    try:
        return [dict(row.item) async for row in ledger.queries.items()]
    finally:
        await ledger.close()


async def film_in(ledger_url: str, site: MediaSite, path: str = "/film.mp4") -> Any:
    ledger = await open_ledger(ledger_url, Films.name)
    try:
        return await ledger.tasks.get(Request(site.url(path)).identity()[1])
    finally:
        await ledger.close()


def whole_files(folder: Path) -> list[Path]:
    return [path for path in folder.glob("??/*") if path.is_file()]


@pytest.mark.thorough
@pytest.mark.representative("sqlite")
async def test_two_hundred_images_of_which_fifty_are_copies_are_stored_once_each(
    site: MediaSite, ledger_url: str, tmp_path: Path
) -> None:
    for number in range(200):
        image = Media(size=1000, version=number % 150, kind="image/png")
        site.files[f"/{number}.png"] = image
    site.pages["/"] = "".join(f'<a href="/{number}.png">' for number in range(200))

    report = await run_spider(spider(site, tmp_path / "images"), ledger=ledger_url)

    assert (report.finish_reason, report.items) == (FinishReason.DRAINED, 200)
    files = [item["file"] for item in await items_in(ledger_url)]
    assert len({file["path"] for file in files}) == 150
    assert {file["sha256"] for file in files} == {
        site.files[f"/{number}.png"].sha256 for number in range(150)
    }
    assert {str(path) for path in whole_files(tmp_path / "images")} == {
        file["path"] for file in files
    }


async def test_what_is_to_be_saved_is_known_to_the_next_run(
    site: MediaSite, ledger_url: str, tmp_path: Path
) -> None:
    await run_spider(
        spider(site, tmp_path), ledger=ledger_url, settings=replace(SETTINGS, max_pages=1)
    )
    assert whole_files(tmp_path) == []

    await run_spider(spider(site, tmp_path), ledger=ledger_url)

    (item,) = await items_in(ledger_url)
    assert item["file"]["sha256"] == FILM.sha256
    record = await film_in(ledger_url, site)
    assert (record.response.bytes, record.response.truncated) == (FILM.size, None)


async def test_the_next_attempt_goes_on_where_the_last_one_ended(
    site: MediaSite, ledger_url: str, tmp_path: Path
) -> None:
    site.cuts.extend([BLOCK, BLOCK])
    impatient = replace(SETTINGS, read_timeout="200ms")

    report = await run_spider(spider(site, tmp_path), ledger=ledger_url, settings=impatient)

    assert report.failures == {Reason.TIMEOUT_READ: 2}
    assert site.ranges() == [None, None, f"bytes={BLOCK}-", f"bytes={2 * BLOCK}-"]
    (item,) = await items_in(ledger_url)
    assert (item["status"], item["file"]["sha256"]) == (200, FILM.sha256)


async def test_a_file_behind_a_redirect_is_saved(
    site: MediaSite, ledger_url: str, tmp_path: Path
) -> None:
    site.moved["/old.mp4"] = "/film.mp4"
    site.pages["/"] = '<a href="/old.mp4">'

    await run_spider(spider(site, tmp_path), ledger=ledger_url)

    (item,) = await items_in(ledger_url)
    assert item["url"] == site.url("/film.mp4")
    assert Path(item["file"]["path"]).name == f"{FILM.sha256}-film.mp4"


Usage = namedtuple("Usage", "total used free")


async def test_a_full_disk_ends_the_crawl_and_costs_no_task_anything(
    site: MediaSite, ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(FILM.size, 0, FILM.size - 1))

    report = await run_spider(spider(site, tmp_path), ledger=ledger_url)

    assert report.finish_reason is FinishReason.FILES_UNWRITABLE
    assert report.detail.startswith(f"cannot save to {tmp_path}: ")
    record = await film_in(ledger_url, site)
    assert (record.task.status, record.task.retry) == (Status.TODO, 0)
    monkeypatch.undo()

    report = await run_spider(spider(site, tmp_path), ledger=ledger_url)

    assert (report.finish_reason, report.items) == (FinishReason.DRAINED, 1)


@pytest.mark.parametrize(
    "named",
    [
        "attachment; filename*0*=ISO-8859-15''a; filename*=ISO-8859-1''b",
        "attachment; filename*=hex''b; filename=b",
        "attachment; filename=b" + "\x80" * 3000,
    ],
)
async def test_no_name_of_a_file_ends_a_crawl(
    named: str, site: MediaSite, ledger_url: str, tmp_path: Path
) -> None:
    site.files["/film.mp4"] = replace(FILM, headers=(f"Content-Disposition: {named}",))
    site.files["/other.mp4"] = Media(size=17)
    site.pages["/"] = '<a href="/film.mp4"><a href="/other.mp4">'

    report = await run_spider(spider(site, tmp_path), ledger=ledger_url)

    assert (report.finish_reason, report.items) == (FinishReason.DRAINED, 2)
    assert f"{FILM.sha256}-b.mp4" in {path.name for path in whole_files(tmp_path)}


async def test_a_spider_is_tried_without_a_network(tmp_path: Path) -> None:
    films = Films(start_urls=["http://a.example/"], folder=str(tmp_path / "films"))
    web = ReplayDownloader(
        {"http://a.example/": '<a href="/film.mp4">', "http://a.example/film.mp4": b"a film"}
    )

    report = await run_spider(films, ledger=f"sqlite:///{tmp_path}/ledger.db", downloader=web)

    assert report.items == 1
    (film,) = whole_files(tmp_path / "films")
    assert film.read_bytes() == b"a film"


# Pages that are cut ----------------------------------------------------------------


class Pages(Spider):
    name = "pages"
    truncate: bool | None = None

    async def start(self) -> AsyncIterator[Request]:
        for number in range(3):
            yield Request(f"http://a.example/{number}", truncate=self.truncate)

    def parse(self, response: Response) -> Iterator[dict[str, Any]]:
        yield {"truncated": response.truncated}


async def cut_pages(
    tmp_path: Path, *, asked: bool | None = None, settings: Settings | None = None
) -> Report:
    pages = Pages(start_urls=[])
    pages.truncate = asked
    cut = Replay(body=b"abc", truncated="bytes")
    web = ReplayDownloader(
        {"http://a.example/0": cut, "http://a.example/1": cut, "http://a.example/2": b"abc"}
    )
    ledger = f"sqlite:///{tmp_path}/ledger.db"
    return await run_spider(pages, ledger=ledger, settings=settings, downloader=web)


async def test_bodies_that_are_cut_are_counted(tmp_path: Path) -> None:
    report = await cut_pages(tmp_path)

    assert (report.pages, report.truncated, report.failures) == (3, 2, {})


@pytest.mark.parametrize(
    ("asked", "settings"),
    [(False, True), (None, False), (False, False)],
)
async def test_bodies_are_not_cut_where_that_is_refused(
    tmp_path: Path, asked: bool | None, settings: bool
) -> None:
    report = await cut_pages(tmp_path, asked=asked, settings=Settings(truncate=settings))

    assert (report.pages, report.given_up) == (1, 2)
    assert report.failures == {Reason.BODY_TOO_LARGE: 2}


def test_the_example_runs(tmp_path: Path) -> None:
    said = output_of("films.py", tmp_path)

    assert "drained: 3 films" in said
    assert "/long.mp4, from byte " in said
    assert said.endswith("\n2 files\n")


# Processes that are killed ---------------------------------------------------------

_CRAWL = """
import asyncio, json, sys
from pathlib import Path
from crawlcw import run_spider
from tests.crawl.test_files import Films

start, folder, ledger = sys.argv[1:]
report = asyncio.run(run_spider(Films(start_urls=[start], folder=folder), ledger=ledger))
status = Path("/proc/self/status").read_text()
peak = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
print(json.dumps({"items": report.items, "peak": int(peak) << 10}))
"""


@pytest.fixture
def served_film(request: pytest.FixtureRequest) -> Iterator[MediaSite]:
    with media_site.served(film=Media(size=request.param)) as running:
        running.pages["/"] = '<a href="/film.mp4">'
        yield running


@pytest.mark.thorough
@pytest.mark.representative("sqlite", "24MiB")
@pytest.mark.parametrize(
    "served_film",
    [pytest.param(24 * MIB, id="24MiB"), pytest.param(2 << 30, id="2GiB")],
    indirect=True,
)
def test_a_file_goes_on_where_a_killed_process_left_it(
    served_film: MediaSite, ledger_url: str, tmp_path: Path
) -> None:
    site, media = served_film, served_film.files["/film.mp4"]
    site.cuts.append(media.size * 5 // 6)
    folder = tmp_path / "films"
    command = [sys.executable, "-c", _CRAWL, site.url("/"), str(folder), ledger_url]

    killed = subprocess.Popen(command)
    try:
        noted = media.size * 5 // 6 - 16 * MIB
        until = time.monotonic() + 120
        while sum(_noted(note) for note in folder.glob(".parts/*.json")) < noted:
            assert time.monotonic() < until
            time.sleep(0.02)
    finally:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    assert whole_files(folder) == []
    finished = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)

    told = json.loads(finished.stdout.splitlines()[-1])
    assert told["items"] == 1
    assert told["peak"] < 200 * MIB
    (film,) = whole_files(folder)
    assert film.name == f"{media.sha256}-film.mp4"
    assert film.stat().st_size == media.size
    # A crash repeats a bounded part of the transfer.
    assert site.sent <= media.size + 17 * MIB
    assert site.ranges()[-1] is not None
    assert [path.name for path in (folder / ".parts").iterdir()] == ["lock"]


def _noted(note: Path) -> int:
    try:
        return int(json.loads(note.read_text())["size"])
    except (OSError, ValueError):
        return 0
