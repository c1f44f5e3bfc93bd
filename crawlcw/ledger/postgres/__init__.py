"""The ledger in a PostgreSQL database, which any number of machines share.

Its facets are those of `sql`. Each spider or use case has a schema of its own. A claim is not
synced to the disk (`synchronous_commit`), for one that is lost in a crash is a repeated fetch.
"""

from crawlcw.errors import LedgerConfigurationError

try:
    from crawlcw.ledger.postgres.ledger import PostgresLedger
except ModuleNotFoundError as error:
    if error.name != "psycopg":
        raise
    raise LedgerConfigurationError(
        "a ledger on PostgreSQL needs psycopg: install it with `pip install 'crawlcw[postgres]'`"
    ) from error

__all__ = ["PostgresLedger"]
