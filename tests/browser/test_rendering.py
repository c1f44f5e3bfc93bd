"""Pages that are rendered in a real Chromium, with allowed and forbidden requests."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from crawlcw import Request, Settings, Spider, UsageError, run_spider
from crawlcw.assembly import open_crawl
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.counters import Report
from examples.browser import Quotes
from tests.support import loopback, needed

MEMORY = "sqlite:///:memory:"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

pytestmark = pytest.mark.thorough


@pytest.fixture(autouse=True)
def chromium() -> str:
    """The system's browser."""
    return needed.chromium()


class Site:
    """Pages by path, and the requested paths."""

    def __init__(self) -> None:
        self.pages: dict[str, str | Handler] = {"/robots.txt": "User-agent: *\nDisallow: /secret"}
        self.asked: list[str] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        page = self.pages.get(request.path)
        if page is None:
            return web.Response(status=404)
        if callable(page):
            return await page(request)
        kind = "text/plain" if request.path.endswith(".txt") else "text/html"
        return web.Response(text=page, content_type=kind)


@asynccontextmanager
async def serving() -> AsyncIterator[Site]:
    site = Site()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", site.answer)
    async with loopback.served(app) as site.url:
        yield site


class Titles(Spider):
    name = "titles"

    def __init__(self, site: Site, *paths: str) -> None:
        super().__init__()
        self.start_urls = [site.url + path for path in paths]
        self.titles: dict[str, str] = {}
        self.clicked = ""
        self.given_up: dict[str, str] = {}

    async def parse(self, response: Any) -> Any:
        path = response.url.rpartition("/")[2]
        self.titles[path] = response.css_first("title").text()
        if response.page is not None and (button := await response.page.query_selector("button")):
            await button.click()
            self.clicked = await response.page.title()

    def on_error(self, request: Request, error: Any) -> None:
        self.given_up[request.url.rpartition("/")[2]] = str(error.reason)


async def crawled(spider: Spider, **settings: Any) -> Report:
    return await run_spider(
        spider,
        ledger=MEMORY,
        settings=Settings(**{"browser": True, "backoff_base": "10ms", **settings}),
    )


SCRIPTED = """<title>raw</title><button onclick="document.title='clicked'">b</button>
<script>fetch('/data').then(r => r.text()).then(t => document.title = t)</script>"""


async def test_a_page_is_what_its_scripts_have_made_of_it():
    async with serving() as site:
        site.pages |= {"/a": SCRIPTED, "/data": "rendered"}
        spider = Titles(site, "/a")

        report = await crawled(spider)

    assert (report.pages, report.failures) == (1, {})
    assert spider.titles == {"a": "rendered"}
    assert spider.clicked == "clicked", "the page is open until the callback ends"
    assert site.asked == ["/robots.txt", "/a", "/data"], "the page itself is requested once"


async def test_a_request_says_whether_it_is_rendered():
    class Mixed(Titles):
        async def start(self) -> AsyncIterator[Request]:
            for url in self.start_urls:
                yield Request(url, browser=url.endswith("rendered"))

    async with serving() as site:
        site.pages |= {"/plain": SCRIPTED, "/rendered": SCRIPTED, "/data": "done"}
        spider = Mixed(site, "/plain", "/rendered")

        await crawled(spider, browser=False)

    assert spider.titles == {"plain": "raw", "rendered": "done"}


async def test_what_a_page_becomes_is_cut_where_its_request_says():
    class Bounded(Titles):
        cut: dict[str, tuple[str | None, int]] = {}

        async def start(self) -> AsyncIterator[Request]:
            for url in self.start_urls:
                yield Request(url, max_body=4_000 if url.endswith("less") else 200_000)

        def parse(self, response: Any) -> Any:
            self.cut[response.url.rpartition("/")[2]] = (response.truncated, response.size)

    grows = "<body><script>document.body.append('x'.repeat(100_000))</script>"
    async with serving() as site:
        site.pages |= {"/less": grows, "/more": grows}
        spider = Bounded(site, "/less", "/more")

        await crawled(spider, max_body=50_000)

    assert spider.cut["less"] == ("bytes", 4_000)
    truncated, size = spider.cut["more"]
    assert truncated is None
    assert size > 100_000


