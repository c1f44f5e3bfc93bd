"""Files that are streamed to a folder: resumed, checked, never mixed, never cut."""

import asyncio
import errno
import gzip
import json
import os
import shutil
import time
from collections import namedtuple
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crawlcw.api.attempt import LoggedOutError, Session
from crawlcw.api.document import SavedFile
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.errors import FetchError, Reason
from crawlcw.fetch.credentials import Credentials
from crawlcw.fetch.pipeline import CheckAnswer
from crawlcw.fetch.transport import AiohttpDownloader
from crawlcw.files import partial
from crawlcw.files.saving import SaveFile
from crawlcw.testing import Replay, ReplayDownloader
from tests.support import media_site
from tests.support.attempts import Layered, attempt, session
from tests.support.media_site import BLOCK, Media, MediaSite

FILM = Media(size=5 * BLOCK + 17)
SETTINGS = Settings(timeout="2s", read_timeout="500ms", max_body="1 KiB")


@pytest.fixture
async def site() -> AsyncIterator[MediaSite]:
    async with media_site.running(film=FILM) as running:
        yield running


async def saved(
    site: MediaSite, folder: Path, path: str = "/film.mp4", **settings: Any
) -> Response:
    """Return the response of one attempt, with its deadline."""
    chosen = SETTINGS if not settings else Settings(**{"read_timeout": "500ms"} | settings)
    request = Request(site.url(path), save_to=folder)
    async with AiohttpDownloader(chosen, start_origins=[f"127.0.0.1:{site.port}"]) as downloader:
        return await attempt(request, downloader=downloader, settings=chosen)


async def interrupted(site: MediaSite, folder: Path, *, after: int = 3 * BLOCK) -> None:
    """Run one attempt that gets the first bytes only."""
    # A hanging server, not a closed connection: that would lose a random part of the last bytes.
    site.cuts.append(after)
    with pytest.raises(FetchError) as caught:
        await saved(site, folder, read_timeout="200ms")
    assert caught.value.reason is Reason.TIMEOUT_READ


def packed_media(packed: bytes) -> Media:
    """Return a file that the server sends as gzip, whole or not."""
    return Media(size=len(packed), body=packed, headers=("Content-Encoding: gzip",))


def check(file: SavedFile | None, media: Media = FILM) -> None:
    """Check that a file equals the server's, byte for byte."""
    assert file is not None
    assert (file.sha256, file.size) == (media.sha256, media.size)
    assert Path(file.path).read_bytes() == media.piece(0, media.size)


def names(folder: Path) -> list[str]:
    """Return the complete files."""
    return sorted(each.name for each in folder.rglob("*") if each.is_file() and each.name != "lock")


# Saving ------------------------------------------------------------------------


async def test_a_body_of_any_type_and_size_is_in_a_file_and_not_in_memory(
    site: MediaSite, tmp_path: Path
) -> None:
    response = await saved(site, tmp_path)

    check(response.file)
    assert (response.body, response.truncated, response.size) == (b"", None, FILM.size)
    assert names(tmp_path) == [f"{FILM.sha256}-film.mp4"]


async def test_equal_contents_are_one_file(site: MediaSite, tmp_path: Path) -> None:
    site.files["/copy.mp4"] = FILM

    first, second = await asyncio.gather(saved(site, tmp_path), saved(site, tmp_path, "/copy.mp4"))

    assert first.file == second.file
    assert len(names(tmp_path)) == 1


async def test_one_url_asked_for_twice_at_once_is_one_file(site: MediaSite, tmp_path: Path) -> None:
    responses = await asyncio.gather(*(saved(site, tmp_path) for _ in range(4)))

    for response in responses:
        check(response.file)
    assert len(names(tmp_path)) == 1


async def test_a_page_that_says_why_there_is_no_file_is_read_as_a_page(
    site: MediaSite, tmp_path: Path
) -> None:
    response = await saved(site, tmp_path, "/none")

    assert (response.status, response.file) == (404, None)
    assert names(tmp_path) == []


async def test_an_answer_without_content_is_no_file(tmp_path: Path) -> None:
    web = ReplayDownloader({"http://a.example/": Replay(status=204)})
    request = Request("http://a.example/", save_to=tmp_path)

    with pytest.raises(FetchError, match="204"):
        await Layered(SaveFile(SETTINGS), over=web).fetch(request, url=request.url)


