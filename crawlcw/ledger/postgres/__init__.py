"""The ledger in a PostgreSQL database; any number of machines can share the database.

Package `sql` has the code that all SQL ledgers share. Each spider or use case has a separate
schema. The write of a claim does not wait for the disk, because a lost claim only repeats a fetch.
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
