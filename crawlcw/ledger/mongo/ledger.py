"""The ledger on MongoDB, put together."""

from collections.abc import Callable
from datetime import datetime
from typing import Self

from crawlcw.ledger.mongo.admissions import Admissions
from crawlcw.ledger.mongo.blobs import Blobs
from crawlcw.ledger.mongo.change_stream import ChangeStream
from crawlcw.ledger.mongo.claims import Claims
from crawlcw.ledger.mongo.connection import connected
from crawlcw.ledger.mongo.crawl_state import CrawlState
from crawlcw.ledger.mongo.examination import Examination
from crawlcw.ledger.mongo.failures import Failures
from crawlcw.ledger.mongo.host_leases import HostLeases
from crawlcw.ledger.mongo.hosts import Hosts
from crawlcw.ledger.mongo.items import Items
from crawlcw.ledger.mongo.mass_changes import MassChanges
from crawlcw.ledger.mongo.outcomes import Outcomes
from crawlcw.ledger.mongo.questions import Questions
from crawlcw.ledger.mongo.schema import Schema, check_kind, check_version, is_tracked
from crawlcw.ledger.mongo.selections import Selections
from crawlcw.ledger.mongo.tasks import Tasks
from crawlcw.ledger.mongo.tracked import Tracked
from crawlcw.ledger.mongo.workers import Workers


class MongoLedger(
    Tasks,
    Admissions,
    Claims,
    Outcomes,
    Items,
    Failures,
    Questions,
    HostLeases,
    Workers,
    MassChanges,
    Hosts,
    Selections,
    Blobs,
    CrawlState,
    Tracked,
    ChangeStream,
    Examination,
    Schema,
):
    """The tasks of one spider or use case in a MongoDB database.

    Fulfils `Ledger`, and `TrackedLedger` where it is opened so.
    """

    @classmethod
    async def open(
        cls,
        url: str,
        spider: str,
        *,
        driver: str = "motor",
        claims: str = "each",
        clock: Callable[[], datetime] | None = None,
        tracked: bool | None = None,
    ) -> Self:
        """Connect to *url* and prepare the collections of a spider or a use case.

        The database is the URL's path, by default `crawlcw`; *driver* is
        `motor` or `pymongo`, *claims* as for the constructor. *tracked* says
        that it is a use case; None: whatever is written down there, and a spider
        where nothing is. Raises `LedgerUnavailableError` where no server answers
        within 5 s, and `LedgerConfigurationError` where one answers that will not do.
        """
        client, database = connected(url, driver)
        ledger = cls(
            database,
            spider,
            claims=claims,
            clock=clock,
            client=client,
            url=url,
            tracked=bool(tracked),
        )
        ledger._driver = driver
        try:
            await ledger._check_server()
            if tracked is None:
                marker = await ledger._marker()
                ledger.tracked = marker is not None and is_tracked(marker)
                ledger._only_looks = marker is None
            await ledger.prepare()
        except BaseException:
            await ledger.close()
            raise
        return ledger

    async def another(self) -> "MongoLedger":
        """See `Ledger.another`; where it was given a database, on that one."""
        client, database = None, self._database
        if self._client is not None and self._url is not None:
            client, database = connected(self._url, self._driver)
        return MongoLedger(
            database,
            self._spider,
            claims="batch" if self._batches else "each",
            clock=self._now,
            client=client,
            url=self._url,
            tracked=self.tracked,
        )

    @classmethod
    async def look(
        cls,
        url: str,
        spider: str,
        *,
        driver: str = "motor",
        clock: Callable[[], datetime] | None = None,
        tracked: bool | None = None,
    ) -> Self:
        """Connect to *url* to examine what is there; nothing is made.

        The arguments and errors are those of `open`, but that missing or wrong
        indexes are no error: `health` tells of them.
        """
        client, database = connected(url, driver)
        ledger = cls(database, spider, clock=clock, client=client, tracked=bool(tracked))
        try:
            await ledger._check_server()
            marker = await ledger._marker()
            if marker is not None:
                check_version(marker, spider)
                if tracked is None:
                    ledger.tracked = is_tracked(marker)
                check_kind(marker, spider, tracked=ledger.tracked)
        except BaseException:
            await ledger.close()
            raise
        return ledger
