"""Scrapy's cookie jars in the spider state: over processes, kills and failed pages."""

from collections import defaultdict
from collections.abc import MutableMapping
from http.cookiejar import Cookie, CookieJar
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request as ScrapyRequest
from scrapy.downloadermiddlewares.cookies import CookiesMiddleware
from scrapy.http import Response as ScrapyResponse

from crawlcw import Response, Settings, Spider
from crawlcw.assembly import run_spider
from crawlcw.ledger_opening import open_ledger
from crawlcw.model.spider_state import LARGEST, State
from crawlcw.scrapy.cookies import Jars
from crawlcw.testing import Replay, ReplayDownloader

pytestmark = pytest.mark.quick

SHOP = "https://shop.example/"


class Process:
    """One process of a crawl: a middleware of the project, and its jars in the spider state."""

    def __init__(self, state: MutableMapping[str, Any], middleware: Any = None) -> None:
        self.middleware = middleware or CookiesMiddleware()
        self.jars = Jars(self.middleware, state)

    def page(self, *set_cookies: str, url: str = SHOP, **options: Any) -> str:
        """Fetch a page that sets cookies; return the cookies that its request has sent."""
        request = ScrapyRequest(url, **options)
        self.jars.read()
        self.middleware.process_request(request)
        headers = {"Set-Cookie": list(set_cookies)}
        self.middleware.process_response(request, ScrapyResponse(url, headers=headers))
        self.jars.keep(request)
        return (request.headers.get("Cookie") or b"").decode()


def test_a_process_sends_the_cookies_that_another_one_got():
    state: dict[str, Any] = {}
    first, second = Process(state), Process(state)

    first.page("id=7; Path=/; HttpOnly", "lang=en; Max-Age=3600; Secure")

    assert second.page() == "id=7; lang=en"
    assert second.page(url="http://shop.example/") == "id=7"
    assert second.page(url="https://other.example/") == ""


def test_a_jar_of_each_key():
    state: dict[str, Any] = {}
    first = Process(state)
    keys = [None, 1, "a", 2.5, ("a", ("b", 1))]
    for number, key in enumerate(keys):
        first.page(f"id={number}", meta={"cookiejar": key})

    second = Process(state)

    assert [second.page(meta={"cookiejar": key}) for key in keys] == [f"id={n}" for n in range(5)]
    assert second.page(meta={"cookiejar": "unknown"}) == ""


def test_cookies_of_a_request_are_stored_without_an_answer_that_sets_some():
    state: dict[str, Any] = {}
    Process(state).page(cookies={"currency": "EUR"})

    assert Process(state).page() == "currency=EUR"


def test_a_deleted_cookie_is_deleted_in_all_processes():
    state: dict[str, Any] = {}
    first, second = Process(state), Process(state)
    first.page("id=7", "lang=en")
    assert second.page() == "id=7; lang=en"

    second.page("id=; Max-Age=0")

    assert [first.page(), second.page(), Process(state).page()] == ["lang=en"] * 3
    second.page("lang=; Max-Age=0")
    assert [first.page(), second.page(), Process(state).page()] == [""] * 3
    first.page("id=8")
    assert second.page() == "id=8"


def test_processes_that_change_a_jar_in_turns_come_to_rest():
    state: dict[str, Any] = {}
    processes = [Process(state), Process(state)]
    processes[0].page("b=1")
    processes[1].page("a=1")
    processes[0].page("c=1")
    before = dict(state)

    sent = [set(process.page().split("; ")) for process in processes * 2]

    assert sent == [{"a=1", "b=1", "c=1"}] * 4
    assert all(state[name] is value for name, value in before.items()), "nobody wrote again"


def test_a_page_that_changes_no_cookie_writes_nothing():
    class Counted(dict[str, Any]):
        writes = 0

        def __setitem__(self, name: str, value: Any) -> None:
            self.writes += 1
            super().__setitem__(name, value)

    state = Counted()
    process = Process(state)
    for _ in range(3):
        process.page("id=7", url="https://a.example/", cookies={"x": "y"})
        process.page("id=7", url="https://b.example/", cookies={"x": "y"})
        process.page(meta={"dont_merge_cookies": True})

    assert state.writes == 2


def test_the_newest_cookie_stays_if_the_ledger_could_not_record_its_page():
    """The state is undone then, but the server knows the new session only."""
    state: dict[str, Any] = {}
    process = Process(state)
    process.page("id=1")
    before = dict(state)
    process.page("id=2")
    state.update(before)

    assert process.page() == "id=2"
    assert Process(state).page() == "id=2", "stored by the next page"


