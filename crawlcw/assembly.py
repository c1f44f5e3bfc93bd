"""Putting the parts together: the only place that chooses implementations."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider, check
from crawlcw.crawl.crawl import Crawl
from crawlcw.crawl.suspects import Children
from crawlcw.downloader.protocol import Downloader
from crawlcw.engine.stats import Report
from crawlcw.errors import LedgerConfigurationError, UsageError
from crawlcw.ledger.examination import ExaminedLedger
from crawlcw.ledger.protocol import Ledger
from crawlcw.ledger.tracked import TrackedLedger
from crawlcw.model import urls

DEFAULT_LEDGER = "sqlite:///.crawlcw/ledger.db"


async def open_ledger(
    url: str,
    name: str,
    *,
    settings: Settings | None = None,
    create: bool = True,
    tracked: bool | None = False,
) -> Ledger:
    """Return the ledger of the spider named *name* at *url*.

    *url* is `sqlite:///relative/path`, `sqlite:////absolute/path`,
    `mongodb://host/database` or `mongodb+srv://...`. With *tracked* it is that
    of the use case of this name, with None of whichever of the two is there.
    Without *create* an embedded ledger that does not exist is a `UsageError`.
    Raises `LedgerConfigurationError` or `LedgerUnavailableError`.
    """
    settings = settings or Settings()
    path = _path(url)
    if path is None:
        from crawlcw.ledger.mongo import MongoLedger  # the drivers take 0.2 s to load

        return await MongoLedger.open(
            url, name, driver=settings.mongo_driver, claims=settings.claim, tracked=tracked
        )
    from crawlcw.ledger.sqlite import SqliteLedger

    if not create:
        await _check_there(path)
    return await SqliteLedger.open(path, name, tracked=tracked)


async def open_tracked(
    url: str, use_case: str, *, driver: str = "motor", create: bool = True
) -> TrackedLedger:
    """Return the ledger of the use case named *use_case* at *url*.

    *driver* is MongoDB's; the other arguments and errors are those of `open_ledger`.
    """
    path = _path(url)
    if path is None:
        from crawlcw.ledger.mongo import MongoLedger

        return await MongoLedger.open(url, use_case, driver=driver, claims="batch", tracked=True)
    from crawlcw.ledger.sqlite import SqliteLedger

    if not create:
        await _check_there(path)
    return await SqliteLedger.open(path, use_case, tracked=True)


async def open_for_inspection(
    url: str, name: str, *, settings: Settings | None = None
) -> ExaminedLedger:
    """Return the ledger of the spider or use case named *name* at *url*: nothing is made.

    The arguments and errors are those of `open_ledger` without *create*.
    """
    settings = settings or Settings()
    path = _path(url)
    if path is None:
        from crawlcw.ledger.mongo import MongoLedger

        return await MongoLedger.look(url, name, driver=settings.mongo_driver)
    from crawlcw.ledger.sqlite import SqliteLedger

    await _check_there(path)
    return await SqliteLedger.look(path, name)


def _path(url: str) -> Path | None:
    """Return the file of an embedded ledger, or None for one on MongoDB."""
    scheme, _, rest = url.partition("://")
    if scheme in ("mongodb", "mongodb+srv"):
        return None
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        return Path(rest[1:])
    raise LedgerConfigurationError(
        f"{_without_password(url)!r} is no ledger: write sqlite:///path or mongodb://host/database"
    )


async def _check_there(path: Path) -> None:
    if not await anyio.Path(path).exists():
        raise UsageError(
            f"there is no ledger at {path}: run a spider first, or name one with --ledger"
        )


@asynccontextmanager
async def open_crawl(
    spider: Spider,
    *,
    ledger: str = DEFAULT_LEDGER,
    settings: Settings | None = None,
    downloader: Downloader | None = None,
    children: Children | None = None,
) -> AsyncIterator[Crawl]:
    """Open what a crawl of *spider* needs, and close it afterwards.

    *settings* replace those of the spider's class; *downloader* replaces the
    real one, for tests. *children* work on what crashed workers held: they are
    for whoever can make the spider anew in another process.
    """
    check(spider)
    settings = settings or spider.settings
    opened = await open_ledger(ledger, spider.name, settings=settings)
    try:
        way = downloader or web(spider, settings)
        try:
            yield Crawl(spider, opened, way, settings, children=children)
        finally:
            await way.close()
    finally:
        await opened.close()


async def run_spider(
    spider: Spider,
    *,
    ledger: str = DEFAULT_LEDGER,
    settings: Settings | None = None,
    downloader: Downloader | None = None,
) -> Report:
    """Crawl *spider* to its end and return the report; the arguments are `open_crawl`'s."""
    async with open_crawl(spider, ledger=ledger, settings=settings, downloader=downloader) as crawl:
        return await crawl.run()


def web(spider: Spider, settings: Settings) -> Downloader:
    """Return the downloader that a crawl of *spider* uses."""
    from crawlcw.downloader.aiohttp import AiohttpDownloader

    origins = {urls.locate(url).host for url in spider.start_urls}
    return AiohttpDownloader(settings, start_origins=origins)


def _without_password(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    credentials, at, host = rest.rpartition("@")
    return f"{scheme}{separator}***@{host}" if at and credentials else url
