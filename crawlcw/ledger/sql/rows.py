"""Convert documents to rows and back; times become milliseconds, and nested values become JSON."""

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from crawlcw.errors import LedgerError
from crawlcw.ledger import documents

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
INT64 = 1 << 63
#: Maximum size of a value in bytes; SQLite's limit for a whole row is 10**9 bytes.
_LARGEST_VALUE = 1 << 28
_UNCHECKED_SIZE = 1 << 20

TIMES = frozenset(
    {
        "due",
        "revisit",
        "update_time",
        "create_time",
        "lock_time",
        "ready_at",
        "not_before",
        "started",
        "minute",
        "time",
        "heartbeat",
        "left_at",
        "expires",
    }
)
_JSON_COLUMNS = frozenset(
    {
        *("headers", "context", "options", "errors", "response", "visit", "stored"),
        *("data", "results", "trace"),
        *("robots", "origins", "counters", "vitals", "loan", "report"),
        *("state", "control", "policy"),
    }
)
#: Columns whose values are always small numbers, so that `row_of` need not check them.
_SMALL_NUMBER_COLUMNS = frozenset(
    {"status", "fence", "settled", "retry", "lost", "quarantine_fence"}
)

#: Errors of a value that a row cannot hold.
UNSTORABLE_ERRORS = (ValueError, TypeError, OverflowError, RecursionError)


def row_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row, with each field of a document converted to a value of its column.

    Raises one of `UNSTORABLE_ERRORS` for a value that no column can hold.
    """
    row = dict(document)
    converters, plain_names = _kinds(tuple(document))
    for name, convert in converters:
        if (value := row[name]) is not None:
            row[name] = convert(value)
    for name in plain_names:
        value = row[name]
        # Check the size only of the few values that are not short ASCII texts or small numbers.
        if type(value) is str:
            if len(value) > _UNCHECKED_SIZE or not value.isascii():
                _check_size(value)
        elif type(value) is bytes:
            if len(value) > _LARGEST_VALUE:
                _check_size(value)
        elif type(value) is int and not -INT64 <= value < INT64:
            raise ValueError(f"{name} is not an integer of 64 bits")
    if "_id" in row:
        row["id"] = row.pop("_id")
    return row


def column_value(name: str, value: Any) -> Any:
    """Convert a field's value to a value of its column; raise the same errors as `row_of`."""
    (stored_value,) = row_of({name: value}).values()
    return stored_value


@lru_cache(maxsize=256)  # cached, because most documents have the same fields
def _kinds(
    names: tuple[str, ...],
) -> tuple[list[tuple[str, Callable[[Any], Any]]], list[str]]:
    """Return the fields that need a conversion, and the fields whose size must be checked."""
    converted = [(name, _TO_COLUMN[name]) for name in names if name in _TO_COLUMN]
    return converted, [
        name for name in names if name not in _TO_COLUMN and name not in _SMALL_NUMBER_COLUMNS
    ]


def _check_size(value: str | bytes) -> None:
    # Encode only text that is not ASCII, because the size of ASCII text is its length.
    is_exact = isinstance(value, bytes) or value.isascii()
    size = len(value) if is_exact else len(value.encode())  # type: ignore[union-attr]  # not bytes
    if size > _LARGEST_VALUE:
        raise ValueError(f"a value of {size} bytes, but at most {_LARGEST_VALUE} are allowed")


def describe_unholdable(error: Exception) -> str:
    """Return the text of an error that says why a row cannot hold a value."""
    return str(error) or type(error).__name__


@contextmanager
def refusing() -> Iterator[None]:
    """Raise `LedgerError` if the `with` block encodes a value that a row cannot hold."""
    try:
        yield
    except UNSTORABLE_ERRORS as error:
        raise LedgerError(f"The ledger cannot store it: {describe_unholdable(error)}.") from error


def document_of(row: Any) -> documents.Document:
    """Return the document that a row stores."""
    (document,) = documents_of(tuple(row.keys()), [tuple(dict(row).values())])
    return document


def documents_of(
    columns: tuple[str, ...], rows: Iterable[Iterable[Any]]
) -> list[documents.Document]:
    """Return a document for each row; a row's values are in the order of *columns*."""
    names, converted = _fields(columns)
    document_list: list[documents.Document] = []
    for row in rows:
        document = dict(zip(names, row, strict=True))
        for name, convert in converted:
            if (value := document[name]) is not None:
                document[name] = convert(value)
        document_list.append(document)
    return document_list


@lru_cache(maxsize=256)
def _fields(
    columns: tuple[str, ...],
) -> tuple[list[str], list[tuple[str, Callable[[Any], Any]]]]:
    """Return the fields that are stored in *columns*, and the fields that need a conversion."""
    names = ["_id" if name == "id" else name for name in columns]
    return names, [(name, _FROM_COLUMN[name]) for name in names if name in _FROM_COLUMN]


@lru_cache(maxsize=1024)  # cached, because tasks that are added together have the same times
def milliseconds(moment: datetime) -> int:
    """Return a time as milliseconds since 1970, the value of its column."""
    return (moment - EPOCH) // _MILLISECOND


@lru_cache(maxsize=1024)  # cached, because the links of a page get the same times
def moment(milliseconds: int) -> datetime:
    """Return the time that a column stores as milliseconds since 1970."""
    return EPOCH + milliseconds * _MILLISECOND


def to_json(value: Any) -> str:
    """Return a value as JSON; bytes and datetimes become objects with a key that begins with `$`.

    No crawled key begins with `$`, because `documents.escaped` escapes all crawled keys.
    """
    text = _ENCODER.encode(value)
    if len(text) > _LARGEST_VALUE or not text.isascii():
        _check_size(text)
    return text


def _tagged(value: object) -> dict[str, Any]:
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, datetime):
        return {"$date": milliseconds(value)}
    raise TypeError(f"{type(value).__name__} is not a clean value")


def from_json(text: str) -> Any:
    """Return the value that `to_json` encoded."""
    return (_TAGGED_DECODER if '"$' in text else _DECODER).decode(text)


def _untagged(value: dict[str, Any]) -> Any:
    if "$bytes" in value:
        return base64.b64decode(value["$bytes"])
    if "$date" in value:
        return moment(value["$date"])
    return value


# Create the encoder once, because its creation takes longer than the encoding of most values.
_ENCODER = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_tagged
)
_DECODER = json.JSONDecoder()
_TAGGED_DECODER = json.JSONDecoder(object_hook=_untagged)

#: Functions that convert a field to the value of its column, and back.
_TO_COLUMN: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(TIMES, milliseconds),
    **dict.fromkeys(_JSON_COLUMNS, to_json),
}
_FROM_COLUMN: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(TIMES, moment),
    **dict.fromkeys(_JSON_COLUMNS, from_json),
}
