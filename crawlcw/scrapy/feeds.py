"""Write the feeds of a project's settings (FEEDS) from the recorded items, by Scrapy's exporter.

The last process of a crawl writes the feeds at its end, even if the crawl is incomplete. A feed
that overwrites its file gets all items. A feed that appends gets the items recorded since the last
write; the ledger has the time of this write in a note. So each item is written once if a crawl is
stopped and resumed. The items are in the order of the ledger, not in the order of the crawl.
"""

import asyncio
import logging
import os
import tempfile
import time
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from datetime import datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import anyio
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.extensions.feedexport import FeedExporter

from crawlcw.engine.workers import is_dead
from crawlcw.files.partial import locked
from crawlcw.ledger.protocol import ItemRow, Ledger, TaskFilter
from crawlcw.model.sanitize import printable
from crawlcw.scrapy import codec

logger = logging.getLogger(__name__)

#: The name of the note, which maps the digest of a feed's URI to the time of its last write.
_NOTE = "scrapy_feeds"
#: A worker on another machine without a heartbeat for this time counts as dead.
_MAX_SILENCE = timedelta(seconds=15)
_LOCK_POLL_S = 0.1
#: Seconds after which the export lets other tasks of the event loop run.
_STEP_S = 0.05


async def write(crawler: Crawler, ledger: Ledger) -> None:
    """Write the recorded items to the project's feeds, unless other processes still crawl."""
    try:
        feeds: dict[str, Any] = FeedExporter(crawler).feeds
    except NotConfigured:
        return  # Scrapy has logged the reason if a feed is invalid
    now = ledger.now()
    for worker in await ledger.workers.all():
        if not is_dead(worker) and now - worker.heartbeat < _MAX_SILENCE:
            return
    # Complete the files even if the user stops the crawl now, because a cut file loses items.
    with anyio.CancelScope(shield=True):
        with await _lock(feeds):
            await _write(crawler, ledger, feeds)


async def _lock(feeds: Iterable[str]) -> BinaryIO:
    """Lock the feeds, because several processes on this machine may end at the same time."""
    name = f"crawlcw-feeds-{os.getuid()}-{_digest(' '.join((str(Path.cwd()), *feeds)))}.lock"
    path = Path(tempfile.gettempdir(), name)
    while (stream := locked(path, mode=0o600)) is None:  # noqa: ASYNC110  # no event: another process has the lock
        await anyio.sleep(_LOCK_POLL_S)
    return stream


async def _write(crawler: Crawler, ledger: Ledger, feeds: Mapping[str, Any]) -> None:
    started_at = ledger.now()
    note: dict[str, str] = dict((await ledger.notes.state()).get(_NOTE) or {})
    #: The feeds to write, by the earliest time of their items; None: all items.
    groups: dict[datetime | None, dict[str, Any]] = {}
    for uri, options in feeds.items():
        last_write = note.get(_digest(uri))
        start = None if last_write is None else datetime.fromisoformat(last_write)
        async with aclosing(_rows(ledger, start)) as rows:
            if start is not None and await anext(rows, None) is None:
                continue  # the feed has all items
        groups.setdefault(start if _appends(uri, options) else None, {})[uri] = options
    for start, group in groups.items():
        if await _export(crawler, group, _rows(ledger, start)):
            note |= {_digest(uri): started_at.isoformat() for uri in group}
            await ledger.notes.set_state({_NOTE: note})


def _appends(uri: str, options: Mapping[str, Any]) -> bool:
    """Return whether a feed appends to the items of earlier writes; files do by default."""
    return not options.get("overwrite", urlsplit(uri).scheme not in ("", "file", "stdout"))


async def _rows(ledger: Ledger, start: datetime | None) -> AsyncGenerator[ItemRow, None]:
    selection = None if start is None else TaskFilter(changed_since=start)
    async for row in ledger.queries.items(selection):
        if start is None or row.fetched_at >= start:
            yield row


async def _export(
    crawler: Crawler, feeds: dict[str, Any], rows: AsyncGenerator[ItemRow, None]
) -> bool:
    """Export items to *feeds*; return whether Scrapy has stored all files."""
    exporter, spider = FeedExporter(crawler), crawler.spider
    assert spider is not None
    exporter.feeds = feeds
    exporter.open_spider(spider)
    pause_at = time.monotonic() + _STEP_S
    async for row in rows:
        kind = codec.item_class(row.item_class) if row.item_class else None
        item = row.item if kind is None else codec.item_of(kind, row.item)
        try:
            exporter.item_scraped(item, spider)
        except Exception:  # a serializer of the project may raise any error
            url, event = printable(row.url), {"event": "feed_error"}
            logger.exception("could not export an item of %s", url, extra=event)
        if time.monotonic() >= pause_at:
            await asyncio.sleep(0)
            pause_at = time.monotonic() + _STEP_S
    failure_count = _failure_count(crawler)
    await exporter.close_spider(spider)
    return _failure_count(crawler) == failure_count


def _failure_count(crawler: Crawler) -> int:
    """Return the number of files that Scrapy could not store, an error that Scrapy only logs."""
    stats = crawler.stats.get_stats() if crawler.stats else {}
    return sum(n for name, n in stats.items() if name.startswith("feedexport/failed_count"))


def _digest(text: str) -> str:
    # A URI may contain a password, so the ledger stores only the digest.
    return blake2b(text.encode(), digest_size=16).hexdigest()
