"""The cache for development: cached responses, and responses that are never cached."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from crawlcw import Request, Response, Settings, SettingsError, run_spider
from crawlcw.api.attempt import Session
from crawlcw.api.settings import BUDGET_IN_BODIES
from crawlcw.dev_cache import DevCache
from crawlcw.fetch.body import MemoryBudget
from crawlcw.fetch.cookies import SiteCookies
from crawlcw.model.counters import Report
from crawlcw.testing import Replay, ReplayDownloader
from tests.support import attempts, changing_site
from tests.support.attempts import Layered
from tests.support.changing_site import ChangingSite, ChangingSpider
from tests.support.examples import output_of

URL = "http://a.example/"


def cached(
    web: ReplayDownloader, folder: Path, session: Session | None = None, **settings: Any
) -> Layered:
    chosen = Settings(**{"cache": "dev"} | settings)
    return Layered(
        DevCache(chosen, MemoryBudget(chosen.memory_budget // BUDGET_IN_BODIES), folder=folder),
        over=web,
        session=session,
    )


async def asked_twice(web: ReplayDownloader, folder: Path, **options: Any) -> list[Response]:
    """Fetch twice, each time with a new downloader, as two processes would."""
    request = Request(URL, **options)
    return [await cached(web, folder).fetch(request, url=URL) for _ in range(2)]


async def test_what_was_answered_is_answered_again(tmp_path: Path) -> None:
    page = Replay(status=404, headers={"X-A": "ä\r\n"}, body=bytes(range(256)))
    web = ReplayDownloader({URL: page})

    first, second = await asked_twice(web, tmp_path)

    assert web.requested_urls == [URL]
    assert (second.status, second.headers, second.body) == (404, first.headers, first.body)
    assert second.request.url == URL


@pytest.mark.parametrize(
    ("answer", "options"),
    [
        (Replay(status=500), {}),
        (Replay(status=429), {}),
        (Replay(status=206), {}),
        (Replay(body=b"a", truncated="bytes"), {}),
        (b"a", {"method": "POST"}),
        (b"a", {"method": "HEAD"}),
        (b"a", {"body": b"x", "method": "GET"}),
    ],
)
async def test_what_is_not_kept(tmp_path: Path, answer: Any, options: dict[str, Any]) -> None:
    web = ReplayDownloader({URL: answer})

    await asked_twice(web, tmp_path, **options)

    assert web.requested_urls == [URL, URL]


@pytest.mark.parametrize(("session", "cookies"), [(True, {}), (False, {"a": "1"})])
async def test_what_has_cookies_is_neither_kept_nor_answered_from_the_cache(
    tmp_path: Path, session: bool, cookies: dict[str, str]
) -> None:
    web = ReplayDownloader({URL: [b"anybody's", b"mine", b"mine, later"]})
    jar = SiteCookies() if session else None
    somebody = cached(web, tmp_path, attempts.session(jar=jar) if jar is not None else None)
    await cached(web, tmp_path).fetch(Request(URL), url=URL)

    asked = [await somebody.fetch(Request(URL, cookies=cookies), url=URL) for _ in range(2)]

    assert [each.body for each in asked] == [b"mine", b"mine, later"]
    assert (await cached(web, tmp_path).fetch(Request(URL), url=URL)).body == b"anybody's"


async def test_other_headers_are_another_request(tmp_path: Path) -> None:
    web = ReplayDownloader({URL: [b"theirs", b"mine"]})

    for value in ("a", "b"):
        request = Request(URL, headers={"Authorization": value})
        await cached(web, tmp_path).fetch(request, url=URL)

    assert web.requested_urls == [URL, URL]


@pytest.mark.parametrize(("cache_expires", "body"), [("3h", b"old"), ("1h", b"new")])
async def test_an_answer_counts_as_long_as_the_setting_says(
    tmp_path: Path, cache_expires: str, body: bytes
) -> None:
    web = ReplayDownloader({URL: [b"old", b"new"]})
    await cached(web, tmp_path).fetch(Request(URL), url=URL)
    (kept,) = (path for path in tmp_path.rglob("*") if path.is_file())
    two_hours_ago = kept.stat().st_mtime - 2 * 3600
    os.utime(kept, (two_hours_ago, two_hours_ago))

    later = cached(web, tmp_path, cache_expires=cache_expires)

    assert (await later.fetch(Request(URL), url=URL)).body == body


async def test_refresh_asks_for_all_again_and_keeps_that(tmp_path: Path) -> None:
    web = ReplayDownloader({URL: [b"old", b"new"]})
    await cached(web, tmp_path).fetch(Request(URL), url=URL)
    await cached(web, tmp_path, cache="refresh").fetch(Request(URL), url=URL)

    assert (await cached(web, tmp_path).fetch(Request(URL), url=URL)).body == b"new"
    assert len(web.requested_urls) == 2


async def test_what_is_kept_is_for_its_user_alone(tmp_path: Path) -> None:
    await cached(ReplayDownloader({URL: b"a"}), tmp_path / "cache").fetch(Request(URL), url=URL)

    (kept,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert kept.stat().st_mode & 0o077 == 0


async def test_a_folder_that_takes_nothing_stops_no_crawl(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").write_text("a file")
    web = ReplayDownloader({URL: b"a"})
    downloader = cached(web, tmp_path / "cache")

    for _ in range(2):
        assert (await downloader.fetch(Request(URL), url=URL)).body == b"a"

    assert [record.message.partition(":")[0] for record in caplog.records] == [
        f"cannot store pages in {tmp_path}/cache"
    ]


def test_cookies_and_the_cache_do_not_go_together() -> None:
    with pytest.raises(SettingsError, match="stores responses without their cookies"):
        Settings(cache="dev", cookies=True)


def test_the_example_runs(tmp_path: Path) -> None:
    assert output_of("cache.py", tmp_path) == "20 items, 26 requests\n20 items, 0 requests\n"


def visited(site: ChangingSite, ledger: str, cache: str) -> Report:
    spider = ChangingSpider(start_urls=[site.url])
    settings = Settings(cache=cache, revisit="0s", delay=0.0, auto_throttle=False)
    return asyncio.run(run_spider(spider, ledger=ledger, settings=settings))


def test_pages_that_are_visited_again_come_from_the_cache_and_are_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ledger = f"sqlite:///{tmp_path}/ledger.db"
    with changing_site.served(10) as site:
        visited(site, ledger, "dev")
        site.seen()
        site.change(every=5)

        again = visited(site, ledger, "dev")
        from_cache = site.seen()
        anew = visited(site, ledger, "refresh")
        refreshed = site.seen()
        last = visited(site, ledger, "dev")
        asked_last = site.asked()

    assert (again.pages, again.unchanged, sum(from_cache["hits"].values())) == (10, 10, 0)
    # No conditional requests: the cached response counts as the page.
    assert (anew.pages, anew.unchanged, refreshed["conditional"]) == (10, 8, 0)
    assert (last.unchanged, asked_last) == (10, 0)
