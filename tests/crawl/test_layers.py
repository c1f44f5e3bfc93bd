"""Layers of the user: the requests and responses they see, their rights, and their errors."""

import asyncio
import itertools
import re
import sys
import time
from datetime import UTC, datetime, timedelta, timezone
from hashlib import sha256
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from crawlcw import (
    Defer,
    FetchError,
    Reason,
    Request,
    Response,
    Settings,
    SettingsError,
    Spider,
    SpiderError,
    UsageError,
    run_spider,
)
from crawlcw.api import spider as spiders
from crawlcw.browser.layer import Render
from crawlcw.dev_cache import DevCache
from crawlcw.engine.stats import Stats
from crawlcw.engine.watchdog import Watchdog
from crawlcw.fetch import pipeline
from crawlcw.fetch.body import MemoryBudget
from crawlcw.fetch.credentials import Credentials
from crawlcw.fetch.proxies import Proxies, ProxyPool
from crawlcw.fetch.user_layers import OwnDownloader, UserLayer
from crawlcw.testing import LayerContract, Replay, ReplayDownloader

HOME = "http://a.example/"


class Seen:
    """Layer that logs the requests and responses."""

    def __init__(self, *, wire: bool = False) -> None:
        self.wire = wire
        self.passed: list[tuple[str, str]] = []
        self.headers: dict[str, str] = {}

    async def __call__(self, attempt: Any, request: Any, call_next: Any) -> Response:
        self.passed.append((str(attempt.purpose), request.url))
        self.headers = dict(request.headers)
        return await call_next(attempt, request)


class OfSettings(Seen):
    made: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        super().__init__()
        self.made.append(self)


def crawler(*layers: Any, **names: Any) -> Spider:
    class Layered(Spider):
        name = "layered"
        start_urls = (HOME,)

        def parse(self, response: Response) -> Any:
            yield {"url": response.url, "text": response.text}

        def on_error(self, request: Any, error: FetchError) -> None:
            self.errors.append(error)

    made: Any = Layered()
    made.layers = list(layers)
    for name, value in names.items():
        setattr(made, name, value)
    return made


async def crawled(spider: Spider, web: Any, tmp_path: Path, **settings: Any) -> Any:
    chosen = Settings(**{"obey_robots": False, "host_backoff_base": "20ms", **settings})
    url = f"sqlite:///{tmp_path / 'crawl.db'}"
    return await run_spider(spider, ledger=url, settings=chosen, downloader=web)


async def test_a_layer_sees_pages_and_one_on_the_wire_all_and_the_secrets(tmp_path: Path):
    plain, wire = Seen(), Seen(wire=True)
    web = ReplayDownloader({HOME: "page"})

    report = await crawled(
        crawler(plain, wire), web, tmp_path, obey_robots=True, headers={"X-Key": "secret"}
    )

    assert report.items == 1
    assert plain.passed == [("page", HOME)]
    assert wire.passed == [("robots", f"{HOME}robots.txt"), ("page", HOME)]
    assert (plain.headers.get("X-Key"), wire.headers.get("X-Key")) == (None, "secret")


async def test_each_hop_passes_with_its_own_url_and_the_page_keeps_its_own(tmp_path: Path):
    class Signing(Seen):
        async def __call__(self, attempt: Any, request: Any, call_next: Any) -> Response:
            self.passed.append(("", request.url))
            signed = request.retargeted(f"{request.url}?signed")
            return await call_next(attempt, signed)

    layer = Signing()
    web = ReplayDownloader({f"{HOME}?signed": "the page"})

    report = await crawled(crawler(layer), web, tmp_path)

    assert (report.items, report.failures) == (1, {})
    assert web.requested_urls == [f"{HOME}?signed"]


async def test_a_layer_that_asks_again_waits_for_the_turn_of_the_host(tmp_path: Path):
    asked: list[float] = []

    class Web(ReplayDownloader):
        async def fetch(self, request: Any, *, url: str) -> Response:
            asked.append(time.monotonic())
            return await super().fetch(request, url=url)

    class Again:
        async def __call__(self, attempt: Any, request: Any, call_next: Any) -> Response:
            for _ in range(2):
                await call_next(attempt, request)
            return await call_next(attempt, request)  # type: ignore[no-any-return]

    # The waits are longer than the page's time limit, which does not count them.
    await crawled(
        crawler(Again()),
        Web({HOME: "page"}),
        tmp_path,
        delay="400ms",
        timeout="500ms",
        auto_throttle=False,
    )

    gaps = [after - before for before, after in itertools.pairwise(asked)]
    assert len(asked) == 3
    assert min(gaps) >= 0.38


