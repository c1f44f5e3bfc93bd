"""The ledger in a PostgreSQL database, which any number of machines share.

It has the facets of `sql`. Each spider or use case has a separate schema. A claim is not synced
to the disk (`synchronous_commit`), because a claim that a crash loses only repeats a fetch.
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
