"""The unit of work: all tables of a ledger on one connection."""

from crawlcw.ledger.port import RATE_KEY, Path, Unit
from crawlcw.ledger.sql.database import Database
from crawlcw.ledger.sql.groups import Groups
from crawlcw.ledger.sql.raw import Raw
from crawlcw.ledger.sql.statements import Statements
from crawlcw.ledger.sql.table import Index, Table
from crawlcw.ledger.sql.task_table import Results, TaskTable


def unit_on(db: Database, sql: Statements) -> Unit:
    """Return the tables of one ledger on one connection."""
    tables, dialect = sql.tables, sql.tables.dialect
    ready, is_ready = f"INDEXED BY {tables.ready}", "AND ready_at IS NOT NULL"
    owned, is_owned = f"INDEXED BY {tables.owned}", "AND owner IS NOT NULL"
    of_hosts = {
        Path.READY: Index(ready, "ready_at", is_ready),
        Path.LAST_READY: Index(ready, "ready_at DESC", is_ready),
        Path.OWNER: Index(owned, "owner", is_owned),
    }
    left = Index(f"INDEXED BY {tables.left}", '"left", id')
    columns = ("_id", "fence", "owner", "expires")
    return Unit(
        marker=Table(db, tables.marker, dialect, key=("spider",)),
        state=Table(db, tables.state, dialect, columns=("_id", "revision")),
        hosts=Table(db, tables.hosts, dialect, indexes=of_hosts),
        workers=Table(db, tables.workers, dialect, indexes={Path.LEFT: left}),
        sessions=Table(db, tables.sessions, dialect, columns=columns),
        rates=Table(db, tables.rates, dialect, key=RATE_KEY, durable=False),
        tasks=TaskTable(db, sql),
        groups=Groups(db, sql),
        results=Results(db, sql),
        raw=Raw(db, sql),
    )
