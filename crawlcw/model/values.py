"""Which values the ledger holds, and how anything a spider hands over becomes one.

    Value = None | bool | int (64 bits) | float | str | bytes | datetime | [Value] | {str: Value}

One value that a store cannot hold must not take a batch of others with it, so
everything a spider yields or passes along goes through `clean` before it is
batched. `clean` never fails on data; what an item may not have is for `item_values` to say.
"""

import base64
import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any

#: BSON refuses documents nested much deeper than this; below it a value is kept as JSON text.
MAX_DEPTH = 50
_INT64 = 1 << 63


def clean(value: object, *, depth: int = 0) -> Any:
    """Return *value* as something every ledger can hold and give back.

    Lone surrogates become U+FFFD, integers over 64 bits text, a float that is
    not finite None, a set or tuple a list, a datetime one with milliseconds, and
    any other object its text. An aware datetime becomes one in UTC; a naive one
    stays naive, for only its site knows the zone.
    """
    kind = type(value)
    if kind is str:
        return value if value.isascii() else text(value)  # type: ignore[attr-defined,arg-type]  # narrowed by `kind`, which mypy does not follow
    if value is None or kind is bool:
        return value
    if kind is int:
        return value if -_INT64 <= value < _INT64 else str_of_int(value)  # type: ignore[operator,arg-type]  # as above
    if kind is float:
        return value if math.isfinite(value) else None  # type: ignore[arg-type]  # as above
    # Most of what is nested, told without a look at all that it might be.
    if depth < MAX_DEPTH:
        if kind is dict:
            return {
                k if type(k) is str and k.isascii() else _key(k): clean(v, depth=depth + 1)
                for k, v in value.items()  # type: ignore[attr-defined]  # as above
            }
        if kind is list:
            return [clean(each, depth=depth + 1) for each in value]  # type: ignore[attr-defined]  # as above
    return _clean_other(value, depth)


def text(value: str) -> str:
    """Return *value* without lone surrogates, which no encoding can carry."""
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


def str_of_int(value: int) -> str:
    """Return an integer that has no room in 64 bits as text; one over 4,000 digits in hex."""
    # int -> str is quadratic and refused by Python above 4,300 digits.
    return str(value) if value.bit_length() < 13_000 else hex(value)


def _clean_other(value: object, depth: int) -> Any:
    if isinstance(value, Enum):
        return clean(value.value, depth=depth)
    if isinstance(value, str):
        return text(str(value))
    if isinstance(value, bool | int | float):
        return clean(int(value) if isinstance(value, int) else float(value))
    if isinstance(value, datetime):
        return _moment(value)
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, Decimal):
        return str(value)
    fields = parts(value)
    if fields is None and not isinstance(value, list | tuple | set | frozenset):
        return _str(value)
    if depth >= MAX_DEPTH:
        return _as_text(value)
    if fields is not None:
        return {_key(k): clean(v, depth=depth + 1) for k, v in fields.items()}
    assert isinstance(value, Iterable)
    return [clean(each, depth=depth + 1) for each in value]


def _moment(value: datetime) -> datetime:
    moment = value.replace(tzinfo=UTC if value.tzinfo else None)
    if value.tzinfo:
        # One in the first or last hours that a datetime can say stays as it stands.
        with suppress(OverflowError):
            moment = value.astimezone(UTC)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def _str(value: object) -> str:
    try:
        return text(str_of_int(value) if isinstance(value, int) else str(value))
    except Exception:
        # Any code may be behind `__str__`, and a value must not fail for having no text.
        return f"<{type(value).__name__}>"


def parts(thing: object) -> Mapping[Any, Any] | None:
    """Return the named parts of a mapping, dataclass, attrs or pydantic object, or None."""
    if type(thing) is dict or isinstance(thing, Mapping):
        return thing
    if isinstance(thing, type):
        return None
    if dataclasses.is_dataclass(thing):
        return {f.name: getattr(thing, f.name) for f in dataclasses.fields(thing)}
    # attrs and pydantic are recognised by what they leave on the class, so that
    # neither has to be installed.
    attributes = getattr(type(thing), "__attrs_attrs__", None)
    if attributes is not None:
        return {a.name: getattr(thing, a.name) for a in attributes}
    if hasattr(type(thing), "model_fields") and hasattr(thing, "model_dump"):
        dumped: Mapping[Any, Any] = thing.model_dump()
        return dumped
    return None


def _key(key: object) -> str:
    return text(key) if isinstance(key, str) else _str(key)


def _as_text(value: object) -> str:
    try:
        return text(json.dumps(value, default=str, ensure_ascii=True))
    except (RecursionError, ValueError, TypeError):
        return "[nested too deeply]"


def to_json(value: object) -> str:
    """Return a clean *value* as one line of JSON: times as ISO 8601, bytes as base64.

    A time with a zone ends in `Z`, one without has no zone.
    """
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_json_default)


def _json_default(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    raise TypeError(f"{type(value).__name__} is not a clean value")


def size(value: object) -> int:
    """Return about how many bytes a clean *value* takes in a store."""
    if isinstance(value, str | bytes):
        return len(value) if isinstance(value, bytes) or value.isascii() else len(value.encode())
    if isinstance(value, dict):
        return sum(len(key) + 8 + size(each) for key, each in value.items())
    if isinstance(value, list):
        return sum(8 + size(each) for each in value)
    return 8
