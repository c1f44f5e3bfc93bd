"""Values that MongoDB cannot hold: those without a BSON type, and documents that are too large."""

import bson
from bson.errors import BSONError
from pymongo.errors import DocumentTooLarge

from crawlcw.ledger import documents

LARGEST_ITEM = 15 << 20
#: BSONObjectTooLarge: the server's error for a document that the driver let pass.
TOO_LARGE = 10334
#: What raises when a value cannot be encoded: bson's errors, and Python's own.
UNENCODABLE = (BSONError, DocumentTooLarge, OverflowError, UnicodeError, ValueError, TypeError)


def encoding_error(document: documents.Document) -> str | None:
    """Return why a document cannot be stored, or None where it can."""
    try:
        size = len(bson.encode(document))
    except UNENCODABLE as error:
        return str(error) or type(error).__name__
    return f"a document of {size} bytes, too large" if size > LARGEST_ITEM else None
