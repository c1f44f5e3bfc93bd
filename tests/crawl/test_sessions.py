"""Crawls with a login: one at a time, kept, and repeated after a logout."""

import asyncio
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from crawlcw import FinishReason, Report, Request, Response, Settings, Spider, Status
from crawlcw.api.attempt import Attempt, Next
from crawlcw.api.sessions import LoginSession
from crawlcw.api.settings import layered
from crawlcw.assembly import assemble, open_crawl, run_spider
from crawlcw.crawl import sessions
from crawlcw.crawl.sessions import Sessions
from crawlcw.fetch.pipeline import downloader_of, web
from crawlcw.fetch.proxies import ProxyPool
from crawlcw.ledger.protocol import Committed, Ledger
from crawlcw.ledger_opening import open_ledger
from crawlcw.model.identities import IdentityState
from crawlcw.model.transitions import Settlement
from tests.support.commands import invoke
from tests.support.crawl_process import Process, Store, wait_until
from tests.support.ledgers import PatchedFacet
from tests.support.member_site import Members, MemberSite, Visitors, served

QUICK = Settings(backoff_base="0s", backoff_max="0s", lease="5s")


@pytest.fixture
def site() -> Iterator[MemberSite]:
    with served(15) as site:
        yield site


@pytest.fixture
def crawl(site: MemberSite, ledger_url: str) -> Callable[..., Any]:
    async def crawl(spider: Members, *, start: str = "/in/0", **settings: Any) -> Report:
        spider.start_urls = [site.base + start]
        chosen = Settings(**{**vars(QUICK), **settings})
        return await run_spider(spider, ledger=ledger_url, settings=chosen)

    return crawl


async def crawled(spider: Members, ledger: Ledger, settings: Settings) -> Report:
    """Crawl on a ledger whose facets the test has changed, and close it."""
    default = web(spider, settings, proxies=ProxyPool(settings))
    async with downloader_of(spider, default, settings) as downloader:
        report = await assemble(spider, ledger, downloader, settings).run()
    await ledger.close()
    return report


async def items(ledger_url: str) -> list[dict[str, Any]]:
    ledger = await open_ledger(ledger_url, "members")
    try:
        return [row.item async for row in ledger.queries.items()]
    finally:
        await ledger.close()


async def test_every_page_is_fetched_as_logged_in(
    site: MemberSite, crawl: Callable[..., Any], ledger_url: str
):
    report = await crawl(Members())

    assert report.counts[Status.FINISHED] == 15
    assert {item["user"] for item in await items(ledger_url)} == {"default"}
    assert len(site.logins) == 1
    assert site.refused == Counter()


async def test_a_session_outlives_its_process(
    site: MemberSite, crawl: Callable[..., Any], ledger_url: str
):
    await crawl(Members(), max_pages=4)

    report = await crawl(Members())

    assert report.counts[Status.FINISHED] == 15
    assert len(site.logins) == 1


async def test_what_a_page_sets_before_a_stop_is_kept(site: MemberSite, ledger_url: str):
    class Waiting(Visitors):
        reached = asyncio.Event()

        async def parse(self, response: Response) -> None:
            self.reached.set()
            await asyncio.Event().wait()

    spider = Waiting(start_urls=[site.base + "/enter"])
    settings = layered(QUICK, assignments=["cookies=true"])
    async with open_crawl(spider, ledger=ledger_url, settings=settings) as crawl:
        running = asyncio.create_task(crawl.run())
        await spider.reached.wait()
        crawl.stop_now()
        await running
        known = await crawl.ledger.sessions.get("default")

    assert known is not None
    assert "sid" in {cookie.name for cookie in known.cookies.values()}


async def test_what_a_page_sets_is_kept_however_long_it_takes(
    site: MemberSite, ledger_url: str, monkeypatch: pytest.MonkeyPatch
):
    looked, keep = asyncio.Event(), Sessions._keep_cookies

    async def kept(sessions: Sessions, held: Any) -> None:
        await keep(sessions, held)
        looked.set()

    async def takes_long(attempt: Attempt, request: Request, call_next: Next) -> Response:
        looked.clear()
        await looked.wait()
        return await call_next(attempt, request)

    monkeypatch.setattr(Sessions, "_keep_cookies", kept)
    monkeypatch.setattr(sessions, "_FORGET_AFTER_S", -1.0)
    monkeypatch.setattr(sessions, "_KEEP_EVERY", 0.01)
    spider = Visitors(start_urls=[site.base + "/enter"])
    spider.layers = [takes_long]
    settings = layered(QUICK, assignments=["cookies=true"])

    await run_spider(spider, ledger=ledger_url, settings=settings)

    ledger = await open_ledger(ledger_url, spider.name)
    known = await ledger.sessions.get("default")
    await ledger.close()
    assert known is not None
    assert "sid" in {cookie.name for cookie in known.cookies.values()}


