"""Fetch of one page, for the commands `fetch`, `parse` and `shell`."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider, logs_in, settled
from crawlcw.cli import loading
from crawlcw.cli.trial import Trial, open_trial
from crawlcw.errors import FetchError, UsageError
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
    ledger = await open_ledger("sqlite:///:memory:", spider.name)
    try:
        yield ledger
    finally:
        await ledger.close()


@asynccontextmanager
async def trying(
    spider: Spider, url: str, settings: Settings, *, sessions: Ledger | None = None
) -> AsyncIterator[Trial]:
    """Open a trial of *url* and start the spider; raises `UsageError` for an invalid URL.

    The sessions of a spider that logs in are in *sessions*, or else live for this trial.
    """
    try:
        urls.locate(url)
    except FetchError as error:
        # The error shows the URL without its password.
        raise UsageError(f"not a URL to fetch: {error.message}") from None
    async with AsyncExitStack() as stack:
        if sessions is None:
            sessions = await stack.enter_async_context(open_sessions(spider))
        opened = open_trial(spider, url, settings, ledger=sessions)
        trial = await stack.enter_async_context(opened)
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
