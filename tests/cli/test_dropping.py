"""The confirmation of `drop` and `run --fresh`."""

import pytest

from crawlcw.cli import dropping
from crawlcw.errors import UsageError
from crawlcw.ledger.mongo import MongoLedger
from tests.support.ledgers import FakeClock, claimed, make_tasks, success
from tests.support.mongod import with_database


async def test_the_items_of_some_tasks_are_counted_before_a_drop(
    mongodb_uri: str, database_name: str, monkeypatch: pytest.MonkeyPatch
):
    url = with_database(mongodb_uri, database_name)
    ledger = await MongoLedger.open(url, "books", clock=FakeClock())
    try:
        await ledger.tasks.add(make_tasks(3))
        leases = await claimed(ledger)
        await ledger.outcomes.commit([success(ledger, each, {"n": 1}) for each in leases])

        with pytest.raises(UsageError, match=r"Drop 3 tasks and 3 items of books, for good\?"):
            await dropping.drop(ledger, "books", yes=False)
        monkeypatch.setattr(dropping, "_SCAN_LIMIT", 2)
        with pytest.raises(UsageError, match=r"Drop 3 tasks and at least 2 items of books, for"):
            await dropping.drop(ledger, "books", yes=False)
    finally:
        await ledger.close()