async def test_the_time_of_a_layer_is_not_the_pages(tmp_path: Path):
    class Slow:
        async def __call__(self, attempt: Any, request: Any, call_next: Any) -> Response:
            await asyncio.sleep(0.4)
            response: Response = await call_next(attempt, request)
            await asyncio.sleep(0.4)
            return response

    report = await crawled(
        crawler(Slow()), ReplayDownloader({HOME: "page"}), tmp_path, timeout="300ms"
    )

    assert (report.items, report.failures) == (1, {})


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ("raises", "KeyError"),
        ("None", "TypeError: it returned NoneType"),
        ("hangs", "TimeoutError: Broken did not end within 0.1 s"),
        ("raises late", "KeyError"),
        ("elsewhere", "ValueError"),
        ("URL", "TypeError: call_next() takes the attempt and a Request"),
        ({"status": "200"}, "TypeError: the status of its Response is str"),
        ({"body": "text"}, "TypeError: the body of its Response is str"),
        ({"elapsed": 5}, "TypeError: the elapsed of its Response is int"),
        ({"headers": {"ETag": 5}}, "TypeError: the header etag of its Response is not text"),
        ("request", "SpiderError: attempt.request cannot be set: pass another request to"),
        ("deadline", "AttributeError: an attempt has request, number, purpose, session and proxy,"),
    ],
)
async def test_any_other_error_fails_the_page_and_names_the_layer(
    result: Any, said: str, tmp_path: Path
):
    class Broken:
        async def __call__(self, attempt: Any, request: Any, call_next: Any) -> Any:
            if isinstance(result, dict):
                return Response(HOME, request=request, **result)
            if result == "raises":
                raise KeyError("key")
            if result == "hangs":
                await asyncio.sleep(60)
            if result == "raises late":
                try:
                    await asyncio.sleep(60)
                finally:
                    raise KeyError("key")
            if result == "request":
                attempt.request.callback = None  # changes a copy
                attempt.request = request
            if result == "deadline":
                attempt.deadline.pause()
            if result == "URL":
                return await call_next(attempt, request.url)
            if result == "elsewhere":
                return await call_next(attempt, request.retargeted("http://b.example/"))
            return None

    errors: list[FetchError] = []
    spider = crawler(Broken(), errors=errors)
    chosen = {"callback_timeout": "100ms"} if result in ("hangs", "raises late") else {}

    report = await crawled(spider, ReplayDownloader({HOME: "page"}), tmp_path, **chosen)

    assert report.failures == {"parse-error": 1}
    assert [error.reason for error in errors] == [Reason.PARSE_ERROR]
    assert f"Broken raised {said}" in errors[0].message


async def test_a_page_that_is_put_back_is_tried_later_and_pays_nothing(tmp_path: Path):
    class Later:
        asked = 0

        async def __call__(self, attempt: Any, request: Any, call_next: Any) -> Response:
            self.asked += 1
            if self.asked < 2:
                raise Defer("not yet", due=timedelta(seconds=1))
            return await call_next(attempt, request)  # type: ignore[no-any-return]

    layer, web = Later(), ReplayDownloader({HOME: "page"})

    report = await crawled(crawler(layer), web, tmp_path, max_retry=1)

    assert (report.items, report.failures, layer.asked) == (1, {}, 2)
    assert web.requested_urls == [HOME]


NEW_ZEALAND, BAKER_ISLAND = timezone(timedelta(hours=12)), timezone(timedelta(hours=-12))