async def test_what_pages_set_is_kept_with_the_session(crawl: Callable[..., Any], ledger_url: str):
    await crawl(Members())

    ledger = await open_ledger(ledger_url, "members")
    known = await ledger.sessions.get("default")
    await ledger.close()
    assert known is not None
    values = {cookie.name: cookie.value for cookie in known.cookies.values()}
    assert values.keys() == {"csrf", "sid", "last"}
    assert 0 < int(values["last"]) < 15


async def test_a_session_that_the_server_ends_is_logged_in_anew_and_no_page_is_lost(
    site: MemberSite, crawl: Callable[..., Any], ledger_url: str
):
    await crawl(Members(), max_pages=4)
    site.log_everybody_out()

    report = await crawl(Members())

    assert report.counts[Status.FINISHED] == 15
    assert report.failures == {}
    assert len(site.logins) == 2
    assert {item["user"] for item in await items(ledger_url)} == {"default"}


class Leaver(Members):
    """Has the server log out all sessions at one page, once."""

    leave: Callable[[], None]

    def parse(self, response: Any) -> Any:
        if response.url.endswith("/in/3") and self.leave is not None:
            self.leave()
            self.leave = None  # type: ignore[assignment]  # once
        yield from super().parse(response)


async def test_pages_that_are_refused_after_a_logout_wait_unspent(
    site: MemberSite, crawl: Callable[..., Any], ledger_url: str
):
    spider = Leaver()
    spider.leave = site.log_everybody_out

    report = await crawl(spider)

    assert report.counts[Status.FINISHED] == 15
    assert (report.failures, report.host_failures) == ({}, {})
    assert len(site.logins) == 2
    assert site.refused, "at least one request met the logout"


async def test_a_page_that_nobody_may_see_fails_by_itself(
    crawl: Callable[..., Any], site: MemberSite
):
    site.forbidden = frozenset({5, 6, 9})

    report = await crawl(Members())

    assert report.finish_reason is FinishReason.DRAINED
    # 11 to 14 are below 5 and 6.
    assert report.counts[Status.FINISHED] == 15 - 3 - 4
    assert report.failures == {"http-status": 3}
    assert len(site.logins) == 1


async def test_a_login_that_always_fails_ends_the_crawl_with_a_reason(
    crawl: Callable[..., Any], site: MemberSite
):
    spider = Members()
    spider.password = "wrong"

    report = await crawl(spider, max_logins=3)

    assert report.finish_reason is FinishReason.LOGIN_FAILED
    assert "gave up session default after 3 logins" in report.detail
    assert "HTTP 403" in report.detail
    assert report.counts[Status.TODO] == 1
    assert len(site.logins) == 3


async def test_a_login_that_takes_too_long_fails(crawl: Callable[..., Any], site: MemberSite):
    class Slow(Members):
        async def login(self, session: LoginSession) -> None:
            await asyncio.Event().wait()

    report = await crawl(Slow(), login_timeout="50ms", max_logins=1)

    assert report.finish_reason is FinishReason.LOGIN_FAILED
    assert "gave up session default after 1 login" in report.detail
    assert "login did not end within 0.05 s" in report.detail
    assert site.logins == {}


class Useless(Members):
    async def login(self, session: LoginSession) -> None:
        await session.fetch(next(iter(self.start_urls)).replace("/in/0", "/login"))


async def test_a_login_that_is_of_no_use_ends_the_crawl_with_a_reason(
    crawl: Callable[..., Any], site: MemberSite
):
    report = await crawl(Useless(), max_logins=3)

    assert report.finish_reason is FinishReason.LOGIN_FAILED
    assert "HTTP 401" in report.detail
    assert report.counts[Status.TODO] == 1


async def test_a_later_run_tries_again_what_was_given_up(
    crawl: Callable[..., Any], site: MemberSite
):
    await crawl(Useless(), max_logins=2)

    report = await crawl(Members())

    assert report.counts[Status.FINISHED] == 15