async def test_a_quarantined_page_is_rendered_and_open_in_its_callback(tmp_path: Path):
    async with serving() as site:
        site.pages |= {"/a": SCRIPTED, "/data": "rendered"}
        spider = Titles(site, "/a")
        ledger = await SqliteLedger.open(tmp_path / "ledger.db", spider.name)
        task = Request(f"{site.url}/a", browser=True).task(now=ledger.now())
        await ledger.tasks.add([task])
        for worker in ("dead", "dead too"):
            page = await ledger.tasks.page(limit=1)
            await ledger.leases.claim(page, worker=worker, lease=timedelta(0), max_lost=5)
        await ledger.close()

        report = await run_spider(spider, ledger=f"sqlite:///{tmp_path}/ledger.db")

    assert (report.pages, report.failures) == (1, {})
    assert spider.titles == {"a": "rendered"}
    assert spider.clicked == "clicked"


async def test_what_one_session_has_is_never_seen_in_a_page_of_another():
    """Neither cookies of the server nor data of scripts, with pages open at the same time."""
    sent: dict[str, set[str]] = {}

    class People(Spider):
        name = "people"
        start_urls: list[str] = []

        async def login(self, session: Any) -> None:
            await session.fetch(f"{self.start_urls[0]}/in/{session.name}")

        async def start(self) -> AsyncIterator[Request]:
            for number in range(4):
                for who in ("ada", "bob"):
                    url = f"{self.start_urls[0]}/page/{who}/{number}"
                    yield Request(url, session=who, browser=True)

        def parse(self, response: Any) -> Any:
            who = response.url.split("/")[-2]
            yield {"who": who, "title": response.css_first("title").text()}

    async def logged_in(request: web.Request) -> web.StreamResponse:
        answer = web.Response()
        answer.set_cookie("sid", request.path.rpartition("/")[2])
        return answer

    async def page(request: web.Request) -> web.StreamResponse:
        who = request.path.split("/")[-2]
        note(who, request)
        text = f"""<title>raw</title><script>
            const found = document.cookie + (localStorage.getItem("who") || "");
            document.cookie = "mine={who}; path=/"; localStorage.setItem("who", "{who}");
            fetch("/me/{who}").then(r => r.text()).then(t => document.title = t + "|" + found)
            </script>"""
        answer = web.Response(text=text, content_type="text/html")
        answer.set_cookie("page", who)
        return answer

    async def me(request: web.Request) -> web.StreamResponse:
        note(request.path.rpartition("/")[2], request)
        return web.Response(text=request.cookies.get("sid", "nobody"))

    def note(who: str, request: web.Request) -> None:
        sent.setdefault(who, set()).update(request.cookies.values())

    async with serving() as site:
        for who in ("ada", "bob"):
            site.pages |= {f"/in/{who}": logged_in, f"/me/{who}": me}
            site.pages |= {f"/page/{who}/{number}": page for number in range(4)}
        spider = People(start_urls=[site.url])
        settings = Settings(browser_pages=4, backoff_base="10ms")
        async with open_crawl(spider, ledger=MEMORY, settings=settings) as crawl:
            report = await crawl.run()
            ledger = crawl.ledger
            titles = {(row.item["who"], row.item["title"]) async for row in ledger.queries.items()}

    assert (report.pages, report.failures) == (8, {})
    assert sent == {"ada": {"ada"}, "bob": {"bob"}}
    # The page has the cookies of its own response, and none of another page.
    assert {title.replace(f"page={who}", "") for who, title in titles} == {"ada|", "bob|"}


