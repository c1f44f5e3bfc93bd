"""Crawls that keep their pages: the WARC records, and the record that each task names."""

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from warcio.archiveiterator import ArchiveIterator

from crawlcw import FinishReason, Report, Request, Response, Settings, Spider, run_spider
from crawlcw.archive.bodies import read_stored
from crawlcw.archive.records import Answer
from crawlcw.ledger.protocol import TaskFilter
from crawlcw.ledger_opening import open_ledger
from crawlcw.model.spider_state import visible_values
from crawlcw.model.task import Record, Status
from crawlcw.testing import Replay, ReplayDownloader

#: MongoDB runs with the thorough tests: the contract suite of ledgers covers the store.
pytestmark = [pytest.mark.thorough, pytest.mark.representative("sqlite")]

HOME = "http://a.example/"
SETTINGS = Settings(
    keep_bodies=True, delay="0s", backoff_base="0s", backoff_max="0s", obey_robots=False
)


class Pages(Spider):
    name = "pages"
    start_urls = [HOME]

    def parse(self, response: Response) -> Iterator[Any]:
        yield {"text": response.text}
        yield from response.follow_all("a")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(SETTINGS, bodies_dir=str(tmp_path / "warc"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "warc" / "pages"


async def crawled(
    answers: dict[str, Any], ledger: str, settings: Settings, spider: Spider | None = None
) -> Report:
    web = ReplayDownloader(answers)
    return await run_spider(spider or Pages(), ledger=ledger, settings=settings, downloader=web)


async def found(ledger_url: str, url: str = HOME) -> Record:
    ledger = await open_ledger(ledger_url, "pages")
    try:
        record = await ledger.tasks.get(Request(url).identity()[1])
    finally:
        await ledger.close()
    assert record is not None
    return record


async def state(ledger_url: str) -> dict[str, Any]:
    ledger = await open_ledger(ledger_url, "pages")
    try:
        return visible_values(await ledger.spider_state.read())
    finally:
        await ledger.close()


async def stored(ledger_url: str, folder: Path, url: str = HOME) -> Answer:
    place = (await found(ledger_url, url)).task.stored
    assert place is not None
    return read_stored(folder, place, max_size=1 << 20)


def records(folder: Path) -> list[tuple[str, str]]:
    """Return kind and URL of all records in order; check their digests."""
    seen = []
    for path in sorted(folder.iterdir()):
        assert path.name.endswith(".warc.gz"), "the file was not closed"
        with path.open("rb") as stream:
            for record in ArchiveIterator(stream, check_digests="raise"):
                record.raw_stream.read()
                url = record.rec_headers.get_header("WARC-Target-URI")
                if url is not None:
                    seen.append((record.rec_type, url.removeprefix(HOME)))
    return seen


async def test_each_page_is_kept_and_named_by_its_task(
    ledger_url: str, folder: Path, settings: Settings
):
    answers = {HOME: Replay(body="<a href=/1>ü", headers={"X-A": "1"}), f"{HOME}1": "one"}

    report = await crawled(answers, ledger_url, settings)

    assert (report.pages, report.failures) == (2, {})
    assert sorted(records(folder)) == sorted(
        (kind, url) for url in ("", "1") for kind in ("request", "response")
    )
    home = await stored(ledger_url, folder)
    assert (home.url, home.status, home.body) == (HOME, 200, "<a href=/1>ü".encode())
    assert home.headers["x-a"] == "1"
    assert (await stored(ledger_url, folder, f"{HOME}1")).body == b"one"


async def test_nothing_is_kept_by_default(ledger_url: str, folder: Path, settings: Settings):
    await crawled({HOME: "x"}, ledger_url, replace(settings, keep_bodies=False))

    assert (await found(ledger_url)).task.stored is None
    assert not folder.exists()


async def test_redirects_are_records_and_the_page_behind_them_is_named(
    ledger_url: str, folder: Path, settings: Settings
):
    answers = {
        HOME: Replay(status=302, headers={"Location": "/1"}),
        f"{HOME}1": Replay(status=301, headers={"Location": "/2"}),
        f"{HOME}2": "two",
    }

    await crawled(answers, ledger_url, settings)

    assert {url for kind, url in records(folder) if kind == "response"} == {"", "1", "2"}
    assert (await stored(ledger_url, folder, f"{HOME}2")).body == b"two"
    # A redirect has no body to parse.
    assert (await found(ledger_url)).task.stored is None


async def test_a_body_that_is_cut_says_so(ledger_url: str, folder: Path, settings: Settings):
    await crawled({HOME: Replay(body=b"abc", truncated="bytes")}, ledger_url, settings)

    assert (await stored(ledger_url, folder)).is_cut


# Further visits ----------------------------------------------------------------------


async def visited_again(answers: dict[str, Any], ledger_url: str, settings: Settings) -> Report:
    ledger = await open_ledger(ledger_url, "pages")
    task = (await found(ledger_url)).task
    assert await ledger.admin.revisit(TaskFilter(ids={task.id}, changed_before=ledger.now())) == 1
    await ledger.close()
    return await crawled(answers, ledger_url, settings)


ETAG = {"ETag": '"1"'}


@pytest.mark.parametrize(
    "again", [Replay(status=304, headers=ETAG), Replay(body="a page", headers=ETAG)]
)
async def test_a_page_that_is_as_it_was_keeps_its_record(
    ledger_url: str, folder: Path, settings: Settings, again: Replay
):
    await crawled({HOME: Replay(body="a page", headers=ETAG)}, ledger_url, settings)
    before = (await found(ledger_url)).task.stored

    report = await visited_again({HOME: again}, ledger_url, settings)

    assert report.unchanged == 1
    assert (await found(ledger_url)).task.stored == before
    assert sorted(kind for kind, _ in records(folder)) == ["request", "response", "revisit"]


async def test_a_page_that_has_changed_has_a_new_record(
    ledger_url: str, folder: Path, settings: Settings
):
    await crawled({HOME: "a page"}, ledger_url, settings)

    await visited_again({HOME: "another page"}, ledger_url, settings)

    assert (await stored(ledger_url, folder)).body == b"another page"


class Asked(ReplayDownloader):
    """Downloader that logs the validators of its requests."""

    def __init__(self, answers: dict[str, Any]) -> None:
        super().__init__(answers)
        self.validators: list[str] = []

    async def fetch(self, request: Request, *, url: str) -> Response:
        self.validators += [value for name, value in request.headers if name == "If-None-Match"]
        return await super().fetch(request, url=url)


async def test_a_page_without_a_body_is_asked_for_as_a_whole(
    ledger_url: str, folder: Path, settings: Settings
):
    page = {HOME: Replay(body="a page", headers=ETAG)}
    await crawled(page, ledger_url, replace(settings, keep_bodies=False))
    web = Asked(page)
    ledger = await open_ledger(ledger_url, "pages")
    await ledger.admin.revisit(TaskFilter(changed_before=ledger.now()))
    await ledger.close()

    report = await run_spider(Pages(), ledger=ledger_url, settings=settings, downloader=web)

    assert (report.unchanged, web.validators) == (1, [])
    assert (await stored(ledger_url, folder)).body == b"a page"


# Disks -------------------------------------------------------------------------------


async def test_a_full_disk_ends_the_crawl_and_costs_no_task_anything(
    ledger_url: str, folder: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    write = os.write
    written: list[int] = []

    def filling(descriptor: int, data: Any) -> int:
        if "warc" not in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            return write(descriptor, data)
        if len(written) > 1:  # groups of pages
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(len(data))
        return write(descriptor, data)

    links = "".join(f"<a href=/{n}>" for n in range(9))
    answers = {HOME: links, **{f"{HOME}{n}": f"page {n}" for n in range(9)}}
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", filling)
        report = await crawled(answers, ledger_url, replace(settings, concurrency=1))

    assert report.finish_reason is FinishReason.FILES_UNWRITABLE
    assert report.detail == f"cannot store pages in {folder}: No space left on device"
    assert report.failures == {}
    again = await crawled(answers, ledger_url, settings)
    assert (again.finish_reason, again.failures) == (FinishReason.DRAINED, {})
    # No record twice, and none lost.
    assert again.pages > 0
    assert report.pages + again.pages == 10
    assert [(await found(ledger_url, f"{HOME}{n}")).task.retry for n in range(9)] == [0] * 9
    for number in range(9):
        assert (await stored(ledger_url, folder, f"{HOME}{number}")).body == b"page %d" % number


async def test_no_outcome_is_recorded_of_a_page_that_was_not_synced(
    ledger_url: str, folder: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    class Counting(Pages):
        def parse(self, response: Response) -> Iterator[Any]:
            self.state.add("pages")
            return super().parse(response)

    fsync = os.fsync

    def broken(descriptor: int) -> None:
        if "warc.gz" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", broken)
        report = await crawled({HOME: "a page"}, ledger_url, settings, Counting())

    assert report.finish_reason is FinishReason.FILES_UNWRITABLE
    assert report.detail == f"cannot store pages in {folder}: Input/output error"
    record = await found(ledger_url)
    assert (record.task.status, record.task.retry, record.task.stored) == (Status.TODO, 0, None)
    assert record.items == ()
    assert await state(ledger_url) == {}

    report = await crawled({HOME: "a page"}, ledger_url, settings, Counting())

    assert (report.finish_reason, report.pages) == (FinishReason.DRAINED, 1)
    assert (await stored(ledger_url, folder)).body == b"a page"
    assert await state(ledger_url) == {"pages": 1}


async def test_a_folder_that_cannot_be_made_says_so(
    ledger_url: str, tmp_path: Path, settings: Settings
):
    (tmp_path / "warc").write_text("a file")

    report = await crawled({HOME: "a page"}, ledger_url, settings)

    assert report.finish_reason is FinishReason.FILES_UNWRITABLE
    assert report.detail == f"cannot store pages in {tmp_path}/warc/pages: Not a directory"


async def test_what_a_crashed_process_has_left_is_mended_by_the_next_crawl(
    ledger_url: str, folder: Path, settings: Settings
):
    await crawled({HOME: "a page"}, ledger_url, settings)
    (path,) = folder.iterdir()
    with path.open("ab") as stream:
        stream.write(b"\x1f\x8b torn")
    path.rename(f"{path}.open")

    await visited_again({HOME: "another page"}, ledger_url, settings)

    assert len(records(folder)) == 4
    assert path.exists()
