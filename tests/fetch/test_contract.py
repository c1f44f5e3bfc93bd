"""Contract of downloaders: crawlcw's own fulfil it, and faulty ones are found."""

import asyncio
import gzip
import http.client
import zlib
from datetime import timedelta
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import pytest

from crawlcw.api.attempt import Downloader
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.crawl.admission import Admission
from crawlcw.engine.stats import Stats
from crawlcw.engine.watchdog import Watchdog
from crawlcw.errors import FetchError, Reason
from crawlcw.fetch.credentials import Credentials
from crawlcw.fetch.user_layers import UserLayer, after_response, before_request
from crawlcw.testing import DownloaderContract, Replay, ReplayDownloader
from tests.support.attempts import Layered


class TestAiohttp(DownloaderContract):
    """The default downloader."""


class Hooked(Spider):
    name = "hooked"
    start_urls = ["http://127.0.0.1/"]

    async def before_request(self, request: Request) -> Any:
        return request

    def after_response(self, response: Response) -> Any:
        return response


class TestAllThatIsLayeredOnIt(DownloaderContract):
    def downloader(self, default: Downloader) -> Downloader:
        credentials = Credentials(headers=[("Accept-Language", "da")])
        watch = Watchdog(Stats(), limit=timedelta(minutes=1))
        hooks = [
            UserLayer(hook, watch, Admission())
            for hook in (after_response(Hooked()), before_request(Hooked()))
            if hook is not None
        ]
        return Layered(*hooks, credentials, over=default)


class Plain:
    """Downloader on the standard library, in threads."""

    def __init__(self, settings: Settings) -> None:
        self._most = settings.max_body
        self._patience = settings.read_timeout.total_seconds()

    async def fetch(self, request: Request, *, url: str) -> Response:
        try:
            return await asyncio.to_thread(self._fetch, request, url)
        except TimeoutError as error:
            raise FetchError(Reason.TIMEOUT_READ, str(error)) from error
        except (OSError, http.client.HTTPException, zlib.error) as error:
            raise FetchError(Reason.DISCONNECTED, str(error)) from error

    def _fetch(self, request: Request, url: str) -> Response:
        parts, began = urlsplit(url), monotonic()
        connection = http.client.HTTPConnection(parts.netloc, timeout=self._patience)
        try:
            connection.request(request.method, parts.path, request.body, dict(request.headers))
            answer = connection.getresponse()
            packed = answer.headers.get("Content-Encoding") == "gzip"
            stream: Any = gzip.GzipFile(fileobj=answer) if packed else answer
            body = stream.read(self._most + 1)
            if not packed and answer.length and len(body) <= self._most:
                raise http.client.IncompleteRead(body)
        finally:
            connection.close()
        return Response(
            url,
            request=request,
            status=answer.status,
            headers=dict(answer.headers),
            body=body[: self._most],
            truncated="bytes" if len(body) > self._most else None,
            elapsed=timedelta(seconds=monotonic() - began),
        )

    async def close(self) -> None:
        pass


class TestOneWithoutAiohttp(DownloaderContract):
    def downloader(self, default: Downloader) -> Downloader:
        return Plain(self.settings)


class Wrong(ReplayDownloader):
    """Answers every request in the same way."""

    async def fetch(self, request: Request, *, url: str) -> Response:
        answer = await super().fetch(Request("any"), url="any")
        answer.url = url
        return answer


CHECKS = [name for name in vars(DownloaderContract) if name.startswith("test_")]


@pytest.mark.parametrize("check", [name for name in CHECKS if "closed" not in name])
def test_each_test_of_the_contract_fails_for_a_downloader_that_breaks_it(check: str):
    class Contract(DownloaderContract):
        def downloader(self, default: Downloader) -> Downloader:
            return Wrong({"any": Replay(status=418, body=b"x" * (1 << 20))})

    with pytest.raises(AssertionError):
        getattr(Contract(), check)()


def test_a_downloader_that_cannot_be_closed_breaks_the_contract():
    class Contract(DownloaderContract):
        def downloader(self, default: Downloader) -> Downloader:
            class Stuck(Wrong):
                async def close(self) -> None:
                    raise KeyError("closed already")

            return Stuck({})

    with pytest.raises(KeyError):
        Contract().test_it_can_be_closed_unused_and_twice()
