"""The setting `webhook`: post the report of each ended crawl to the user's server."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from crawlcw.api.settings import Settings
from crawlcw.errors import CrawlcwError
from crawlcw.model.counters import FinishReason
from crawlcw.model.sanitize import printable, redacted


class Notice:
    """Content of the webhook's message about one crawl."""

    def __init__(self, spider: str) -> None:
        self.fields: dict[str, Any] = {
            "event": "report",
            "spider": spider,
            "finish_reason": FinishReason.FAILED,
        }

    def ended(self, code: int, report: Mapping[str, object] | None = None) -> None:
        """Note the exit code, and the report if there is one."""
        self.fields |= {**(report or {}), "exit_code": code}


@asynccontextmanager
async def notifying(spider: str, settings: Settings) -> AsyncIterator[Notice]:
    """Post to the webhook of *settings*, if any, at the end of the block.

    If a `CrawlcwError` ends the block, the message contains it.
    """
    notice = Notice(spider)
    try:
        yield notice
    except CrawlcwError as error:
        notice.fields["error"] = printable(redacted(str(error)), limit=1000)
        await _tell(notice, settings)
        raise
    await _tell(notice, settings)


async def _tell(notice: Notice, settings: Settings) -> None:
    if settings.webhook is not None:
        from crawlcw.telemetry import webhook  # imports aiohttp, which the supervisor rarely needs

        await webhook.post(
            settings.webhook,
            notice.fields,
            user_agent=settings.user_agent,
            proxy_env=settings.proxy_env,
        )