async def test_a_page_that_is_put_back_to_the_past_waits_a_second(tmp_path: Path):
    waits = [
        *(timedelta(0), -timedelta.resolution, timedelta.min),
        *(datetime(2000, 1, 1, tzinfo=UTC), datetime.min.replace(tzinfo=NEW_ZEALAND)),
    ]
    pages = {f"{HOME}{n}": until for n, until in enumerate(waits)}
    times: dict[str, list[float]] = {url: [] for url in pages}

    async def late(attempt: Any, request: Any, call_next: Any) -> Response:
        times[request.url].append(time.monotonic())
        if len(times[request.url]) < 2:
            raise Defer("not yet", due=pages[request.url])
        return await call_next(attempt, request)  # type: ignore[no-any-return]

    spider = crawler(late, start_urls=[*pages])
    report = await crawled(spider, ReplayDownloader(dict.fromkeys(pages, "page")), tmp_path)

    assert (report.items, report.failures) == (len(pages), {})
    assert min(second - first for first, second in times.values()) >= 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"due": "soon"}, "Defer(due='soon') is neither a duration nor a time with a time zone"),
        ({"due": 5}, "Defer(due=5) is neither a duration nor a time with a time zone"),
        ({"due": datetime(2030, 1, 1)}, "is neither a duration nor a time with a time zone"),  # noqa: DTZ001
        ({"due": timedelta.max}, "is more than 100 years ahead"),
        ({"due": datetime.max.replace(tzinfo=BAKER_ISLAND)}, "is more than 100 years ahead"),
        ({"status": "503"}, "FetchError(status='503') takes a number such as 503"),
        ({"retry_after": "soon"}, "FetchError(retry_after='soon') takes seconds"),
        ({"retry_after": float("nan")}, "FetchError(retry_after=nan) takes seconds"),
        ({"retry_after": 1e300}, "FetchError(retry_after=1e+300) takes seconds"),
        ({"retry_after": -1}, "FetchError(retry_after=-1) takes seconds"),
        ({"reason": "busy"}, "FetchError('busy') takes a member of crawlcw.Reason"),
    ],
)
async def test_a_value_that_no_ledger_holds_fails_the_page_and_names_the_layer(
    arguments: Any, said: str, tmp_path: Path
):
    async def wrong(attempt: Any, request: Any, call_next: Any) -> Response:
        if "due" in arguments:
            raise Defer("not yet", **arguments)
        raise FetchError(arguments.pop("reason", Reason.CONNECT), **arguments)

    errors: list[FetchError] = []

    report = await crawled(
        crawler(wrong, errors=errors), ReplayDownloader({HOME: "page"}), tmp_path
    )

    assert report.failures == {"parse-error": 1}
    assert "wrong raised SpiderError: " in errors[0].message
    assert said in errors[0].message


async def test_a_layer_may_answer_by_itself(tmp_path: Path):
    class Archive:
        async def __call__(self, attempt: Any, request: Any, call_next: Any) -> Response:
            return Response(request.url, request=request, body=b"kept")

    web = ReplayDownloader({})

    report = await crawled(crawler(Archive()), web, tmp_path)

    assert (report.items, web.requested_urls) == (1, [])


async def test_a_layer_reads_the_number_of_the_attempt(tmp_path: Path):
    numbers: list[int] = []

    async def counting(attempt: Any, request: Any, call_next: Any) -> Response:
        numbers.append(attempt.number)
        return await call_next(attempt, request)  # type: ignore[no-any-return]

    web = ReplayDownloader({HOME: [Replay(status=500), Replay(status=500), "page"]})

    report = await crawled(crawler(counting), web, tmp_path, backoff_base="0s", backoff_max="0s")

    assert (report.items, numbers) == (1, [1, 2, 3])


@pytest.mark.parametrize(
    ("page_timeout", "timeouts"), [("30s", (0.05, None)), ("50ms", (0.05, 30))]
)
async def test_a_layer_gives_one_exchange_a_timeout_of_its_own(
    page_timeout: str, timeouts: tuple[float | None, ...], tmp_path: Path
):
    errors: list[FetchError] = []

    class Slow(ReplayDownloader):
        async def fetch(self, request: Any, *, url: str) -> Response:
            await asyncio.sleep(0.3)
            return await super().fetch(request, url=url)

    async def patient(attempt: Any, request: Any, call_next: Any) -> Response:
        for timeout in timeouts:
            try:
                return await call_next(  # type: ignore[no-any-return]
                    attempt, Request(request.url, timeout=timeout)
                )
            except FetchError as error:
                errors.append(error)
        raise errors[-1]

    report = await crawled(
        crawler(patient), Slow({HOME: "page"}), tmp_path, timeout=page_timeout, max_retry=1
    )

    assert (report.items, report.failures) == (1, {})
    assert [str(error) for error in errors] == ["timeout-total: no response within 0.05 s"]


