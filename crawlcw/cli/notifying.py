"""Post the report of each ended crawl to the server in the setting `webhook`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from crawlcw.api.settings import Settings
from crawlcw.errors import CrawlcwError
from crawlcw.model.counters import FinishReason
from crawlcw.model.sanitize import printable, redacted


@asynccontextmanager
async def notifying(spider: str, settings: Settings) -> AsyncIterator[dict[str, object]]:
    """At the end of the block, post a message to the webhook of *settings*, if there is one.

    The code in the `async with` block gets the message, and adds to it the report and the exit
    code. If a `CrawlcwError` ends the block, the message contains the error.
    """
    notice: dict[str, object] = {
        "event": "report",
        "spider": spider,
        "finish_reason": FinishReason.FAILED,
    }
    try:
        yield notice
    except CrawlcwError as error:
        notice["error"] = printable(redacted(str(error)), limit=1000)
        await _post(notice, settings)
        raise
    await _post(notice, settings)


async def _post(notice: dict[str, object], settings: Settings) -> None:
    if settings.webhook is not None:
        from crawlcw.telemetry import webhook  # imported late, because it loads aiohttp

        await webhook.post(
            settings.webhook,
            notice,
            user_agent=settings.user_agent,
            proxy_env=settings.proxy_env,
        )
