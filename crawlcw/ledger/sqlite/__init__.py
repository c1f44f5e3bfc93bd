"""The ledger in one SQLite file: for one machine, any number of processes, no server.

`transitions` decides each change of a task; these modules write it. Several
spiders and use cases share a file: their tables bear their names.

The file is in WAL mode, so that readers and the one writer do not wait for each
other. A transaction is fsynced where the contract says durable; a claim is not,
because a claim that is lost in a power cut is a repeated fetch.
"""

from crawlcw.ledger.sqlite.ledger import SqliteLedger

__all__ = ["SqliteLedger"]
