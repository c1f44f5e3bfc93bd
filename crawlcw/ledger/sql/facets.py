"""The facets (groups of operations) that SQLite's and PostgreSQL's ledgers share."""

from crawlcw.ledger import protocol
from crawlcw.ledger.admin import Admin
from crawlcw.ledger.copying import LedgerCopier
from crawlcw.ledger.item_keys import ItemKeys
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.notes import Notes, SpiderStates
from crawlcw.ledger.queries import Groups, Queries
from crawlcw.ledger.sessions import Sessions
from crawlcw.ledger.shielding import run_shielded
from crawlcw.ledger.sql.blobs import Blobs
from crawlcw.ledger.sql.copying import LedgerContents
from crawlcw.ledger.sql.host_leases import SqlHostLeases
from crawlcw.ledger.sql.hosts import SqlHosts
from crawlcw.ledger.sql.leases import Leases
from crawlcw.ledger.sql.outcomes import Outcomes
from crawlcw.ledger.sql.store import SqlStore
from crawlcw.ledger.sql.tasks import Tasks
from crawlcw.ledger.workers import Rates, Workers


class Facets:
    """Base class of SQL ledgers; each subclass adds the attributes `changes` and `inspection`."""

    def __init__(self, store: SqlStore) -> None:
        self.store = store
        self.now = store.now  # faster than a method `now` that calls `store.now`
        self.tasks: protocol.Tasks = Tasks(store)
        self.leases: protocol.Leases = Leases(store)
        self.outcomes: protocol.Outcomes = Outcomes(store)
        self.hosts: protocol.Hosts = SqlHosts(store)
        self.host_leases: protocol.HostLeases = SqlHostLeases(store, self.hosts)
        self.workers = Workers(store, self.hosts)
        self.rates = Rates(store)
        self.groups = Groups(store)
        self.queries = Queries(store)
        self.admin = Admin(store, self.hosts)
        self.notes = Notes(store)
        self.sessions = Sessions(store)
        self.item_keys = ItemKeys(store)
        self.spider_state = SpiderStates(store)
        self.blobs: protocol.Blobs = Blobs(store)
        self.copier = LedgerCopier(store, LedgerContents(store))

    @property
    def kind(self) -> LedgerKind:
        """See `Ledger.kind`."""
        return self.store.kind

    async def close(self) -> None:
        """See `Ledger.close`; a cancelled caller also waits until all connections are closed."""
        # Shield the call, because a cancelled call would leave a connection open. If the server
        # does not answer, a cancelled call would also leave a thread running.
        await run_shielded(self.store.close())