async def test_a_page_reaches_nothing_that_the_crawl_may_not():
    """Neither private addresses, by any API of a page, nor URLs that robots.txt forbids."""
    listening = socket.create_server(("127.0.0.2", 0))
    listening.setblocking(False)
    datagrams = socket.socket(type=socket.SOCK_DGRAM)
    datagrams.bind(listening.getsockname())
    multicast_dns = socket.socket(type=socket.SOCK_DGRAM)
    multicast_dns.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    multicast_dns.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    multicast_dns.bind(("", 5353))
    group = socket.inet_aton("224.0.0.251") + socket.inet_aton("0.0.0.0")
    multicast_dns.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
    private = f"127.0.0.2:{listening.getsockname()[1]}"
    async with serving() as site:
        site.pages |= {
            "/a": f"""<title>raw</title><img src="http://{private}/i.png">
                <link rel="stylesheet" href="http://{private}/s.css">
                <link rel="dns-prefetch" href="http://{private}/">
                <link rel="preconnect" href="http://{private}/">
                <iframe src="http://{private}/f"></iframe><iframe src="/secret/f"></iframe>
                <script src="http://{private}/s.js"></script>
                <script>
                  new WebSocket("ws://{private}/w");
                  navigator.sendBeacon("http://{private}/b", "x");
                  const stun = {{urls: "stun:{private}"}};
                  const turn = {{urls: ["turn:{private}", "turn:{private}?transport=tcp"],
                    username: "u", credential: "c"}};
                  const peer = new RTCPeerConnection({{iceServers: [stun, turn]}});
                  peer.createDataChannel("x");
                  const addresses = [];
                  const gathered = new Promise(done => peer.onicecandidate =
                    event => event.candidate ? addresses.push(event.candidate.candidate) : done());
                  const other = new RTCPeerConnection();
                  const remote = "candidate:1 1 udp 2113937151 a.local 3478 typ host";
                  const connected = (async () => {{
                    await peer.setLocalDescription(await peer.createOffer());
                    await other.setRemoteDescription(peer.localDescription);
                    await other.setLocalDescription(await other.createAnswer());
                    await peer.setRemoteDescription(other.localDescription);
                    await peer.addIceCandidate({{candidate: remote, sdpMid: "0"}});
                  }})();
                  const all = ["http://{private}/d", "/secret/d", "/moved", "/part"];
                  Promise.allSettled(all.map(url => fetch(url))).then(async found => {{
                    await Promise.all([gathered, connected]);
                    document.title = found.map(each => each.status[0]).join("") + addresses;
                  }});
                </script>""",
            "/part": "x",
            "/secret/d": "x",
            "/moved": _moved(f"http://{private}/moved"),
        }
        spider = Titles(site, "/a")

        await crawled(spider, browser_blocked=())

    assert spider.titles == {"a": "rrrf"}, (
        "all requests are refused but the one for the page's own part"
    )
    assert not [path for path in site.asked if path.startswith("/secret")]
    with listening, datagrams, multicast_dns:
        with pytest.raises(BlockingIOError):
            listening.accept()
        assert received(datagrams) == []
        questions = [data for data in received(multicast_dns) if b"NOTFOUND" in data]
        assert questions == []


def received(listener: socket.socket) -> list[bytes]:
    """Return the datagrams that have come so far."""
    listener.setblocking(False)
    datagrams = []
    with suppress(BlockingIOError):
        while True:
            datagrams.append(listener.recv(1 << 16))
    return datagrams


def _moved(target: str) -> Handler:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": target})

    return answer


@pytest.mark.parametrize("limit", [1, 3])
async def test_the_parts_of_pages_and_the_pages_take_the_slots_of_their_host(limit: int):
    active, most = 0, 0

    async def part(request: web.Request) -> web.StreamResponse:
        nonlocal active, most
        active += 1
        most = max(most, active)
        # With one slot the last part is sent before a page has settled, and answered afterwards.
        await asyncio.sleep((1 if request.path == "/part4" else 0.4) / limit)
        active -= 1
        return web.Response(text="1")

    page = """<title>raw</title><script>
    Promise.all([...Array(5).keys()].map(n => fetch('/part' + n).then(r => r.text())))
        .then(all => document.title = all.join(''))</script>"""
    async with serving() as site:
        site.pages |= {f"/part{n}": part for n in range(5)} | {"/a": page, "/b": page, "/c": page}
        spider = Titles(site, "/a", "/b", "/c")

        report = await crawled(spider, per_host_concurrency=limit, auto_throttle=False)

    assert (report.pages, report.failures) == (3, {})
    assert spider.titles == dict.fromkeys("abc", "1" * 5)
    assert most <= limit


