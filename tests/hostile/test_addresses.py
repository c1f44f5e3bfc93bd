"""No crawl connects to private, link-local or metadata addresses, asserted at the socket.

Two loopback servers stand for the web and for the internal network: 127.0.0.2 counts
as a public address, 127.0.0.1 as the private one that it is. `Dns` resolves all names.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from crawlcw import Request, Response, Settings, Spider
from crawlcw.assembly import run_spider
from crawlcw.errors import FetchError, LedgerUnavailableError, Reason
from crawlcw.fetch import addresses, connector
from crawlcw.fetch.addresses import PublicNames
from crawlcw.fetch.transport import AiohttpDownloader
from crawlcw.ledger.protocol import TaskFilter
from crawlcw.ledger_opening import open_ledger
from tests.hostile.pages import response
from tests.support.ledgers import LedgerFactory

OUTSIDE, INSIDE = "127.0.0.2", "127.0.0.1"

#: HOSTILE 5.1, 5.4-5.6: private, reserved and cloud metadata addresses, in many
#: spellings.
SPELLINGS = (
    *("127.0.0.1", "127.0.0.53", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.0.1"),
    *("100.64.0.1", "169.254.169.254", "168.63.129.16", "100.100.100.200", "224.0.0.1"),
    *("[::1]", "[::]", "[fe80::1]", "[fc00::1]", "[fd00:ec2::254]", "[fec0::1]", "[ff02::1]"),
    *("[::ffff:127.0.0.1]", "[::ffff:a9fe:a9fe]", "[::127.0.0.1]", "[::169.254.169.254]"),
    *("[64:ff9b::7f00:1]", "[64:ff9b::a9fe:a9fe]", "[64:ff9b:1:7f00:0:100::]"),
    *("[2002:7f00:1::]", "[2002:a9fe:a9fe::]", "[2001:0:4136:e378:8000:63bf:3fff:fdd2]"),
    *("2130706433", "0x7f000001", "017700000001", "0177.0.0.1", "0x7f.1", "127.1", "127.0.1"),
    *("127.0.0.1.", "0", "1.1.1.1@127.0.0.1", "127.0.0.1%2f"),
    *("１２７.０.０.１", "①②⑦.⓪.⓪.①", "127。0。0。1", "１６９。２５４。１６９。２５４"),  # noqa: RUF001
    *("localhost", "LOCALHOST", "localhost.", "inside.example", "metadata.example"),
)


@dataclass
class Dns:
    """Resolves `*.example`; the system parses numeric addresses."""

    names: dict[str, list[str]] = field(
        default_factory=lambda: {
            "inside.example": [INSIDE],
            "metadata.example": ["169.254.169.254"],
        }
    )
    asked: Counter[str] = field(default_factory=Counter)
    _real: Callable[..., Any] = socket.getaddrinfo

    def __call__(self, host: str, port: int, **options: Any) -> list[tuple[Any, ...]]:
        self.asked[host] += 1
        if not host.endswith("example"):
            if host.rstrip(".").lower() == "localhost":
                host = "127.0.0.1"
            if not _is_number(host):
                raise socket.gaierror(socket.EAI_NONAME, "no such name")
            # No DNS query reaches the network, whatever the system takes for a name.
            options["flags"] = options.get("flags", 0) | socket.AI_NUMERICHOST
            return list(self._real(host, port, **options))
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in self.names.get(host, [OUTSIDE])
        ]


def _is_number(host: str) -> bool:
    return all(part[:1].isdigit() for part in host.rstrip(".").split("."))


@dataclass
class Net:
    """The servers outside and inside, the names, and the sockets that were opened."""

    port: int
    dns: Dns
    outside: list[str] = field(default_factory=list)  #: requests, with their hosts
    inside: int = 0  #: connections
    sockets: list[str] = field(default_factory=list)  #: their addresses
    pages: dict[str, bytes] = field(default_factory=dict)

    def url(self, host: str, path: str = "/") -> str:
        return f"http://{host}:{self.port}{path}"


@pytest.fixture
async def net(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Net]:
    dns = Dns()
    monkeypatch.setattr(socket, "getaddrinfo", dns)
    # Without the cache of names, each connection resolves its name again.
    monkeypatch.setattr(connector, "NAMES_KEPT", 0)
    real = addresses.is_public
    monkeypatch.setattr(addresses, "is_public", lambda each: each == OUTSIDE or real(each))
    made = addresses.AddressGuard.socket

    async with _servers(dns) as running:

        def spied(guard: addresses.AddressGuard, address: Any) -> socket.socket:
            opened = made(guard, address)
            running.sockets.append(str(address[4][0]))
            return opened

        monkeypatch.setattr(addresses.AddressGuard, "socket", spied)
        yield running


@asynccontextmanager
async def _servers(dns: Dns) -> AsyncIterator[Net]:
    net: Net

    async def outside(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split(" ")[1]
        host = head.lower().partition("\r\nhost: ")[2].partition("\r\n")[0].partition(":")[0]
        net.outside.append(host + path)
        answer = net.pages.get(host + path) or net.pages.get(path)
        writer.write(answer or response(b"nothing", status="404 Not Found"))
        writer.close()

    async def inside(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        net.inside += 1
        writer.write(response(b"secrets"))
        writer.close()

    for port in range(8700, 9000):
        try:
            one = await asyncio.start_server(outside, OUTSIDE, port)
            two = await asyncio.start_server(inside, INSIDE, port)
        except OSError:
            continue
        break
    async with one, two:
        net = Net(port, dns)
        yield net


def linking(*targets: str) -> bytes:
    return response("".join(f'<a href="{each}">x</a>' for each in targets).encode())


def moving(target: str) -> bytes:
    location = f"Location: {target}\r\n".encode()
    return response(b"", status="302 Found", headers=location)


class Anywhere(Spider):
    """Follows all links to all hosts."""

    name = "anywhere"
    allowed_hosts = ["*"]
    settings = Settings(
        max_retry=1,
        backoff_base="1ms",
        host_backoff_base="1ms",
        host_backoff_max="1ms",
        host_max_failures=5,
        connect_timeout="2s",
    )

    def parse(self, response: Response) -> Iterator[Any]:
        yield {"url": response.url, "text": response.text}
        yield from response.follow_all("a")


async def outcomes(ledger_url: str) -> dict[str, str]:
    ledger = await open_ledger(ledger_url, Anywhere.name)
    found = await ledger.queries.find(TaskFilter(), limit=1000)
    await ledger.close()
    return {each.task.url: str(each.task.reason or each.task.status.name) for each in found}


@pytest.fixture
def ledger_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/ledger.db"


@pytest.mark.parametrize("cookies", [False, True])
async def test_no_link_redirect_or_robots_leads_inside(
    net: Net, ledger_url: str, cookies: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    targets = [net.url(each, f"/from-link?{n}") for n, each in enumerate(SPELLINGS)]
    hops = [net.url("a.example", f"/to?{n}") for n in range(len(SPELLINGS))]
    robots = [net.url(f"r{n}.example") for n in range(len(SPELLINGS))]
    net.pages["a.example/"] = linking(*targets, *hops, *robots)
    for number, each in enumerate(SPELLINGS):
        net.pages[f"a.example/to?{number}"] = moving(net.url(each, f"/from-redirect?{number}"))
        net.pages[f"r{number}.example/robots.txt"] = moving(net.url(each, "/robots.txt"))
        net.pages[f"r{number}.example/"] = response(b"a page")
    settings = replace(Anywhere.settings, cookies=cookies)

    await run_spider(
        Anywhere(start_urls=[net.url("a.example")]), ledger=ledger_url, settings=settings
    )

    assert net.inside == 0
    assert set(net.sockets) == {OUTSIDE}
    reasons = await outcomes(ledger_url)
    assert reasons[net.url("a.example")] == "FINISHED"
    inside = {url: why for url, why in reasons.items() if "/from-" in url}
    assert len(inside) > 30
    assert set(inside.values()) <= {Reason.REFUSED_ADDRESS, Reason.DNS_NXDOMAIN}
    for address in ("127.0.0.1", "169.254.169.254", "[::1]", "inside.example", "metadata.example"):
        number = SPELLINGS.index(address)
        assert inside[net.url(address, f"/from-link?{number}")] == Reason.REFUSED_ADDRESS
    # A site does not talk the user into an exception for its links.
    assert "refused-address" in caplog.text
    assert "allow_private" not in caplog.text


@pytest.fixture
def turning(net: Net) -> Net:
    """A site whose name leads inside from its second page on."""
    net.pages["/robots.txt"] = response(b"")
    net.pages["/"] = linking("/2", "/3")
    net.pages["/2"] = net.pages["/3"] = response(b"a page")
    return net


class Turning(Anywhere):
    """Changes the address of the name after the first page."""

    net: Net
    to: str

    def parse(self, response: Response) -> Iterator[Any]:
        self.net.dns.names["turns.example"] = [self.to]
        yield from super().parse(response)


@pytest.mark.parametrize("to", [INSIDE, "169.254.169.254", "10.0.0.1"])
async def test_a_start_url_whose_name_turns_inside_is_not_followed_there(
    turning: Net, ledger_url: str, to: str
) -> None:
    start = turning.url("turns.example")

    await run_spider(Turning(start_urls=[start], net=turning, to=to), ledger=ledger_url)

    assert turning.inside == 0
    assert set(turning.sockets) == {OUTSIDE}
    reasons = await outcomes(ledger_url)
    assert reasons == {
        start: "FINISHED",
        f"{start}2": Reason.REFUSED_ADDRESS,
        f"{start}3": Reason.REFUSED_ADDRESS,
    }


async def test_a_crawl_that_goes_on_knows_that_a_name_was_public(
    turning: Net, ledger_url: str
) -> None:
    spider = Anywhere(start_urls=[turning.url("turns.example")])
    one_page = replace(Anywhere.settings, max_pages=1, concurrency=1)

    await run_spider(spider, ledger=ledger_url, settings=one_page)
    turning.dns.names["turns.example"] = [INSIDE]
    await run_spider(spider, ledger=ledger_url)

    assert turning.dns.asked["turns.example"] >= 2
    assert turning.inside == 0
    assert Counter((await outcomes(ledger_url)).values()) == {
        "FINISHED": 1,
        str(Reason.REFUSED_ADDRESS): 2,
    }


async def test_a_public_name_is_told_to_every_process(store: LedgerFactory) -> None:
    one, two = await store.open(), await store.open()

    await PublicNames(one.notes).note_public("a.example")

    assert await PublicNames(two.notes).was_public("a.example")
    assert not await PublicNames(two.notes).was_public("example")


async def test_a_name_that_is_inside_when_the_crawl_starts_is_crawled(
    net: Net, ledger_url: str
) -> None:
    start = net.url("inside.example")

    await run_spider(Anywhere(start_urls=[start]), ledger=ledger_url)

    assert await outcomes(ledger_url) == {start: "FINISHED"}
    assert set(net.sockets) == {INSIDE}


class Intranet(Anywhere):
    """Names its start URL only in `start`."""

    host: str

    async def start(self) -> AsyncIterator[Request]:
        yield Request(self.host)

    def on_error(self, request: Request, error: FetchError) -> Any:
        yield {"why": error.message}


@pytest.mark.parametrize("host", ["inside.example", "127.0.0.1"])
async def test_a_host_of_start_is_the_users_own_word_as_those_of_start_urls(
    net: Net, ledger_url: str, host: str
) -> None:
    await run_spider(Intranet(host=net.url(host)), ledger=ledger_url)

    assert await outcomes(ledger_url) == {net.url(host): "FINISHED"}
    assert set(net.sockets) == {INSIDE}


async def test_links_may_lead_to_no_other_host_inside_than_those_of_start(
    net: Net, ledger_url: str
) -> None:
    net.dns.names["other.example"] = [INSIDE]
    net.pages["a.example/"] = linking(net.url("other.example"), net.url("127.0.0.1"))

    await run_spider(Intranet(host=net.url("a.example")), ledger=ledger_url)

    assert net.inside == 0
    assert await outcomes(ledger_url) == {
        net.url("a.example"): "FINISHED",
        net.url("other.example"): Reason.REFUSED_ADDRESS,
        net.url("127.0.0.1"): Reason.REFUSED_ADDRESS,
    }


async def test_a_name_of_start_that_turns_inside_is_not_followed_there(
    turning: Net, ledger_url: str
) -> None:
    class Begun(Turning):
        async def start(self) -> AsyncIterator[Request]:
            yield Request(turning.url("turns.example"))

    await run_spider(Begun(net=turning, to=INSIDE), ledger=ledger_url)

    assert turning.inside == 0
    assert Counter((await outcomes(ledger_url)).values()) == {
        "FINISHED": 1,
        str(Reason.REFUSED_ADDRESS): 2,
    }


async def test_another_process_asks_for_the_hosts_of_a_start_that_it_has_not_run(
    ledger_url: str,
) -> None:
    """An odd port at a private address, which the second crawl's own `start` does not name."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response(b"inside"))
        writer.close()

    class First(Anywhere):
        home = ""

        async def start(self) -> AsyncIterator[Request]:
            for number in range(2):
                yield Request(f"{self.home}/{number}")

    class Second(Anywhere):
        async def start(self) -> AsyncIterator[Request]:
            return
            yield

    server = await asyncio.start_server(answer, INSIDE, 0)
    port = server.sockets[0].getsockname()[1]
    assert port not in range(8000, 9000), "the port must not be a usual one"
    home = f"http://{INSIDE}:{port}"
    one = replace(Anywhere.settings, max_pages=1, concurrency=1, obey_robots=False)
    async with server:
        await run_spider(First(home=home), ledger=ledger_url, settings=one)
        await run_spider(Second(), ledger=ledger_url)

    assert await outcomes(ledger_url) == {f"{home}/0": "FINISHED", f"{home}/1": "FINISHED"}