async def test_a_coded_body_that_ends_too_early_is_no_file(site: MediaSite, tmp_path: Path) -> None:
    packed = gzip.compress(b"film" * 99)[:-9]
    site.files["/film.mp4"] = packed_media(packed)

    with pytest.raises(FetchError) as caught:
        await saved(site, tmp_path)

    assert caught.value.reason is Reason.PAYLOAD_TRUNCATED
    assert names(tmp_path) == []


async def test_a_coding_that_nobody_asked_for_is_taken_off(site: MediaSite, tmp_path: Path) -> None:
    content = FILM.piece(0, FILM.size)
    site.files["/film.mp4"] = packed_media(gzip.compress(content))

    response = await saved(site, tmp_path)

    check(response.file)
    assert site.asked[0][1]["accept-encoding"] == "identity"


async def test_a_body_that_swells_without_end_is_refused(
    site: MediaSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crawlcw.fetch.body._SWELLING_FROM", 1 << 16)
    packed = gzip.compress(bytes(50 << 20))
    site.files["/film.mp4"] = packed_media(packed)

    with pytest.raises(FetchError) as caught:
        await saved(site, tmp_path)

    assert caught.value.reason is Reason.CONTENT_ENCODING
    assert names(tmp_path) == []


async def test_what_is_in_memory_is_saved_as_well(tmp_path: Path) -> None:
    web = ReplayDownloader({"http://a.example/a": Replay(body=b"abc")})
    request = Request("http://a.example/a", save_to=tmp_path)

    response = await Layered(SaveFile(SETTINGS), over=web).fetch(request, url=request.url)

    assert response.file is not None
    assert Path(response.file.path).read_bytes() == b"abc"
    assert (response.body, response.size) == (b"", 3)


async def checked(
    site: MediaSite, folder: Path, login_when: Any, *, own: Session | None
) -> Response:
    """Return the response of a spider that logs in, in its *own* session."""

    class Members(Spider):
        name = "members"

    Members.login_when = login_when
    url = site.url("/film.mp4")
    layers = CheckAnswer(Members()), SaveFile(SETTINGS)
    async with AiohttpDownloader(SETTINGS, start_origins=[f"127.0.0.1:{site.port}"]) as web:
        downloader = Layered(*layers, over=web, session=own)
        return await downloader.fetch(Request(url, save_to=folder), url=url)


async def test_a_long_page_that_asks_for_a_login_is_no_file(
    site: MediaSite, tmp_path: Path
) -> None:
    with pytest.raises(LoggedOutError):
        await checked(site, tmp_path, 200, own=session())

    assert names(tmp_path) == []
    # Where there is no session, none is logged out.
    check((await checked(site, tmp_path, 200, own=None)).file)


async def test_the_beginning_of_a_file_says_if_a_login_is_asked_for(
    site: MediaSite, tmp_path: Path
) -> None:
    def is_login(_: Spider, response: Response) -> bool:
        return not response.body

    check((await checked(site, tmp_path, is_login, own=session())).file)


async def test_a_file_needs_its_origins_password_as_pages_do(
    site: MediaSite, tmp_path: Path
) -> None:
    url = site.url("/film.mp4")
    credentials = Credentials([url.replace("//", "//me:secret@")])
    async with AiohttpDownloader(SETTINGS, start_origins=[f"127.0.0.1:{site.port}"]) as web:
        downloader = Layered(credentials, over=web)
        response = await downloader.fetch(Request(url, save_to=tmp_path), url=url)

    check(response.file)
    assert site.asked[0][1]["authorization"].startswith("Basic ")


# Resuming ------------------------------------------------------------------------


async def test_what_one_session_has_is_not_gone_on_with_by_another(
    site: MediaSite, tmp_path: Path
) -> None:
    site.cuts.extend([3 * BLOCK, 3 * BLOCK])
    request = Request(site.url("/film.mp4"), save_to=tmp_path)
    settings = Settings(read_timeout="200ms")
    async with AiohttpDownloader(settings, start_origins=[f"127.0.0.1:{site.port}"]) as web:
        ada, bob = (Layered(over=web, session=session(name)) for name in ("ada", "bob"))
        for somebody in (ada, bob):
            with pytest.raises(FetchError):
                await somebody.fetch(request, url=request.url)

        response = await ada.fetch(request, url=request.url)

    check(response.file)
    first, second, third = site.ranges()
    assert (first, second) == (None, None)
    assert third is not None


@pytest.mark.parametrize("headers", [(), ("Content-Encoding: identity",)])
async def test_the_next_attempt_asks_for_the_rest(
    site: MediaSite, tmp_path: Path, headers: tuple[str, ...]
) -> None:
    site.files["/film.mp4"] = Media(size=FILM.size, headers=headers)
    await interrupted(site, tmp_path)

    check((await saved(site, tmp_path)).file)
    assert site.ranges() == [None, f"bytes={3 * BLOCK}-"]
    assert site.asked[1][1]["if-range"] == '"v1"'
    assert len(names(tmp_path)) == 1


async def test_a_date_will_do_where_there_is_no_etag(site: MediaSite, tmp_path: Path) -> None:
    site.files["/film.mp4"] = Media(size=FILM.size, etag=None, changed=1e9)
    await interrupted(site, tmp_path)

    check((await saved(site, tmp_path)).file)
    assert site.ranges() == [None, f"bytes={3 * BLOCK}-"]


@pytest.mark.parametrize(
    "media",
    [
        Media(size=FILM.size, etag=None),
        Media(size=FILM.size, etag='W/"v{}"'),
        Media(size=FILM.size, etag='W/"v{}"', changed=1e9),
        Media(size=FILM.size, etag='"\x01{}"'),
        Media(size=FILM.size, etag=None, changed=time.time() + 3600),
        Media(size=FILM.size, etag=None, headers=("Last-Modified: yesterday",)),
    ],
    ids=["nothing", "weak", "weak-and-dated", "control-character", "just-changed", "no-date"],
)
async def test_without_a_strong_validator_it_begins_anew(
    site: MediaSite, tmp_path: Path, media: Media
) -> None:
    site.files["/film.mp4"] = media
    await interrupted(site, tmp_path)

    check((await saved(site, tmp_path)).file)
    assert site.ranges() == [None, None]


@pytest.mark.parametrize(
    ("media", "asked"),
    [
        (Media(size=FILM.size, version=2), 1),  # If-Range is obeyed: 200
        (Media(size=FILM.size, version=2, ranges=False), 1),
        # A 206 of another version: If-Range is not obeyed.
        (Media(size=FILM.size, version=2, checks=False), 2),
        # The same ETag with another length.
        (Media(size=FILM.size + 1, version=2, etag='"v1"'), 2),
        (Media(size=2 * BLOCK, version=2, checks=False), 2),  # 416
        (Media(size=FILM.size, version=2, checks=False, headers=("Content-Encoding: gzip",)), 2),
        # Another node: a part without an ETag, with another date.
        (Media(size=FILM.size, version=2, checks=False, etag=None, changed=1.5e9), 2),
        (Media(size=FILM.size, version=2, checks=False, parts_tell=False), 2),
        (Media(size=FILM.size, version=2, checks=False, etag='W/"v1"'), 2),
        # The total size is missing, or smaller than the range.
        (Media(size=FILM.size, version=2, etag='"v1"', parts_total=str(FILM.size - 1)), 2),
    ],
    ids=[
        *("changed", "no-ranges", "no-if-range", "other-total", "shorter", "coded"),
        *("no-validator-but-a-date", "no-validator", "weak", "total-within-the-part"),
    ],
)
async def test_a_file_is_never_of_two_versions(
    site: MediaSite, tmp_path: Path, media: Media, asked: int
) -> None:
    await interrupted(site, tmp_path)
    if media.headers:
        packed = gzip.compress(media.piece(0, media.size), compresslevel=0)
        media = Media(**vars(media) | {"body": packed, "size": len(packed)})
    site.files["/film.mp4"] = media

    response = await saved(site, tmp_path)

    assert response.status == 200
    assert response.file is not None
    expected = Media(size=FILM.size, version=2) if media.headers else media
    check(response.file, expected)
    assert len(site.asked) == 1 + asked
    assert site.ranges()[1] == f"bytes={3 * BLOCK}-"


async def test_more_than_the_range_that_is_told_is_no_file_and_nothing_of_it_stays(
    site: MediaSite, tmp_path: Path
) -> None:
    await interrupted(site, tmp_path)
    longer = replace(FILM, chunked=True, range_size=BLOCK, range_body=FILM.size - 3 * BLOCK)
    site.files["/film.mp4"] = longer

    with pytest.raises(FetchError) as caught:
        await saved(site, tmp_path)

    assert caught.value.reason is Reason.PAYLOAD_TRUNCATED
    assert names(tmp_path) == []
    site.files["/film.mp4"] = FILM
    check((await saved(site, tmp_path)).file)


async def test_a_part_of_what_was_asked_for_is_gone_on_with(
    site: MediaSite, tmp_path: Path
) -> None:
    await interrupted(site, tmp_path)
    site.files["/film.mp4"] = replace(FILM, range_size=BLOCK)

    with pytest.raises(FetchError) as caught:
        await saved(site, tmp_path)

    assert caught.value.reason is Reason.PAYLOAD_TRUNCATED
    with pytest.raises(FetchError):
        await saved(site, tmp_path)
    check((await saved(site, tmp_path)).file)
    assert site.ranges() == [None, *(f"bytes={n * BLOCK}-" for n in (3, 4, 5))]


async def test_what_is_not_known_to_be_on_the_disk_is_not_gone_on_from(
    site: MediaSite, tmp_path: Path
) -> None:
    await interrupted(site, tmp_path)
    (part,) = (tmp_path / ".parts").glob("*.part")
    with part.open("ab") as stream:
        stream.write(bytes(1000))

    check((await saved(site, tmp_path)).file)
    assert site.ranges()[1] == f"bytes={3 * BLOCK}-"


@pytest.mark.parametrize(
    "note",
    [
        "",
        "[]",
        "{}",
        '{"size": 10',
        json.dumps({"size": 1 << 40, "validator": '"v1"', "total": None}),
        json.dumps({"size": True, "validator": '"v1"', "total": None}),
        json.dumps({"size": 10, "validator": 7, "total": None}),
        json.dumps({"size": 10, "validator": '"v1"', "total": "1"}),
        json.dumps({"size": 10, "validator": 'x"\r\nHost: b', "total": None}),
    ],
)
async def test_a_note_that_makes_no_sense_counts_for_nothing(
    site: MediaSite, tmp_path: Path, note: str
) -> None:
    await interrupted(site, tmp_path)
    (path,) = (tmp_path / ".parts").glob("*.json")
    path.write_text(note)

    check((await saved(site, tmp_path)).file)
    assert site.ranges() == [None, None]


async def test_a_cancelled_download_is_gone_on_with(site: MediaSite, tmp_path: Path) -> None:
    site.files["/film.mp4"] = media = Media(size=20 * BLOCK, pause=0.02)
    task = asyncio.create_task(saved(site, tmp_path))
    while site.sent < 8 * BLOCK:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    check((await saved(site, tmp_path)).file, media)
    assert site.ranges()[1] is not None


# Failures -----------------------------------------------------------------------


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_breaks_off_is_no_file(
    site: MediaSite, tmp_path: Path, chunked: bool
) -> None:
    site.files["/film.mp4"] = Media(size=FILM.size, chunked=chunked)
    site.cuts.append(3 * BLOCK)
    site.hangs_up = True

    with pytest.raises(FetchError) as caught:
        await saved(site, tmp_path)

    assert caught.value.reason is Reason.PAYLOAD_TRUNCATED
    assert not [each for each in names(tmp_path) if each.startswith(FILM.sha256)]
    check((await saved(site, tmp_path)).file)


async def test_a_file_over_max_file_fails_before_its_body_is_read(
    site: MediaSite, tmp_path: Path
) -> None:
    with pytest.raises(FetchError) as caught:
        await saved(site, tmp_path, max_file="64 KiB")

    assert caught.value.reason is Reason.BODY_TOO_LARGE
    assert names(tmp_path) == []


async def test_a_file_without_a_length_fails_as_soon_as_it_is_over_max_file(
    site: MediaSite, tmp_path: Path
) -> None:
    site.files["/film.mp4"] = Media(size=400 * BLOCK, chunked=True)

    with pytest.raises(FetchError) as caught:
        await saved(site, tmp_path, max_file="128 KiB")

    assert caught.value.reason is Reason.BODY_TOO_LARGE
    assert site.sent < 200 * BLOCK
    assert names(tmp_path) == []


async def test_a_download_that_makes_progress_has_no_deadline(
    site: MediaSite, tmp_path: Path
) -> None:
    site.files["/film.mp4"] = media = Media(size=20 * BLOCK, pause=0.02)

    check((await saved(site, tmp_path, timeout="150ms")).file, media)


async def test_a_download_that_only_drips_has_a_deadline(site: MediaSite, tmp_path: Path) -> None:
    site.files["/film.mp4"] = Media(size=FILM.size, step=1, pause=0.02)

    with pytest.raises(FetchError) as caught:
        await saved(site, tmp_path, timeout="300ms")

    assert caught.value.reason is Reason.TIMEOUT_TOTAL


Usage = namedtuple("Usage", "total used free")


async def test_a_disk_without_room_is_one_reason_and_is_not_filled(
    site: MediaSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(FILM.size, 0, FILM.size - 1))

    with pytest.raises(FetchError) as caught:
        await saved(site, tmp_path)

    assert caught.value.reason is Reason.FILES_UNWRITABLE
    said = f"{FILM.size:,} bytes are missing, but only {FILM.size - 1:,} are free"
    assert caught.value.message == f"cannot save to {tmp_path}: {said}"
    assert names(tmp_path) == []


async def test_a_length_that_no_disk_has_is_the_files_own_fault(
    site: MediaSite, tmp_path: Path
) -> None:
    """HOSTILE 3.9: otherwise one page could end a crawl."""
    site.files["/film.mp4"] = Media(size=10**18)

    with pytest.raises(FetchError) as caught:
        await saved(site, tmp_path)

    assert caught.value.reason is Reason.BODY_TOO_LARGE
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOSPC, Reason.FILES_UNWRITABLE),
        (errno.EIO, Reason.FILES_UNWRITABLE),
        (errno.EFBIG, Reason.BODY_TOO_LARGE),
    ],
)
async def test_a_write_that_fails_says_why(
    site: MediaSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, reason: Reason
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(partial.PartialFile, "write", fail)

    with pytest.raises(FetchError) as caught:
        await saved(site, tmp_path)

    assert caught.value.reason is reason
    assert names(tmp_path) == []


# Remote stores -------------------------------------------------------------------


async def test_a_remote_store_has_each_content_once(
    site: MediaSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec

    monkeypatch.chdir(tmp_path)
    site.files["/copy.mp4"] = FILM
    place = f"memory://{tmp_path.name}/films"

    site.cuts.append(3 * BLOCK)
    with pytest.raises(FetchError):
        await _remote(site, place)
    first = await _remote(site, place)
    second = await _remote(site, place, "/copy.mp4")

    assert site.ranges() == [None, f"bytes={3 * BLOCK}-", None]
    assert first == second
    with fsspec.open(first.path, "rb") as stream:
        assert stream.read() == FILM.piece(0, FILM.size)
    store = fsspec.filesystem("memory")
    assert len(store.find(f"/{tmp_path.name}")) == 1
    assert names(tmp_path) == []


async def _remote(site: MediaSite, place: str, path: str = "/film.mp4") -> SavedFile:
    request = Request(site.url(path), save_to=place)
    async with AiohttpDownloader(SETTINGS, start_origins=[f"127.0.0.1:{site.port}"]) as downloader:
        response = await attempt(request, downloader=downloader, settings=SETTINGS)
    assert response.file is not None
    return response.file


async def test_a_store_that_nothing_opens_is_one_sentence(site: MediaSite) -> None:
    with pytest.raises(FetchError, match="cannot save to nowhere://a: ") as caught:
        await _remote(site, "nowhere://a")

    assert caught.value.reason is Reason.FILES_UNWRITABLE