async def test_images_are_not_asked_for_and_a_page_that_asks_for_ever_is_a_page():
    async with serving() as site:
        site.pages |= {
            "/a": """<title>busy</title><img src="/i.png"><script>
                setInterval(() => fetch("/news"), 50)</script>""",
            "/news": "x",
        }
        spider = Titles(site, "/a")

        await crawled(spider)

    assert spider.titles == {"a": "busy"}
    assert "/i.png" not in site.asked


async def test_a_page_that_ends_the_browser_is_given_up_and_no_other_is():
    async with serving() as site:

        async def deadly(_: web.Request) -> web.StreamResponse:
            os.kill(_browser_pid(), signal.SIGKILL)
            return web.Response(text="x")

        site.pages |= {
            "/deadly": "<title>raw</title><script>fetch('/kill')</script>",
            "/kill": deadly,
            **{f"/{n}": SCRIPTED for n in range(6)},
            "/data": "rendered",
        }
        spider = Titles(site, "/deadly", *(f"/{n}" for n in range(6)))

        report = await crawled(spider)

    assert report.pages == 6
    assert spider.given_up == {"deadly": "browser-crashed"}
    assert spider.titles == {str(n): "rendered" for n in range(6)}
    assert not _browsers(), "the browser ends with the crawl"


async def test_a_page_that_crashes_is_given_up():
    async with serving() as site:

        async def deadly(_: web.Request) -> web.StreamResponse:
            for pid in _browsers(kind=b"--type=renderer"):
                os.kill(pid, signal.SIGKILL)
            return web.Response(text="x")

        site.pages |= {"/a": "<title>raw</title><script>fetch('/kill')</script>", "/kill": deadly}
        spider = Titles(site, "/a")

        await crawled(spider)

    assert spider.given_up == {"a": "browser-crashed"}
    assert site.asked.count("/a") == 1


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("http://{host}:22/x", "refused-port"),
        ("http://127.0.0.2:{port}/x", "refused-scope"),
        ("http://10.0.0.1/x", "refused-address"),
        ("/secret/x", "refused-robots"),
        ("/file", "content-type"),
        ("/gone", "http-status"),
        ("/broken", "http-status"),
        ("about:blank", "browser-failed"),
        ("/on/0", "redirect-limit"),
    ],
)
async def test_a_page_whose_scripts_lead_to_no_page_fails_as_that(target: str, reason: str):
    async def file(_: web.Request) -> web.StreamResponse:
        return web.Response(body=b"x" * 100, headers={"Content-Disposition": "attachment"})

    async def broken(_: web.Request) -> web.StreamResponse:
        return web.Response(status=500, text="<title>broken</title>", content_type="text/html")

    messages = []

    class Everywhere(Titles):
        allowed_hosts = ["127.0.0.1", "10.0.0.1"]

        def on_error(self, request: Request, error: Any) -> None:
            super().on_error(request, error)
            messages.append(error.message)

    async with serving() as site:
        host, port = site.url.removeprefix("http://").split(":")
        led = target.format(host=host, port=port)
        site.pages |= {
            "/a": f"<title>raw</title><script>location.href = '{led}'</script>",
            "/file": file,
            "/broken": broken,
            **{f"/on/{n}": f"<script>location.href = '/on/{n + 1}'</script>" for n in range(9)},
            "/secret/x": "x",
        }
        spider = Everywhere(site, "/a")

        report = await crawled(spider, max_redirects=3, max_retry=1)

    assert spider.given_up == {"a": reason}
    assert (report.pages, spider.titles) == (0, {})
    assert "allow_private" not in messages[0], "its own host is allowed"
    if reason == "refused-address":
        assert f"its scripts navigate to {led}: the host" in messages[0]
    assert "/secret/x" not in site.asked


