"""Attribution of failures to the page, the origin or the network, by the real command."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from crawlcw.model.task import Status
from tests.blame.code_site import crawled, running
from tests.support.crawl_process import Row, Store, wait_until
from tests.support.plain_site import PlainHandler

pytestmark = pytest.mark.thorough

#: Status, headers, body.
Answer = tuple[int, dict[str, str], str]
PAGES = 40

_SPIDER = """
from crawlcw import Settings, Spider
{before}
class Pages(Spider):
    name = "pages"
    start_urls = {urls!r}
    settings = Settings(backoff_base="0.1s", host_backoff_base="1s", {settings})

    def parse(self, response):
        yield {{"url": response.url}}
        yield from response.follow_all("a[href]")
"""


class Host:
    """Serves pages at one address, one connection for each; it can go away and come back."""

    def __init__(self, answer: Callable[[str], Answer], *, address: str = "127.0.0.1") -> None:
        self.asked: list[str] = []
        host = self

        class Handler(PlainHandler):
            def get(self) -> None:
                host.asked.append(self.path)
                status, headers, body = (
                    (404, {}, "") if self.path == "/robots.txt" else answer(self.path)
                )
                self.reply(status, body, headers)

        self._handler = Handler
        self._address = (address, 0)
        self._open()
        self.name = f"{address}:{self._address[1]}"

    def _open(self) -> None:
        self._server = ThreadingHTTPServer(self._address, self._handler)
        self._server.daemon_threads = True
        self._address = (self._address[0], self._server.server_port)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def go_away(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def come_back(self) -> None:
        self._open()


@contextmanager
def served(*answers: Callable[[str], Answer]) -> Iterator[list[Host]]:
    with ExitStack() as stack:
        hosts = []
        for number, answer in enumerate(answers, start=1):
            host = Host(answer, address=f"127.12.0.{number}")
            stack.callback(lambda host=host: host.go_away())
            hosts.append(host)
        yield hosts


def page(path: str, *more: str, pages: int = PAGES) -> Answer:
    """Return a page of a site of *pages* pages: the first links to all others and to *more*."""
    links = [*more, *(f"/{n}" for n in range(pages))] if path == "/" else []
    return 200, {}, "".join(f'<a href="{link}">x</a>' for link in links)


def spider(
    *hosts: Host, settings: str = "", before: str = "", urls: list[str] | None = None
) -> str:
    urls = urls or [f"http://{host.name}/" for host in hosts]
    return _SPIDER.format(urls=urls, settings=settings, before=before)


def ended(ledger_url: str) -> dict[str, Row]:
    """Return every task by its path, or by host and path if there are several hosts."""
    return {f"{row.host}{row.path}": row for row in Store(ledger_url, "pages").rows()}


@pytest.mark.representative("sqlite")
def test_a_link_to_a_port_without_tls_costs_nobody_else_anything(ledger_url: str, tmp_path: Path):
    with served(lambda path: page(path, f"https://{host.name}/secure")) as (host,):
        began = time.monotonic()
        code, report, command = crawled(tmp_path, spider(host), ledger_url)
        took = time.monotonic() - began

    rows = ended(ledger_url)
    lost = [row for row in rows.values() if row.status != Status.FINISHED]
    assert len(rows) == PAGES + 2, command.log
    assert [(row.path, row.reason, row.retry) for row in lost] == [
        ("/secure", "host-unreachable", 0)
    ]
    assert report["hosts_given_up"] == {f"https://{host.name}": "host-unreachable"}
    assert (code, report["finish_reason"]) == (3, "drained")
    assert took < 30


def test_a_page_that_is_always_throttled_ends_by_itself_and_its_host_goes_on(
    ledger_url: str, tmp_path: Path
):
    """HOSTILE 2.17."""

    def answer(path: str) -> Answer:
        return (429, {"Retry-After": "1"}, "") if path == "/busy" else page(path, "/busy")

    with served(answer) as (host,):
        code, report, command = crawled(
            tmp_path, spider(host, settings="delay='20ms'"), ledger_url, "-s", "concurrency=4"
        )

    rows = ended(ledger_url)
    lost = [row for row in rows.values() if row.status != Status.FINISHED]
    assert [(row.path, row.reason, row.retry) for row in lost] == [("/busy", "http-status", 3)]
    assert len(rows) == PAGES + 2
    assert (code, report["finish_reason"]) == (0, "drained"), command.log
    assert report["hosts_given_up"] == {}
    assert host.asked.count("/busy") == 4, "a free one and three attempts"
    assert all(row.retry == 0 for row in rows.values() if row.path != "/busy")


def test_where_redirects_lead_is_their_pages_own_fault(ledger_url: str, tmp_path: Path):
    def answer(path: str) -> Answer:
        if path.startswith("/tls"):
            return 302, {"Location": f"https://{other.name}/"}, ""
        if path.startswith("/bad"):
            return 302, {"Location": "http://[bad"}, ""
        return page(path, *(f"/tls{n}" for n in range(9)), *(f"/bad{n}" for n in range(9)))

    with served(answer, page) as (host, other):
        # With cookies a redirect to another host of the crawl is followed in place.
        settings = "cookies=True, obey_robots=False"
        code, report, command = crawled(
            tmp_path, spider(host, other, settings=settings), ledger_url
        )

    rows = ended(ledger_url)
    ends = {(row.reason, row.retry) for row in rows.values() if row.path.startswith("/tls")}
    assert ends == {("tls", 1)}, command.log
    assert {(row.reason, row.retry) for row in rows.values() if row.path.startswith("/bad")} == {
        ("redirect-invalid", 1)
    }
    assert report["host_failures"] == {}
    assert sum(row.status == Status.FINISHED for row in rows.values()) == 2 * (PAGES + 1)
    assert code == 0


HOSTS = 8


def _slowly(path: str) -> Answer:
    time.sleep(0.05)
    return page(path, pages=25)


def test_while_the_network_is_away_nothing_is_given_up(ledger_url: str, tmp_path: Path):
    with served(*[_slowly] * HOSTS) as hosts:
        settings = "per_host_concurrency=1, host_max_failures=3"
        with running(tmp_path, spider(*hosts, settings=settings), ledger_url) as command:
            wait_until(lambda: all(len(host.asked) > 4 for host in hosts))
            for host in hosts:
                host.go_away()
            wait_until(lambda: command.records("network_down"))
            began = time.monotonic()
            # Longer than the time until a host is given up after three failures.
            wait_until(lambda: time.monotonic() - began > 5)
            for host in hosts:
                host.come_back()
            code, report = command.end()

    rows = ended(ledger_url)
    assert (code, report["finish_reason"]) == (0, "drained"), command.log
    assert report["hosts_given_up"] == {}
    assert {row.status for row in rows.values()} == {Status.FINISHED}
    assert len(rows) == HOSTS * 26
    assert command.records("network_back")


_LYING = """
import os, socket
import aiohttp.connector
aiohttp.connector._DNSCacheTable.expired = lambda *_: True
_asked = socket.getaddrinfo
def _lying(host, *args, **kwargs):
    name = host.decode() if isinstance(host, bytes) else host
    if name.endswith(".example"):
        if os.path.exists("dns-lies"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        host = "127.12.0." + name[1:].partition(".")[0]
    return _asked(host, *args, **kwargs)
socket.getaddrinfo = _lying
"""


def test_while_the_resolver_lies_nothing_is_given_up(ledger_url: str, tmp_path: Path):
    with served(*[_slowly] * HOSTS) as hosts:
        urls = [
            f"http://h{number}.example:{host.name.partition(':')[2]}/"
            for number, host in enumerate(hosts, start=1)
        ]
        code_of = spider(settings="per_host_concurrency=1", before=_LYING, urls=urls)
        with running(tmp_path, code_of, ledger_url) as command:
            wait_until(lambda: all(len(host.asked) > 4 for host in hosts))
            (tmp_path / "dns-lies").touch()
            wait_until(lambda: command.records("network_down"))
            began = time.monotonic()
            wait_until(lambda: time.monotonic() - began > 5)
            (tmp_path / "dns-lies").unlink()
            code, report = command.end()

    rows = ended(ledger_url)
    assert (code, report["finish_reason"]) == (0, "drained"), command.log
    assert {row.status for row in rows.values()} == {Status.FINISHED}
    assert {row.retry for row in rows.values()} == {0}
    assert len(rows) == HOSTS * 26
