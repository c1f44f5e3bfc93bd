"""The ledger in one SQLite file, for any number of processes on one machine, without a server.

Package `sql` has most operations of this ledger. Several spiders and use cases can share a file,
because the name of a table contains the name of its spider or use case.

The file is in WAL mode, so that readers and the one writer do not wait for each other. A
transaction is fsynced if module `protocol` says that the operation is durable. A claim is not
fsynced, because a claim that is lost in a power cut only causes a second fetch.
"""

from crawlcw.ledger.sqlite.ledger import SqliteLedger

__all__ = ["SqliteLedger"]
