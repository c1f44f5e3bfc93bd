"""No password, key or cookie reaches another origin, a log or an output: HOSTILE 5.9, 5.12."""

import base64
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crawlcw.api.attempt import Session
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.assembly import run_spider
from crawlcw.errors import SettingsError
from crawlcw.fetch.credentials import Credentials
from crawlcw.ledger.protocol import TaskFilter
from crawlcw.ledger_opening import open_ledger
from crawlcw.model.identities import Identity
from crawlcw.model.sanitize import redacted
from crawlcw.testing.replay import Replay, ReplayDownloader
from tests.hostile.sites import Answer, Asked, Site, site
from tests.support.attempts import Layered, attempt
from tests.support.programs import children_of

PASSWORD = "pa55-w0rd"
BASIC = "Basic " + base64.b64encode(f"user:{PASSWORD}".encode()).decode()
KEY, BEARER, TOKEN, LINKED = "key-5ecret", "bearer-5ecret", "t0ken-5ecret", "linked-5ecret"
CLIENT = "client-5ecret"
SECRETS = (PASSWORD, BASIC.removeprefix("Basic "), KEY, BEARER, LINKED, CLIENT)

SPIDER = """\
from crawlcw import Request, Settings, Spider

class Secret(Spider):
    name = "secret"
    start_urls = ["http://user:pa55-w0rd@127.0.0.1:{ours}/"]
    allowed_hosts = "*"
    settings = Settings(
        allow_private=["127.0.0.1"], max_retry=1, backoff_base="10ms",
        headers={{"X-Client": "client-5ecret", "Accept-Language": "da"}},
    )

    def parse(self, response):
        yield {{"url": response.url, "asked by": repr(response.request)}}
        yield from response.follow_all("a")
        if response.css("#start"):
            yield Request("http://127.0.0.1:{ours}/api", headers={{"X-API-Key": "key-5ecret"}})
            bearer = {{"Authorization": "Bearer bearer-5ecret", "Cookie": "sid=key-5ecret"}}
            yield Request("http://127.0.0.1:{ours}/away", headers=bearer)
            yield Request(
                "http://127.0.0.1:{ours}/away?again", headers={{"X-API-Key": "key-5ecret"}},
                dont_filter=True,
            )
            yield Request("http://user:linked-5ecret@127.0.0.1:99999/")
            yield Request("http://127.0.0.1:{ours}/broken?token=t0ken-5ecret")

    def on_error(self, request, error):
        yield {{"failed": request.url, "why": error.message}}
"""


