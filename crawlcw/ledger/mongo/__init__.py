"""The ledger on MongoDB, for any number of processes and machines.

The tasks of a spider are in the collection `<spider>`. The spider also has collections such as
`<spider>.hosts` and `<spider>.items` (large items); `MongoStore.parts` has all of them. This
package uses only features that both Motor and PyMongo's own `AsyncMongoClient` have. No module
outside of this package knows the drivers.

All updates use classic update operators, because in an update *pipeline* the server would evaluate
a crawled text that begins with `$`.
"""

from crawlcw.ledger.mongo.inspection import OLDEST_SERVER
from crawlcw.ledger.mongo.ledger import MongoLedger

__all__ = ["OLDEST_SERVER", "MongoLedger"]
