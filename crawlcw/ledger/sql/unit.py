"""The unit of work: all tables of a ledger on one connection."""

from crawlcw.ledger.port import RATE_KEY, Path
from crawlcw.ledger.sql.database import Database
from crawlcw.ledger.sql.groups import Groups
from crawlcw.ledger.sql.raw import Raw
from crawlcw.ledger.sql.state_table import StateTable
from crawlcw.ledger.sql.statements import Statements
from crawlcw.ledger.sql.table import Index, Table
from crawlcw.ledger.sql.task_table import Results, TaskTable


class Unit:
    """The tables of one ledger on one connection."""

    def __init__(self, db: Database, sql: Statements) -> None:
        tables, dialect = sql.tables, sql.tables.dialect
        self.marker = Table(db, tables.marker, dialect, key=("spider",))
        self.rates = Table(db, tables.rates, dialect, key=RATE_KEY, durable=False)
        self.state = StateTable(db, tables.state, dialect)
        self.sessions = Table(
            db, tables.sessions, dialect, columns=("_id", "fence", "owner", "expires")
        )
        ready, is_ready = f"INDEXED BY {tables.ready}", "AND ready_at IS NOT NULL"
        owned, is_owned = f"INDEXED BY {tables.owned}", "AND owner IS NOT NULL"
        of_hosts = {
            Path.READY: Index(ready, "ready_at", is_ready),
            Path.LAST_READY: Index(ready, "ready_at DESC", is_ready),
            Path.OWNER: Index(owned, "owner", is_owned),
        }
        self.hosts = Table(db, tables.hosts, dialect, indexes=of_hosts)
        left = Index(f"INDEXED BY {tables.left}", '"left", id')
        self.workers = Table(db, tables.workers, dialect, indexes={Path.LEFT: left})
        self.tasks = TaskTable(db, sql)
        self.groups = Groups(db, sql)
        self.results = Results(db, sql)
        self.raw = Raw(db, sql)
