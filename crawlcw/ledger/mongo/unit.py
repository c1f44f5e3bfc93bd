"""The unit of work in MongoDB: all tables of a ledger."""

from crawlcw.ledger.mongo.blobs import Blobs
from crawlcw.ledger.mongo.groups import Groups
from crawlcw.ledger.mongo.indexes import BY_LEFT, BY_OWNER, BY_READY, LONG_AGO
from crawlcw.ledger.mongo.items import Items
from crawlcw.ledger.mongo.raw import Raw
from crawlcw.ledger.mongo.store import MongoStore
from crawlcw.ledger.mongo.table import Index, Table
from crawlcw.ledger.mongo.task_table import Results, TaskTable
from crawlcw.ledger.port import Path

_IS_READY = {"ready_at": {"$gt": LONG_AGO}}
_OF_HOSTS = {
    Path.READY: Index(BY_READY, [("ready_at", 1)], _IS_READY),
    Path.LAST_READY: Index(BY_READY, [("ready_at", -1)], _IS_READY),
    Path.OWNER: Index(BY_OWNER, [("owner", 1)], {"owner": {"$gt": ""}}),
}
_OF_WORKERS = {Path.LEFT: Index(BY_LEFT, [("left", 1), ("_id", 1)])}


class Unit:
    """The tables of one ledger."""

    def __init__(self, store: MongoStore, items: Items, blobs: Blobs) -> None:
        self.marker = store.marker
        self.state = store.state
        self.sessions = store.sessions
        self.hosts = Table(store.hosts, null=("owner",), indexes=_OF_HOSTS)
        self.workers = Table(store.workers, null=("left",), indexes=_OF_WORKERS)
        self.rates = store.rates
        self.tasks = TaskTable(store, blobs)
        self.groups = Groups(store)
        self.results = Results(store, self.tasks, items)
        self.raw = Raw(store)