def test_a_first_cookie_stays_if_the_ledger_could_not_record_its_page():
    state: dict[str, Any] = {}
    process = Process(state)
    process.page("id=1")
    state.clear()

    assert process.page() == "id=1"
    assert Process(state).page() == "id=1"


def test_dates_beyond_64_bits_and_odd_values():
    state: State = State()
    Process(state).page(f"id=7; Max-Age={10**30}", "empty=", "bare", "a=\xe9; Path=/x", 'q="1"')

    assert set(Process(state).page().split("; ")) == {"id=7", "empty=", "bare", 'q="1"'}


def test_a_full_state_is_said_once_and_the_crawl_goes_on(caplog):
    state = State()
    state["mine"] = "x" * (LARGEST - 2_000)
    process = Process(state)
    process.page("id=0", url="https://first.example/")
    for number in range(30):
        process.page(f"id={number}", url=f"https://shop{number}.example/")

    sent = [process.page(url=f"https://shop{number}.example/") for number in range(30)]

    assert sent == [f"id={number}" for number in range(30)], "the jar in memory goes on"
    (warning,) = caplog.records
    assert warning.event == "cookies_unstored"
    assert warning.getMessage().startswith("the jar None stays in memory, so a killed crawl")
    assert Process(state).page(url="https://first.example/") == "id=0"
    assert state["mine"] == "x" * (LARGEST - 2_000)


def test_a_key_that_json_cannot_store_stays_in_memory(caplog):
    state = State()
    process = Process(state)

    process.page("id=7", meta={"cookiejar": b"a"})
    process.page("id=8", meta={"cookiejar": "a"})

    assert process.page(meta={"cookiejar": b"a"}) == "id=7"
    assert [record.event for record in caplog.records] == ["cookies_unstored"]
    assert Process(state).page(meta={"cookiejar": "a"}) == "id=8"
    assert Process(state).page(meta={"cookiejar": b"a"}) == ""


NO_COMMENT: dict[str, Any] = {"comment": None, "comment_url": None, "rest": {}}


class OwnMiddleware:
    """A replacement of Scrapy's middleware, with jars of the standard library."""

    def __init__(self) -> None:
        self.jars: defaultdict[Any, CookieJar] = defaultdict(CookieJar)

    def process_request(self, request: ScrapyRequest) -> None:
        request.meta["cookiejar"] = "chosen by the middleware"
        cookies = self.jars["chosen by the middleware"]
        request.headers["Cookie"] = "; ".join(f"{c.name}={c.value}" for c in cookies)

    def process_response(self, request: ScrapyRequest, response: ScrapyResponse) -> ScrapyResponse:
        for text in response.headers.getlist("Set-Cookie"):
            name, _, value = text.decode().partition("=")
            values = (0, name, value, None, False, "shop.example", False, False, "/", False)
            cookie = Cookie(*values, secure=False, expires=None, discard=True, **NO_COMMENT)
            self.jars[request.meta["cookiejar"]].set_cookie(cookie)
        return response


class Subclass(CookiesMiddleware):
    pass


def test_a_middleware_of_the_projects_own():
    state: dict[str, Any] = {}
    Process(state, OwnMiddleware()).page("id=7")

    assert Process(state, OwnMiddleware()).page() == "id=7"
    Process(state, Subclass()).page("id=8")
    assert Process(state, Subclass()).page() == "id=8"


def test_a_project_without_cookies():
    jars = Jars(None, state := {})

    jars.read()
    jars.keep(ScrapyRequest(SHOP))

    assert state == {}


class Login(Spider):
    """Sends each request through a project's middleware, as the layer of a Scrapy project does."""

    name = "login"

    def opened(self) -> None:
        self.process = Process(self.state)

    def parse(self, response: Response) -> Any:
        is_login = response.url.endswith("/login")
        yield {"page": response.url, "sent": self.process.page(*["id=7"] if is_login else [])}


async def test_a_crawl_that_goes_on_in_another_process_has_its_cookies(tmp_path: Path):
    ledger_url = f"sqlite:///{tmp_path / 'login.db'}"
    for path in ("login", "account"):
        report = await run_spider(
            Login(start_urls=[SHOP + path]),
            ledger=ledger_url,
            settings=Settings(obey_robots=False),
            downloader=ReplayDownloader({SHOP + path: Replay(body="")}),
        )
        assert report.failures == {}

    ledger = await open_ledger(ledger_url, "login")
    try:
        items = [row.item async for row in ledger.queries.items()]
    finally:
        await ledger.close()
    assert items == [
        {"page": SHOP + "login", "sent": ""},
        {"page": SHOP + "account", "sent": "id=7"},
    ]
