"""The ledger in one SQLite file: for one machine, any number of processes, no server.

`transitions` decides each change of a task; these modules write it. Several spiders and use cases
share a file: their tables have their names.

The file is in WAL mode, so that readers and the one writer do not wait for each other. A
transaction is fsynced if the contract says durable. A claim is not fsynced, because a claim that a
power cut loses only repeats a fetch.
"""

from crawlcw.ledger.sqlite.ledger import SqliteLedger

__all__ = ["SqliteLedger"]
