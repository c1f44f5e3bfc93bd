"""The unit of work in MongoDB: all tables of a ledger."""

from crawlcw.ledger.mongo.blobs import Blobs
from crawlcw.ledger.mongo.groups import Groups
from crawlcw.ledger.mongo.indexes import BY_LEFT, BY_OWNER, BY_READY, LONG_AGO
from crawlcw.ledger.mongo.items import Items
from crawlcw.ledger.mongo.raw import Raw
from crawlcw.ledger.mongo.store import MongoStore
from crawlcw.ledger.mongo.table import Index, Table
from crawlcw.ledger.mongo.task_table import Results, TaskTable
from crawlcw.ledger.port import Path, Unit

_IS_READY = {"ready_at": {"$gt": LONG_AGO}}
_OF_HOSTS = {
    Path.READY: Index(BY_READY, [("ready_at", 1)], _IS_READY),
    Path.LAST_READY: Index(BY_READY, [("ready_at", -1)], _IS_READY),
    Path.OWNER: Index(BY_OWNER, [("owner", 1)], {"owner": {"$gt": ""}}),
}
_OF_WORKERS = {Path.LEFT: Index(BY_LEFT, [("left", 1), ("_id", 1)])}


def unit_on(store: MongoStore, items: Items, blobs: Blobs) -> Unit:
    """Return the tables of one ledger."""
    tasks = TaskTable(store, blobs)
    return Unit(
        marker=store.marker,
        state=store.state,
        hosts=Table(store.hosts, null=("owner",), indexes=_OF_HOSTS),
        workers=Table(store.workers, null=("left",), indexes=_OF_WORKERS),
        sessions=store.sessions,
        rates=store.rates,
        tasks=tasks,
        groups=Groups(store),
        results=Results(store, tasks, items),
        raw=Raw(store),
    )