class ByRequest(Members):
    """Requests each page in a session of its own."""

    async def start(self) -> Any:
        for number, name in enumerate(("ada", "bob")):
            yield Request(f"{next(iter(self.start_urls))}?{number}", session=name)

    def parse(self, response: Any) -> Any:
        yield {"session": response.session.name, "user": response.text.split("\n")[0]}


async def test_a_request_is_made_with_the_session_that_it_names(
    crawl: Callable[..., Any], ledger_url: str
):
    await crawl(ByRequest())

    found = sorted((item["session"], item["user"]) for item in await items(ledger_url))
    assert found == [("ada", "ada"), ("bob", "bob")]


class Retiring(Members):
    times = 1
    raises = False

    def parse(self, response: Any) -> Any:
        if self.times and response.url.endswith("/in/2"):
            self.times -= 1
            response.session.retire()
            if self.raises:
                raise ValueError("it is not as it should be")
        yield from super().parse(response)


@pytest.mark.parametrize("raises", [False, True])
async def test_a_callback_that_retires_its_session_is_called_again_with_a_new_one(
    *, raises: bool, crawl: Callable[..., Any], site: MemberSite
):
    spider = Retiring()
    spider.raises = raises

    report = await crawl(spider)

    assert report.counts[Status.FINISHED] == 15
    assert (report.failures, len(site.logins)) == ({}, 2)


async def test_what_a_login_leaves_is_there_for_every_page(
    crawl: Callable[..., Any], site: MemberSite, ledger_url: str
):
    class Keeping(Members):
        async def login(self, session: LoginSession) -> None:
            await super().login(session)
            session.data["team"] = "a"
            session.headers["X-Key"] = "k"

        def parse(self, response: Any) -> Any:
            yield {"team": response.session.data["team"]}

    await crawl(Keeping())

    assert await items(ledger_url) == [{"team": "a"}]
    ledger = await open_ledger(ledger_url, "members")
    known = await ledger.sessions.get("default")
    await ledger.close()
    assert known is not None
    assert (known.state, known.headers) == (IdentityState.READY, (("X-Key", "k"),))
    assert known.origins == (site.base,)
    assert {"csrf", "sid"} <= {cookie.name for cookie in known.cookies.values()}


async def test_a_login_whose_process_died_is_taken_over(
    crawl: Callable[..., Any], site: MemberSite, ledger_url: str
):
    from crawlcw.model import identities

    ledger: Ledger = await open_ledger(ledger_url, "members")
    begun = identities.login_begun(
        identities.Identity(name="default"),
        owner="somebody",
        now=ledger.now(),
        lease=QUICK.lease / 10,
    )
    await ledger.sessions.change(None, begun)
    await ledger.close()

    report = await crawl(Members())

    assert report.counts[Status.FINISHED] == 15


async def test_cookies_of_one_request_are_sent_with_it_alone(
    crawl: Callable[..., Any], site: MemberSite, ledger_url: str
):
    class Once(Members):
        login = Spider.login

        async def start(self) -> Any:
            yield Request(next(iter(self.start_urls)), cookies={"sid": "mine"})

    site.members["mine"] = "me"

    report = await crawl(Once())

    assert [item["user"] for item in await items(ledger_url)] == ["me"]
    assert report.failures == {"http-status": 2}, "the links of the page"


async def test_no_outcome_is_written_before_the_cookies_of_its_page(
    site: MemberSite, ledger_url: str
):
    spider = Visitors(start_urls=[site.base + "/enter"])
    settings = layered(QUICK, assignments=["cookies=true"])
    ledger = await open_ledger(ledger_url, "members")
    outcomes, behind = ledger.outcomes, []

    async def commit(settlements: Sequence[Settlement]) -> Committed:
        committed = await outcomes.commit(settlements)
        known = await ledger.sessions.get("default")
        kept = {each.name for each in known.cookies.values()} if known else set()
        urls = [each.lease.task.url for each in settlements]
        set_by = {url: "sid" if url.endswith("/enter") else "last" for url in urls}
        behind.extend(url for url, cookie in set_by.items() if cookie not in kept)
        return committed

    ledger.outcomes = PatchedFacet(outcomes, commit=commit)
    report = await crawled(spider, ledger, settings)

    assert report.counts[Status.FINISHED] == 16
    assert behind == []