@pytest.mark.parametrize(
    ("status", "is_page", "items"),
    [(404, True, 1), (404, None, 0), (302, True, 1), (200, False, 0), (200, None, 1)],
)
async def test_a_layer_says_whether_a_response_is_a_page(
    status: int, is_page: bool | None, items: int, tmp_path: Path
):
    async def judging(attempt: Any, request: Any, call_next: Any) -> Response:
        response: Response = await call_next(attempt, request)
        response.is_page = is_page
        return response

    web = ReplayDownloader(
        {HOME: Replay(status=status, headers={"Location": "/next"}, body=b"text")}
    )

    report = await crawled(crawler(judging, errors=[]), web, tmp_path)

    assert (report.items, report.pages) == (items, items)
    assert report.failures == ({} if items else {"http-status": 1})
    assert web.requested_urls == [HOME]


async def test_the_settings_name_layers_below_those_of_the_spider(tmp_path: Path):
    OfSettings.made.clear()
    name = f"{__name__}:OfSettings"

    report = await crawled(crawler(), ReplayDownloader({HOME: "page"}), tmp_path, layers=[name])

    assert report.items == 1
    assert [each.passed for each in OfSettings.made] == [[("page", HOME)]]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere:Layer", "'nowhere:Layer' cannot be loaded"),
        ("offered", "neither package.module:Layer nor an entry point"),
        ("json:dumps", "has other arguments"),
    ],
)
async def test_a_layer_that_cannot_be_had_is_named(name: str, said: str, tmp_path: Path):
    with pytest.raises(SettingsError, match=said):
        await crawled(crawler(), ReplayDownloader({}), tmp_path, layers=[name])


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ([Seen], "Seen is a class: write Seen"),
        ([object()], "object is not a layer"),
        ([lambda attempt, request, call_next: None], "is not `async`"),
        ("text", "write a list"),
    ],
)
def test_what_is_no_layer_is_named(layers: Any, said: str):
    spider = crawler()
    spider.layers = layers

    with pytest.raises(SpiderError, match=said):
        spiders.check(spider)


async def test_the_guide_has_the_order_of_the_code():
    class Whole(Spider):
        name = "whole"
        start_urls = (HOME,)
        layers = (Seen(), Seen(wire=True))

        async def login(self, session: Any) -> None:
            """Do nothing."""

        def before_request(self, request: Any) -> None:
            """Change nothing."""

        def after_response(self, response: Any) -> None:
            """Change nothing."""

    settings = Settings(cache="dev")
    default = pipeline.DefaultDownloader(
        ReplayDownloader({}),
        proxies=Proxies(ProxyPool(settings)),
        cache=DevCache(settings, MemoryBudget(1 << 20)),
    )
    default.spider_downloader = OwnDownloader(default, grace=Settings().grace)
    unused: Any = None
    layers = pipeline.layers(
        Whole(),
        settings,
        default,
        credentials=Credentials(),
        admission=unused,
        render=Render(settings, unused),
        watch=Watchdog(Stats(), limit=timedelta(0)),
        keeps_bodies=True,
    )

    order = [
        type(each).__name__
        if not isinstance(each, UserLayer)
        else each.name
        if each.name in ("before_request", "after_response")
        else f"your layers{' with wire' * each.is_wire}"
        for each in layers
    ]

    guide = (resources.files("crawlcw") / "guide" / "layers.md").read_text()
    table = guide[guide.index("| layer |") :].partition("\n\n")[0]
    told = [row.split("|")[1].strip().replace("`", "") for row in table.splitlines()[2:]]
    assert told == order


async def test_the_browser_is_loaded_for_the_first_page_that_is_rendered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "crawlcw.browser.rendering", None)
    web = ReplayDownloader({HOME: "page"})

    report = await crawled(crawler(), web, tmp_path)
    with pytest.raises(UsageError, match=r"run `pip install 'crawlcw\[browser\]'`"):
        await crawled(crawler(name="rendered"), web, tmp_path, browser=True)

    assert report.items == 1


