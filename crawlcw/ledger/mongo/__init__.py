"""The ledger on MongoDB, for any number of processes and machines.

One collection for each spider, named after it, plus `<spider>.hosts`,
`<spider>.workers` and `<spider>.items` (only items over 1 MiB). Written against what Motor and
PyMongo's own `AsyncMongoClient` share; only the modules here know them.

Only classic update operators are used: in an update *pipeline* a crawled text
that begins with `$` would be evaluated by the server.
"""

from crawlcw.ledger.mongo.inspection import OLDEST_SERVER
from crawlcw.ledger.mongo.ledger import MongoLedger

__all__ = ["OLDEST_SERVER", "MongoLedger"]
