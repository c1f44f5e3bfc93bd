"""The ledger on MongoDB, for any number of processes and machines.

A spider has a collection of its name, and beside it `<spider>.hosts`, `<spider>.workers`,
`<spider>.items` (items that do not fit into their task's document) and other collections, see
`MongoStore.parts`. This package uses only features that Motor and PyMongo's own `AsyncMongoClient`
share. No module outside of this package knows the drivers.

All updates use classic update operators, because in an update *pipeline* the server would evaluate
a crawled text that begins with `$`.
"""

from crawlcw.ledger.mongo.inspection import OLDEST_SERVER
from crawlcw.ledger.mongo.ledger import MongoLedger

__all__ = ["OLDEST_SERVER", "MongoLedger"]