async def test_a_page_that_was_added_says_what_to_do_for_an_intranet_host(
    net: Net, ledger_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    host = f"inside.example:{net.port}"
    ledger = await open_ledger(ledger_url, Anywhere.name)
    await ledger.tasks.add([Request(f"http://{host}/").task(now=ledger.now())])
    await ledger.close()

    await run_spider(Anywhere(start_urls=[]), ledger=ledger_url)

    assert net.inside == 0
    assert (
        "refused-address the host's address is not public; "
        f'to crawl it, set allow_private=["{host}"]'
    ) in caplog.text


@pytest.mark.parametrize("target", ["http://0x7f.1/", "http://127.0.0.1/"])
async def test_a_start_page_that_leads_inside_gets_no_such_advice(
    net: Net, ledger_url: str, target: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    net.pages["/"] = moving(target)
    settings = replace(Anywhere.settings, cookies=True)

    await run_spider(Intranet(host=net.url("a.example")), ledger=ledger_url, settings=settings)

    assert await outcomes(ledger_url) == {net.url("a.example"): Reason.REFUSED_ADDRESS}
    assert "allow_private" not in caplog.text


async def test_while_the_ledger_is_away_no_name_becomes_private(net: Net) -> None:
    class Away:
        async def state(self) -> dict[str, Any]:
            raise LedgerUnavailableError("away")

        async def set_state(self, state: object) -> None:
            raise LedgerUnavailableError("away")

    origins = [f"inside.example:{net.port}", f"a.example:{net.port}"]
    names: Any = PublicNames(Away())  # type: ignore[arg-type]  # the two that are used of it
    net.pages["/"] = response(b"outside")
    async with AiohttpDownloader(Settings(), start_origins=origins, public_names=names) as opened:
        with pytest.raises(FetchError) as refused:
            await opened.fetch(Request(net.url("inside.example")), url=net.url("inside.example"))
        page = await opened.fetch(Request(net.url("a.example")), url=net.url("a.example"))

    assert refused.value.reason is Reason.DNS_TEMPORARY
    assert page.text == "outside"
    assert net.inside == 0
