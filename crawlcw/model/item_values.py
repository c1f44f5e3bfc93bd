"""What an item is, and which values it may have: anything else is its spider's mistake, and named.

A node that was not asked for its text would be stored as `<LexborNode h1>`, and the
page would count as a success.
"""

from collections.abc import Iterable, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from pathlib import PurePath
from types import NoneType
from typing import Any
from uuid import UUID

from crawlcw.errors import InvalidItemError
from crawlcw.model import values
from crawlcw.model.sanitize import printable

#: Most values are of these, and need no further look.
_PLAIN = frozenset({str, int, float, bool, NoneType, bytes})
#: Those that are stored as what they are, or whose text says all that they are.
_KNOWN = (
    *(str, bool, int, float, bytes, bytearray, memoryview, date, time, timedelta, Enum),
    *(Decimal, Fraction, complex, PurePath, UUID, IPv4Address, IPv4Interface, IPv4Network),
    *(IPv6Address, IPv6Interface, IPv6Network),
)
#: Packages whose values (URLs, secrets, colours) have a text that is meant to be read.
_READABLE = frozenset({"pydantic", "pydantic_core", "yarl"})
_COLLECTIONS = (list, tuple, set, frozenset)
#: What is left out most often, by the name of the type: no package of these needs to be installed.
_HINTS = {
    "LexborNode": ".text()",
    "LexborHTMLParser": ".text()",
    "Selector": ".get()",
    "SelectorList": ".get() or .getall()",
    "Response": ".url or .text",
    "Request": ".url",
    "Match": ".group()",
    "coroutine": "to await it",
    "generator": "list(...)",
    "map": "list(...)",
    "filter": "list(...)",
    "zip": "list(...)",
    "dict_keys": "list(...)",
    "dict_values": "list(...)",
    "dict_items": "dict(...)",
    "ndarray": ".tolist()",
    "int64": ".item()",
    "builtin_function_or_method": "to call it",
    "method": "to call it",
    "function": "to call it",
}


def cleaned_item(thing: object) -> dict[str, Any]:
    """Return what a spider yielded as a clean dictionary.

    Raises `InvalidItemError` where *thing* is neither a mapping nor a dataclass, an
    attrs or a pydantic object, and for a value of no known kind.
    """
    fields = values.parts(thing)
    if fields is None:
        several = isinstance(thing, Iterable) and not isinstance(thing, str | bytes)
        raise InvalidItemError(
            f"{type(thing).__name__} is not an item: "
            "yield a dict, a dataclass, an attrs or pydantic object, or a Request"
            + (", and what holds several of them by `yield from`" if several else "")
        )
    check(fields)
    cleaned = values.clean(fields)
    assert isinstance(cleaned, dict)
    return cleaned


def is_item(thing: object) -> bool:
    """Return whether *thing* has named parts, as an item must."""
    return values.parts(thing) is not None


def check(fields: Mapping[Any, Any]) -> None:
    """Raise `InvalidItemError` for a value of no known kind, however deep, with its place."""
    for name, value in fields.items():
        if type(value) not in _PLAIN:
            _check(value, printable(name), depth=1)


def _check(value: object, place: str, *, depth: int) -> None:
    kind = type(value)
    if kind in _PLAIN or depth >= values.MAX_DEPTH:
        return
    if isinstance(value, _COLLECTIONS) and kind.__name__ != "SelectorList":
        assert isinstance(value, Iterable)
        for number, each in enumerate(value):
            if type(each) not in _PLAIN:
                _check(each, f"{place}[{number}]", depth=depth + 1)
        return
    if isinstance(value, _KNOWN) or kind.__module__.partition(".")[0] in _READABLE:
        return
    fields = values.parts(value)
    if fields is None:
        raise InvalidItemError(_sentence(kind, place))
    for name, each in fields.items():
        if type(each) not in _PLAIN:
            _check(each, f"{place}.{printable(name)}", depth=depth + 1)


def _sentence(kind: type, place: str) -> str:
    name = kind.__name__
    hint = _HINTS.get(name)
    instead = (
        f"did you mean {hint}?" if hint else "make it text, a number, a date, a list or a dict"
    )
    article = "an" if name[:1] in "aeioAEIO" else "a"
    return f"'{printable(place, limit=80)}' is {article} {printable(name)}: {instead}"
