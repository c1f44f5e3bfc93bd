"""What the commands share that look at one page: `fetch`, `parse` and `shell`."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import ParamSpec, TypeVar

from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider, begin, logs_in
from crawlcw.cli import loading
from crawlcw.cli.trial import Trial, open_trial
from crawlcw.errors import FetchError, UsageError
from crawlcw.ledger.protocol import Ledger
from crawlcw.ledger_opening import open_ledger
from crawlcw.model import urls
from crawlcw.model.sanitize import printable

P = ParamSpec("P")
R = TypeVar("R")


class AnyPage(Spider):
    """Looks at pages where no spider is given; its callback yields nothing."""

    name = "any-page"
    allowed_hosts = "*"

    def parse(self, response: Response) -> None:
        """Yield nothing."""


def made(spider: str | None, arguments: Sequence[str]) -> Spider:
    """Return the spider that is named, or one for any page."""
    return loading.make(loading.find(spider), arguments) if spider else AnyPage(start_urls=[])


@asynccontextmanager
async def open_sessions(spider: Spider) -> AsyncIterator[Ledger | None]:
    """Open a ledger in memory for the sessions of *spider*, None where it does not log in."""
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
    """Open a trial of *url*, the spider told; raises `UsageError` for a URL that is none.

    A spider that logs in has its sessions in *sessions*, or else for this trial alone.
    """
    try:
        urls.locate(url)
    except FetchError as error:
        # The error names it without its password.
        raise UsageError(f"no URL to fetch: {error.message}") from None
    async with AsyncExitStack() as stack:
        if sessions is None:
            sessions = await stack.enter_async_context(open_sessions(spider))
        opened = open_trial(spider, url, settings, ledger=sessions)
        trial = await stack.enter_async_context(opened)
        await begin(spider)
        yield trial


def head_of(response: Response) -> str:
    """Return what is worth knowing of an answer before one looks at it, in one line."""
    kind = response.headers.get("content-type", "no content type")
    cut = f", cut: {response.truncated}" if response.truncated else ""
    return printable(
        f"{response.status} {response.url}  {response.size:,} bytes{cut}, {kind}, "
        f"{response.encoding}, {response.elapsed.total_seconds():.3f} s",
        limit=400,
    )
