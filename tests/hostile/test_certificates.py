"""Expired, mismatched and self-signed certificates on real TLS sockets: HOSTILE 1.15.

Those in `certificates/` are signed by `authority.pem`, whose key was thrown away.
`openssl ca -startdate 20240101000000Z -enddate 20250101000000Z` dates one; its
name is the request's `subjectAltName`. The others are valid until 2125.
"""

import asyncio
import json
import os
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from crawlcw import open_ledger
from crawlcw.errors import Reason
from crawlcw.ledger.protocol import TaskFilter
from crawlcw.model.task import Record, Status
from tests.hostile.pages import response
from tests.support.programs import environment

_CERTIFICATES = Path(__file__).with_name("certificates")
_SERVERS = {name: _CERTIFICATES / f"{name}.pem" for name in ("expired", "not_yet", "wrong_name")}
_SERVERS |= {
    "trusted": _CERTIFICATES / "trusted.pem",
    "self_signed": Path(__file__).with_name("self_signed.pem"),
}
#: Error messages: a prefix of crawlcw, and OpenSSL's name of the fault.
REFUSALS = {
    "expired": "the certificate is not trusted: certificate has expired",
    "not_yet": "the certificate is not trusted: certificate is not yet valid",
    "wrong_name": "the certificate is not trusted: IP address mismatch, certificate is not valid "
    "for '127.0.0.1'.",
    "self_signed": "the certificate is not trusted: self-signed certificate",
}
_SPIDER = """\
from crawlcw import Spider


class Pages(Spider):
    name = "pages"
    start_urls = {urls!r}

    def parse(self, response):
        yield {{"url": response.url}}
"""


class Servers:
    """A server for each certificate."""

    def __init__(self) -> None:
        self.urls: dict[str, str] = {}
        self.requests: list[str] = []  #: servers that received a request through TLS

    async def start(self, name: str) -> asyncio.Server:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(_SERVERS[name])

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            self.requests.append(name)
            writer.write(response(headers=b"Connection: close\r\n"))
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
        self.urls[name] = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        return server


@pytest.fixture
async def servers() -> AsyncIterator[Servers]:
    opened = Servers()
    async with AsyncExitStack() as stack:
        for name in _SERVERS:
            await stack.enter_async_context(await opened.start(name))
        yield opened


async def crawlcw(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Run a command that trusts the tests' authority; return its exit code and output."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "crawlcw", *arguments,
        cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        # In a process of its own: aiohttp caches its TLS contexts.
        env=environment() | {"SSL_CERT_FILE": os.fspath(_CERTIFICATES / "authority.pem")},
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def crawl(folder: Path, servers: Servers, *options: str) -> tuple[dict[str, Record], str]:
    """Crawl a page of each server; return their tasks, by the servers' names, and the log."""
    (folder / "pages.py").write_text(_SPIDER.format(urls=[*servers.urls.values()]))
    ledger_url = f"sqlite:///{folder}/ledger.db"
    options = ("--ledger", ledger_url, "--log-format", "json", *options)
    # Otherwise the log would only count equal lines from the sixth on.
    options += ("-s", "host_max_failures=1")
    _, _, log = await crawlcw(folder, "run", "pages.py", *options)
    ledger = await open_ledger(ledger_url, "pages")
    records = await ledger.queries.find(TaskFilter(statuses=tuple(Status)), limit=10)
    await ledger.close()
    found = {record.task.url: record for record in records}
    return {name: found[url] for name, url in servers.urls.items()}, log


async def test_an_origin_whose_certificate_is_not_right_is_given_up_for_a_reason_that_is_told(
    servers: Servers, tmp_path: Path
):
    """HOSTILE 1.15: it gets no request, and the others are crawled."""
    records, log = await crawl(tmp_path, servers)

    trusted = records.pop("trusted")
    assert trusted.task.status is Status.FINISHED
    assert {record.task.reason for record in records.values()} == {Reason.HOST_UNREACHABLE}
    events = [json.loads(line) for line in log.splitlines()]
    (report,) = (event for event in events if event.get("event") == "report")
    assert set(report["host_failures"]) == {"tls"}
    said = [event["message"] for event in events if event.get("event") == "host_failed"]
    for message in REFUSALS.values():
        assert any(message in each for each in said)
    assert set(servers.requests) == {"trusted"}


@pytest.mark.thorough
async def test_any_certificate_is_accepted_where_the_user_asks_for_it(
    servers: Servers, tmp_path: Path
):
    """HOSTILE 1.15: only the setting `insecure` allows that."""
    records, _ = await crawl(tmp_path, servers, "-s", "insecure=true")

    assert {record.task.status for record in records.values()} == {Status.FINISHED}


@pytest.mark.thorough
@pytest.mark.parametrize("name", REFUSALS)
async def test_fetch_tells_what_is_wrong_with_a_certificate(
    servers: Servers, tmp_path: Path, name: str
):
    """HOSTILE 1.15."""
    code, out, err = await crawlcw(tmp_path, "fetch", servers.urls[name])

    assert (code, out) == (3, "")
    assert REFUSALS[name] in err
    assert "Traceback" not in err
    assert servers.requests == []