@pytest.mark.thorough
@pytest.mark.representative("sqlite", "-0]")
@pytest.mark.parametrize("time", range(4))
def test_a_crawl_that_a_page_has_logged_in_is_logged_in_after_a_kill(
    time: int, processes: ExitStack, either_url: str, tmp_path: Path, site: MemberSite
):
    store = Store(either_url, "members")
    log = tmp_path / "crawls.log"

    def start() -> Process:
        return processes.enter_context(
            Process(store, [site.base + "/enter"], log, spider="visitors", on_cue=False)
        )

    killed = start()
    wait_until(lambda: any(row.status == Status.FINISHED for row in store.rows()))
    killed.kill()
    start().drained()

    assert {row.status for row in store.rows()} == {Status.FINISHED}
    assert site.refused == Counter()


async def test_two_crawls_at_once_share_one_login_and_the_next_one(either_url: str):
    with served(60, login_takes=0.05) as site:
        spiders = [Leaver(start_urls=[site.start]) for _ in range(2)]
        for spider in spiders:
            spider.leave = site.log_everybody_out
        ended = [run_spider(each, ledger=either_url, settings=QUICK) for each in spiders]
        reports = await asyncio.gather(*ended)

    assert reports[0].counts[Status.FINISHED] == 60
    assert [report.failures for report in reports] == [{}, {}]
    assert len(site.logins) == 2
    assert site.overlapping() == []
    found = await items(either_url)
    assert Counter(item["user"] for item in found) == {"default": 60}


KILLS = 5
LOGOUTS = 2


@pytest.mark.thorough
def test_a_login_crawl_that_is_killed_and_logged_out_finishes_every_page_as_logged_in(
    processes: ExitStack, ledger_url: str, tmp_path: Path
):
    pages = 2_000
    site = processes.enter_context(served(pages, latency=0.05, login_takes=0.1))
    store = Store(ledger_url, "members")

    def start() -> Process:
        log = tmp_path / "crawls.log"
        return processes.enter_context(
            Process(store, [site.start], log, on_cue=False, concurrency=20, lease="10s")
        )

    crawls = [start() for _ in range(3)]
    events = ["kill", "logout", "kill", "kill", "logout", "kill", "kill"]
    for number, event in enumerate(events, 1):
        wait_until(lambda seen=number * pages // 9: sum(site.seen.values()) >= seen)
        if event == "logout":
            site.log_everybody_out()
        else:
            crawls.pop(0).kill()
            crawls.append(start())
    for crawl in crawls:
        crawl.drained()

    rows = store.rows()
    assert Counter(row.status for row in rows) == {Status.FINISHED: pages}
    assert {(row.items, row.retry) for row in rows} == {(1, 0)}
    assert events.count("kill") == KILLS
    assert events.count("logout") == LOGOUTS
    assert site.overlapping() == []
    ended = [login for login in site.logins.values() if login.ended is not None]
    assert len(ended) >= 1 + LOGOUTS
    refused, seen = sum(site.refused.values()), sum(site.seen.values())
    print(f"{len(ended)} logins, {refused} refusals, {seen} pages")


SECRETS = ("open sesame", "hush-1", "hush-2", "hush-3")


class Secretive(Members):
    async def login(self, session: LoginSession) -> None:
        await super().login(session)
        session.headers["X-Key"] = "hush-1"
        session.data["key"] = "hush-2"

    async def start(self) -> Any:
        yield Request(next(iter(self.start_urls)), cookies={"own": "hush-3"})


@pytest.mark.quick
async def test_no_log_export_or_command_shows_what_is_in_a_session(
    site: MemberSite, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "ledger.db"
    ledger, spider = f"sqlite:///{path}", Secretive(start_urls=[site.start])
    with caplog.at_level("DEBUG", logger="crawlcw"):
        await run_spider(spider, ledger=ledger, settings=QUICK)
    secrets = (*SECRETS, *site.members)

    commands = [
        ("show", "members", site.start),
        ("show", "members", site.start, "--json"),
        ("tasks", "members", "--json"),
        ("stats", "members", "--json"),
        ("stats", "members"),
        ("hosts", "members", "--json"),
        ("doctor", "members"),
        ("export", "members", "-o", "-"),
    ]
    said = [caplog.text]
    for command in commands:
        ended = await asyncio.to_thread(invoke, *command, "--ledger", ledger)
        assert ended.returncode == 0, ended.stderr
        said += [ended.stdout, ended.stderr]

    assert [secret for secret in secrets for text in said if secret in text] == []
    assert "logged in" in caplog.text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