async def test_a_page_whose_scripts_lead_elsewhere_is_the_document_that_is_shown():
    seen: list[Any] = []

    class Following(Titles):
        def parse(self, response: Any) -> Any:
            links = [each.url for each in response.follow_all("a")]
            seen.append((response.url, response.status, response.headers.get("x-of"), links))

    async def moved(_: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": "/deep/er/there?q='\"<"})

    async def there(_: web.Request) -> web.StreamResponse:
        text = "<title>there</title><a href='next'>n</a>"
        return web.Response(text=text, content_type="text/html", headers={"X-Of": "there"})

    async with serving() as site:
        site.pages |= {
            "/a": "<title>raw</title><script>location.href = '/moved'</script>",
            "/moved": moved,
            "/deep/er/there": there,
            "/b": "<a href='next'>n</a><script>history.pushState(0, '', '/app/1#top')</script>",
        }
        await crawled(Following(site, "/a"))
        await crawled(Following(site, "/b"))

    [(url, status, of, links), pushed] = seen
    assert url.startswith(f"{site.url}/deep/er/there?q=")
    assert (status, of, links) == (200, "there", [f"{site.url}/deep/er/next"])
    assert site.asked.count("/deep/er/there") == 1
    assert pushed == (f"{site.url}/app/1", 200, None, [f"{site.url}/app/next"])


async def test_a_renderer_that_dies_while_its_page_is_in_a_callback_fails_that_page_alone(
    capfd: pytest.CaptureFixture[str],
):
    class Deadly(Titles):
        async def parse(self, response: Any) -> Any:
            crashed = asyncio.Event()
            response.page.on("crash", lambda _: crashed.set())
            for pid in _browsers(kind=b"--type=renderer"):
                os.kill(pid, signal.SIGKILL)
            await crashed.wait()
            self.clicked = "crashed"
            raise ValueError

    async with serving() as site:
        site.pages |= {"/a": "<title>raw</title>"}
        spider = Deadly(site, "/a")

        await crawled(spider)

    assert spider.given_up == {"a": "parse-error"}
    assert spider.clicked == "crashed", "the spider's own listener hears of it as well"
    # Playwright prints exceptions of its listeners.
    assert "InvalidStateError" not in capfd.readouterr().err


def _browsers(kind: bytes = b"") -> list[int]:
    """Return the browser processes of this process, or those of one kind."""
    found = []
    for pid in _descendants(os.getpid()):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        whole = b"--remote-debugging-pipe" in command and b"--type=" not in command
        if kind in command if kind else whole:
            found.append(pid)
    return found


def _descendants(pid: int) -> list[int]:
    children = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(place.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            children.append(int(place.parent.name))
    return children + [each for child in children for each in _descendants(child)]


def _browser_pid() -> int:
    return max(_browsers())


async def test_where_there_is_no_browser_the_crawl_ends_and_says_so():
    async with serving() as site:
        site.pages["/a"] = SCRIPTED

        with pytest.raises(UsageError, match="browser /no/such/chrome does not start: install"):
            await crawled(Titles(site, "/a"), browser_path="/no/such/chrome")


async def test_a_part_that_never_comes_is_a_part_that_is_missing():
    async with serving() as site:

        async def silent(_: web.Request) -> web.StreamResponse:
            await asyncio.sleep(60)
            return web.Response()

        site.pages |= {"/a": '<title>x</title><script src="/never"></script>', "/never": silent}
        spider = Titles(site, "/a")

        await crawled(spider, timeout="60s", read_timeout="2s", max_retry=1)

    assert spider.titles == {"a": "x"}


async def test_the_example_reads_what_a_script_writes():
    quotes = """<div id=q></div><script>
        document.getElementById("q").innerHTML = '<div class=quote><span class=text>T</span>'
            + '<small class=author>A</small></div><li class=next><a href="/2">n</a></li>'
        </script>"""
    async with serving() as site:
        site.pages |= {"/1": quotes, "/2": quotes.replace("/2", "/1").replace(">T<", ">U<")}
        spider = Quotes(url=f"{site.url}/1")
        spider.allowed_hosts = "*"

        report = await crawled(spider, browser=False, allow_private=[site.url.partition("//")[2]])

    assert (report.pages, report.items) == (2, 2), report.failures