class Gate:
    """Blocks a page until the test has read the process list."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.open.set()


@pytest.fixture
def theirs() -> Iterator[Site]:
    with site(lambda _: (200, {}, "<p>theirs")) as running:
        yield running


@pytest.fixture
def ours(theirs: Site, gate: Gate) -> Iterator[Site]:
    def answer(asked: Asked) -> Answer:
        path = asked.path.partition("?")[0]
        if path in ("/", "/page", "/held") and asked.headers.get("authorization") != BASIC:
            return 401, {}, "who are you?"
        match path:
            case "/":
                links = f'<a href="/page">1</a><a href="{theirs.origin}/linked">2</a>'
                links += '<a href="/away?plain">3</a><a href="/held">4</a>'
                links += f'<a href="http://u:{LINKED}@127.0.0.1:{theirs.port}/with-user">5</a>'
                links += '<a href="/with-password">6</a>'
                return 200, {"Set-Cookie": "sid=key-5ecret"}, f"<p id=start>{links}"
            case "/away":
                return 302, {"Location": f"{theirs.origin}/landed?{asked.path[-5:]}"}, ""
            case "/with-password":
                return 302, {"Location": f"http://u:{LINKED}@127.0.0.1:{theirs.port}/bait"}, ""
            case "/broken":
                return 500, {}, ""
            case "/held":
                gate.reached.set()
                gate.open.wait(60)
        return 200, {}, "<p>ours"

    with site(answer) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path, ours: Site) -> Path:
    (tmp_path / "secret.py").write_text(SPIDER.format(ours=ours.port))
    return tmp_path


def command(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "crawlcw", *arguments],
        cwd=folder,
        env=os.environ | {"CRAWLCW_LEDGER": "sqlite:///ledger.db"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output_of(folder: Path, *arguments: str) -> str:
    with command(folder, *arguments) as process:
        out, err = process.communicate(timeout=90)
    assert process.returncode in (0, 3), err
    return out + err


@pytest.mark.thorough
@pytest.mark.parametrize("cookies", ["true", "false"])
def test_a_crawl_tells_its_secrets_to_their_origin_alone(
    folder: Path, ours: Site, theirs: Site, gate: Gate, cookies: str
) -> None:
    log = ("--log-level", "debug")
    options = ("--processes", "2", "-s", f"cookies={cookies}", "-o", "items.jsonl", *log)
    with command(folder, "run", "secret.py", *options) as crawl:
        assert gate.reached.wait(60)
        pids = [crawl.pid, *children_of(crawl.pid)]
        seen = b"".join(
            Path(f"/proc/{pid}/{name}").read_bytes()
            for pid in pids
            for name in ("cmdline", "environ")
        )
        gate.open.set()
        printed = "".join(crawl.communicate(timeout=90))
    told = {
        "the crawl": printed,
        "the processes": seen.decode(errors="replace"),
        "-o": (folder / "items.jsonl").read_text(),
        "stats": output_of(folder, "stats", "secret.py", "--json"),
        "tasks": output_of(folder, "tasks", "secret.py"),
        "tasks --json": output_of(folder, "tasks", "secret.py", "--json"),
        "export": output_of(folder, "export", "secret.py", "-o", "-"),
        "hosts": output_of(folder, "hosts", "secret.py"),
        "doctor": output_of(folder, "doctor", "secret.py"),
        "settings": output_of(folder, "settings"),
        "fetch": output_of(folder, "fetch", theirs.origin, "--spider", "secret.py", *log),
    }

    assert crawl.returncode in (0, 3)
    assert len(pids) == 3
    leaks = [
        (where, secret) for where, text in told.items() for secret in SECRETS if secret in text
    ]
    assert leaks == []
    assert TOKEN not in printed, "values of keys in URLs are masked"
    # The ledger holds secrets of requests only, and only its user may read it.
    stored = b"".join(each.read_bytes() for each in folder.glob("ledger.db*"))
    assert KEY.encode() in stored
    for secret in (PASSWORD, BASIC.removeprefix("Basic "), LINKED, CLIENT):
        assert secret.encode() not in stored
    assert {each.stat().st_mode & 0o777 for each in folder.glob("ledger.db*")} == {0o600}

    assert {"/linked", "/with-user", "/landed?plain"} <= {each.path for each in theirs.asked}
    assert "/bait" not in {each.path for each in theirs.asked}, "4.9: refused-credentials"
    assert "refused-credentials" in told["tasks --json"]
    for each in theirs.asked:
        assert each.headers.keys() & {"authorization", "cookie", "x-api-key", "x-client"} == set()
        assert each.headers["accept-language"] == "da"
    assert {each.headers.get("x-client") for each in ours.asked} == {CLIENT}, (
        "requests for robots.txt carry it as well"
    )
    assert ours.headers_at("/api")[0]["x-api-key"] == KEY
    assert ours.headers_at("/away")[0]["authorization"] == f"Bearer {BEARER}"
    assert {each["authorization"] for each in ours.headers_at("/page")} == {BASIC}


@pytest.mark.thorough
def test_a_crawl_that_goes_on_still_knows_the_password(
    folder: Path, ours: Site, gate: Gate
) -> None:
    gate.open.set()

    output_of(folder, "run", "secret.py", "--max-pages", "1")
    before = len(ours.headers_at("/page"))
    output_of(folder, "run", "secret.py")
    tasks = output_of(folder, "tasks", "secret.py", "--json")

    assert before == 0
    assert len(ours.headers_at("/page")) == 1
    assert '"status_code": 401' not in tasks
    assert "HTTP 401" not in tasks


class Recording(ReplayDownloader):
    """Downloader that keeps the headers for each URL."""

    def __init__(self, answers: dict[str, Replay | str]) -> None:
        super().__init__(answers)
        self.sent: dict[str, dict[str, str]] = {}

    async def fetch(self, request: Request, *, url: str) -> Response:
        self.sent[url] = dict(request.headers)
        return await super().fetch(request, url=url)


def moved(location: str) -> Replay:
    return Replay(status=302, headers={"location": location})


@pytest.mark.parametrize(
    "elsewhere",
    [
        "http://a.example/",  # the same host without TLS
        "https://a.example:8443/",
        "https://b.a.example/",
        "https://example/",
        "https://a.example./",
    ],
)
async def test_basic_auth_is_for_one_origin(elsewhere: str) -> None:
    home = "https://a.example/"
    web = Recording({home: moved(elsewhere), elsewhere: moved(f"{home}end"), f"{home}end": "end"})
    downloader = Layered(Credentials([f"https://user:{PASSWORD}@a.example/x"]), over=web)
    secret = {"X-API-Key": KEY, "Cookie": "a=1", "Accept-Language": "da"}
    request = Request(home, headers=secret)

    response = await attempt(request, downloader=downloader, settings=Settings())

    assert web.sent == {
        home: secret | {"Authorization": BASIC},
        elsewhere: {"Accept-Language": "da"},
        f"{home}end": {"Accept-Language": "da", "Authorization": BASIC},
    }
    assert response.request is request
    assert dict(request.headers) == secret


@pytest.mark.parametrize(
    "elsewhere", ["http://a.example/", "https://a.example:8443/", "https://b.a.example/"]
)
async def test_the_secrets_of_the_settings_are_for_the_origins_of_the_start_urls(
    elsewhere: str,
) -> None:
    home = "https://a.example/"
    web = Recording({home: moved(elsewhere), elsewhere: moved(f"{home}end"), f"{home}end": "end"})
    settings = Settings(headers={"X-Key": KEY, "Accept-Language": "da"}, auth=("user", PASSWORD))
    told = {"Accept-Language": "da", "X-Key": KEY, "Authorization": BASIC}
    credentials = Credentials([home], headers=settings.headers, auth=settings.auth)

    await attempt(Request(home), downloader=Layered(credentials, over=web), settings=settings)

    assert web.sent == {home: told, elsewhere: {"Accept-Language": "da"}, f"{home}end": told}
    assert not any(secret in repr(settings) for secret in (KEY, PASSWORD))


@pytest.mark.parametrize(
    "elsewhere", ["http://a.example/", "https://a.example:8443/", "https://b.a.example/"]
)
async def test_the_headers_of_a_session_are_for_the_origins_of_its_login(elsewhere: str) -> None:
    home = "https://a.example/"
    web = Recording({home: "home", elsewhere: "elsewhere"})
    known = Identity(name="ada", headers=(("X-Key", KEY),), origins=("https://a.example",))
    downloader = Layered(Credentials(), over=web, session=Session(identity=known, jar=None))

    for url in (home, elsewhere):
        response = await downloader.fetch(Request(url), url=url)
        assert dict(response.request.headers) == {}

    assert web.sent == {home: {"X-Key": KEY}, elsewhere: {}}


async def test_harmless_headers_of_the_settings_are_sent_without_any_secret() -> None:
    url = "https://a.example/"
    web = Recording({url: "page"})
    credentials = Credentials(headers=[("Accept-Language", "da")])

    await Layered(credentials, over=web).fetch(Request(url), url=url)

    assert web.sent == {url: {"Accept-Language": "da"}}
    # No origin of a start URL is kept for them, neither in memory nor in a ledger.
    credentials.learn(url)
    credentials.trust(["https://b.example"])
    assert credentials.origins == frozenset()


async def test_of_two_passwords_for_an_origin_the_first_counts() -> None:
    url = "https://a.example/"
    web = Recording({url: "page"})
    credentials = Credentials([f"https://user:{PASSWORD}@a.example/"])

    assert credentials.learn("https://other:one@b.example/")
    assert not credentials.learn("https://other:one@a.example/")
    await Layered(credentials, over=web).fetch(Request(url), url=url)

    assert web.sent == {url: {"Authorization": BASIC}}


class Elsewhere(Spider):
    """Names its start URL only in `start`."""

    name = "elsewhere"
    allowed_hosts = "*"

    async def start(self):
        yield Request("https://a.example/")

    def parse(self, response: Response) -> Any:
        yield from response.follow_all("a")


async def test_where_start_has_led_is_known_to_the_next_crawl_before_start_runs_again(
    tmp_path: Path,
) -> None:
    ledger = f"sqlite:///{tmp_path}/ledger.db"
    home, other = "https://a.example/", "https://b.example/"
    settings = Settings(headers={"X-Key": KEY}, max_pages=1)

    await run_spider(
        Elsewhere(),
        ledger=ledger,
        settings=settings,
        downloader=Recording({home: f"<a href=/next><a href={other}>"}),
    )
    again = Recording({f"{home}next": "", other: ""})
    await run_spider(
        Elsewhere(), ledger=ledger, settings=replace(settings, max_pages=None), downloader=again
    )

    assert again.sent[f"{home}next"] == {"X-Key": KEY}
    assert again.sent[other] == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("headers", {"X-Key": f"{KEY}\r\nX-Other: 1"}),
        ("headers", {f"X {KEY}": "1"}),
        ("headers", f"no colon {KEY}"),
        ("headers", "{" + KEY),
        ("headers", {"User-Agent": KEY}),
        ("headers", {"Host": KEY}),
        ("headers", [KEY]),
        ("auth", KEY),
        ("auth", ("a:b", KEY)),
        ("auth", ("a", f"{KEY}\n")),
        ("auth", (KEY,)),
    ],
)
def test_an_error_of_a_secret_setting_does_not_tell_it(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=f"^setting {name}: ") as caught:
        Settings(**{name: value})
    assert KEY not in str(caught.value)
    with pytest.raises(SettingsError, match="Authorization both set the login"):
        Settings(auth="a:b", headers={"authorization": KEY})


def test_secret_settings_are_read_from_text() -> None:
    assert dict(Settings(headers="X-Key: a: b\nY: c").headers) == {"X-Key": "a: b", "Y": "c"}
    assert Settings(auth="user:pa:ss").auth == ("user", "pa:ss")


async def test_a_request_may_say_who_it_is_itself() -> None:
    web = Recording({"https://a.example/": "page"})
    downloader = Layered(Credentials([f"https://user:{PASSWORD}@a.example/"]), over=web)

    await downloader.fetch(
        Request("https://a.example/", headers={"authorization": "Bearer x"}),
        url="https://a.example/",
    )

    assert web.sent["https://a.example/"] == {"authorization": "Bearer x"}


@pytest.mark.parametrize(
    ("url", "pair"),
    [
        ("https://user:p%40ss%3A@a.example/", "user:p@ss:"),
        ("https://user@a.example/", "user:"),
        ("https://:token@a.example:443/", ":token"),
        ("https://us%C3%A9r:p@A.example/", "usér:p"),
    ],
)
async def test_a_password_is_sent_as_it_is_meant(url: str, pair: str) -> None:
    web = Recording({"https://a.example/": "page"})

    await Layered(Credentials([url]), over=web).fetch(
        Request("https://a.example/"), url="https://a.example/"
    )

    scheme, _, sent = web.sent["https://a.example/"]["Authorization"].partition(" ")
    assert (scheme, base64.b64decode(sent).decode()) == ("Basic", pair)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://u:p@h/", "http://***@h/"),
        ("//u:p@ss@h/", "//***@h/"),
        (r"http:\\u:p@h", r"http:\\***@h"),
        ("http://h/?token=1&a=2", "http://h/?token=***&a=2"),
        ("/?a=2&API_KEY=1#f", "/?a=2&API_KEY=***#f"),
        ("/?X-Amz-Signature=1;sig=2", "/?X-Amz-Signature=***;sig=***"),
        ("/?accessToken=1&user_password=2", "/?accessToken=***&user_password=***"),
        ("'/?auth=1' and '/?pass=2'", "'/?auth=***' and '/?pass=***'"),
        ("/?monkey=1&author=2&passage=3", "/?monkey=1&author=2&passage=3"),
        ("mailto:bob@example.com", "mailto:bob@example.com"),
        ("http://h/@bob/a@b", "http://h/@bob/a@b"),
    ],
)
def test_keys_and_passwords_in_urls_are_left_out_of_logs(text: str, shown: str) -> None:
    assert redacted(text) == shown


def test_a_request_is_shown_without_its_password() -> None:
    assert PASSWORD not in repr(Request(f"https://user:{PASSWORD}@a.example/"))


class Started(Spider):
    """Gives its password only in `start`."""

    name = "started"
    settings = Settings(concurrency=1, obey_robots=False)

    async def start(self) -> AsyncIterator[Request]:
        yield Request(f"https://user:{PASSWORD}@a.example/")

    def parse(self, response: Response) -> Iterator[Any]:
        yield from response.follow_all("a")


async def test_what_start_says_is_known_again_by_a_crawl_that_goes_on(tmp_path: Path) -> None:
    ledger = f"sqlite:///{tmp_path}/ledger.db"
    web = Recording({"https://a.example/": '<a href="/2">', "https://a.example/2": "end"})
    one_page = replace(Started.settings, max_pages=1)

    await run_spider(Started(), ledger=ledger, settings=one_page, downloader=web)
    first = dict(web.sent)
    await run_spider(Started(), ledger=ledger, downloader=web)

    assert first == {"https://a.example/": {"Authorization": BASIC}}
    assert web.sent["https://a.example/2"] == {"Authorization": BASIC}


class Keyed(Spider):
    """Sends one request with a key, which redirects to another origin."""

    name = "keyed"
    allowed_hosts = ["*"]
    settings = Settings(cookies=True, obey_robots=False)

    async def start(self) -> AsyncIterator[Request]:
        yield Request("https://a.example/", headers={"X-API-Key": KEY})

    def parse(self, response: Response) -> None:
        pass


async def test_the_task_of_a_page_elsewhere_has_no_key(tmp_path: Path) -> None:
    ledger_url = f"sqlite:///{tmp_path}/ledger.db"
    web = Recording({"https://a.example/": moved("http://a.example/"), "http://a.example/": "end"})

    await run_spider(Keyed(), ledger=ledger_url, downloader=web)
    ledger = await open_ledger(ledger_url, "keyed")
    found = await ledger.queries.find(TaskFilter(), limit=9)
    await ledger.close()

    headers = {each.task.url: each.task.headers for each in found}
    assert headers == {"https://a.example/": (("X-API-Key", KEY),), "http://a.example/": ()}