async def test_a_rendered_page_passes_the_layers_of_pages_and_no_other_page_the_browser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Render:
        ended = 0

        def __init__(self, *_: Any) -> None:
            """Take no browser."""

        async def __call__(self, attempt: Any, request: Any, call_next: Any) -> Response:
            response = await call_next(attempt, request)
            return Response(request.url, request=request, body=response.body.upper())

        async def aclose(self) -> None:
            Render.ended += 1

    class Mixed(Spider):
        name = "mixed"

        async def start(self) -> Any:
            yield Request(f"{HOME}plain", browser=False)
            yield Request(f"{HOME}rendered")

        def parse(self, response: Response) -> None:
            seen[response.url.removeprefix(HOME)] = response.text

    seen: dict[str, str] = {}
    monkeypatch.setitem(sys.modules, "crawlcw.browser.rendering", SimpleNamespace(Render=Render))
    web = ReplayDownloader({f"{HOME}{name}": name for name in ("plain", "rendered")})
    spider, layer = Mixed(), Seen()
    spider.layers = [layer]

    await crawled(spider, web, tmp_path, browser=True)

    assert seen == {"plain": "plain", "rendered": "RENDERED"}
    assert sorted(layer.passed) == [("page", f"{HOME}plain"), ("page", f"{HOME}rendered")]
    assert Render.ended == 1


class TestSeen(LayerContract):
    def layer(self) -> Any:
        return Seen()


class Mixing:
    def __init__(self) -> None:
        self.last: Any = None

    async def __call__(self, attempt: Any, request: Any, call_next: Any) -> Response:
        self.last = request
        await asyncio.sleep(0)
        return await call_next(attempt, self.last)  # type: ignore[no-any-return]


class Changing:
    async def __call__(self, attempt: Any, request: Any, call_next: Any) -> Response:
        attempt.request.set_header("X-Own", "theirs")
        return await call_next(attempt, request)  # type: ignore[no-any-return]


class Leading:
    async def __call__(self, attempt: Any, request: Any, call_next: Any) -> Response:
        other = request.retargeted("http://other.example/page")
        return await call_next(attempt, other)  # type: ignore[no-any-return]


class Swallowing:
    async def __call__(self, attempt: Any, request: Any, call_next: Any) -> Response:
        try:
            return await call_next(attempt, request)  # type: ignore[no-any-return]
        except BaseException:
            return Response(request.url, request=request)


class Raising:
    async def __call__(self, attempt: Any, request: Any, call_next: Any) -> Response:
        try:
            return await call_next(attempt, request)  # type: ignore[no-any-return]
        except FetchError as error:
            raise ValueError from error


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (Mixing, "test_concurrent_requests_get_their_own_responses"),
        (Changing, "test_the_task_keeps_its_request"),
        (Leading, "test_it_requests_the_same_origin_only"),
        (Swallowing, "test_a_cancellation_passes"),
        (Raising, "test_a_failure_stays_a_failure"),
        (object, "test_it_is_a_layer"),
    ],
)
def test_the_contract_turns_red_for_a_layer_that_breaks_it(broken: Any, test: str):
    class Tested(LayerContract):
        def layer(self) -> Any:
            return broken()

    with pytest.raises((AssertionError, ValueError, SpiderError)):
        getattr(Tested(), test)()


def test_the_examples_of_the_guide_work(tmp_path: Path):
    guide = (resources.files("crawlcw") / "guide" / "layers.md").read_text()
    made: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", guide, re.DOTALL):
        if "LayerContract" not in code and "class Shop" not in code:
            exec(code, made)
    (tmp_path / sha256(HOME.encode()).hexdigest()).write_bytes(b"kept")
    web = ReplayDownloader({f"{HOME}2": Replay(body="asked for")})
    wire = Seen(wire=True)
    spider = crawler(made["Archive"](tmp_path), made["SignedOnTheWire"](b"key"), wire)
    spider.start_urls = [HOME, f"{HOME}2"]

    report = asyncio.run(crawled(spider, web, tmp_path))

    assert (report.items, web.requested_urls) == (2, [f"{HOME}2"])
    assert len(wire.headers["X-Signature"]) == 64
