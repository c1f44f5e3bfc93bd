"""Fetch of one page, for the commands `fetch`, `parse` and `shell`."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider, entry_urls, logs_in, settled
from crawlcw.cli import loading
from crawlcw.cli.ledger_option import closing
from crawlcw.cli.trial import Trial
from crawlcw.dev_cache import DevCache
from crawlcw.errors import FetchError, UsageError
from crawlcw.fetch.credentials import Credentials
from crawlcw.fetch.pipeline import downloader_of, web
from crawlcw.fetch.proxies import ProxyPool
from crawlcw.ledger.protocol import Ledger
from crawlcw.ledger_opening import open_ledger
from crawlcw.model import urls
from crawlcw.model.sanitize import printable


class AnyPage(Spider):
    """Spider for any page, when the user names none; its callback yields nothing."""

    name = "any-page"
    allowed_hosts = "*"

    def parse(self, response: Response) -> None:
        """Yield nothing."""


def made(spider: str | None, arguments: Sequence[str]) -> Spider:
    """Return the named spider, or one for any page."""
    return loading.make(loading.find(spider), arguments) if spider else AnyPage(start_urls=[])


@asynccontextmanager
async def open_sessions(spider: Spider) -> AsyncIterator[Ledger | None]:
    """Open a ledger in memory for the sessions of *spider*; None if it does not log in."""
    if not logs_in(spider):
        yield None
        return
    async with closing(open_ledger("sqlite:///:memory:", spider.name)) as ledger:
        yield ledger


@asynccontextmanager
async def trying(
    spider: Spider, url: str, settings: Settings, *, sessions: Ledger | None = None
) -> AsyncIterator[Trial]:
    """Open a trial of *url* and start the spider; raises `UsageError` for an invalid URL.

    The URL may be at a private address, like a start URL: the user has named it. The sessions
    of a spider that logs in are in *sessions*, or else live for this trial. Raises
    `SpiderError` for an invalid `login_when`.
    """
    try:
        urls.locate(url)
    except FetchError as error:
        # The error shows the URL without its password.
        raise UsageError(f"not a URL to fetch: {error.message}") from None
    # A typed URL may be of any site: it gets credentials only if there are no start URLs.
    credentials = Credentials(
        entry_urls(spider) or [url], headers=settings.headers, auth=settings.auth
    )
    credentials.learn_password(url)
    async with AsyncExitStack() as stack:
        if sessions is None:
            sessions = await stack.enter_async_context(open_sessions(spider))
        proxies = ProxyPool(settings, os.environ)
        default = web(spider, settings, also=[url], proxies=proxies, cache=DevCache.of)
        way = await stack.enter_async_context(downloader_of(spider, default))
        trial = Trial(spider, way, credentials, settings, proxies=proxies, ledger=sessions)
        stack.push_async_callback(trial.close)
        await settled(spider.opened())
        yield trial


def head_of(response: Response) -> str:
    """Return a summary of a response in one line: status, URL, size, type, encoding, time."""
    kind = response.headers.get("content-type", "no content type")
    cut = f", cut: {response.truncated}" if response.truncated else ""
    return printable(
        f"{response.status} {response.url}  {response.size:,} bytes{cut}, {kind}, "
        f"{response.encoding}, {response.elapsed.total_seconds():.3f} s",
        limit=400,
    )
