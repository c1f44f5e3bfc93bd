"""Convert a spider's values to values that every ledger can store.

    Value = None | bool | int (64 bits) | float | str | bytes | datetime | date | Decimal
            | [Value] | {str: Value}

A value that a store cannot hold must not make a whole batch of writes fail. So `clean` converts all
values from a spider before they are batched, and never fails. But `cleaned_item` raises an error
for a value of an unknown type, which is a mistake of the spider. For example, an HTML node without
`.text()` would be stored as `<LexborNode h1>`, and the page would count as a success.
"""

import base64
import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from types import NoneType
from typing import Any, Never

from crawlcw.errors import InvalidItemError
from crawlcw.model.sanitize import printable

#: The maximum nesting of stored values; deeper values become JSON text, because BSON refuses them.
MAX_DEPTH = 50
_INT64 = 1 << 63
#: The types of most values. A value of such a type needs no further check.
_PLAIN_TYPES = frozenset({str, int, float, bool, NoneType, bytes})
#: Types whose values are stored unchanged, or as text without a loss of information.
_STORED_TYPES = (
    str,
    int,
    float,
    complex,
    bytes,
    bytearray,
    memoryview,
    date,
    time,
    timedelta,
    Enum,
)
#: Modules of the standard library whose types convert to text without a loss of information.
_WITH_TEXT = frozenset({"decimal", "fractions", "ipaddress", "pathlib", "uuid"})
#: Packages whose values, such as URLs and colours, are stored as their text.
_READABLE = frozenset({"pydantic", "pydantic_core", "yarl"})
_COLLECTION_TYPES = (list, tuple, set, frozenset)
#: Maps the name of a type that spiders often put in items by mistake to the conversion that the
#: spider forgot. The mapping uses names, because the types' packages may not be installed.
_EXPRESSION_BY_CLASS = {
    "LexborNode": ".text()",
    "LexborHTMLParser": ".text()",
    "Selector": ".get()",
    "SelectorList": ".get() or .getall()",
    "Response": ".url or .text",
    "Request": ".url or a request with save_to",
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


def clean(value: object, *, depth: int = 0) -> Any:
    """Return *value*, converted to a value that every ledger can store and return unchanged.

    - Lone surrogates become U+FFFD.
    - Integers over 64 bits become text.
    - A float or a Decimal that is not finite becomes None.
    - A tuple becomes a list, and a set a sorted list.
    - A datetime is truncated to milliseconds. An aware datetime becomes UTC. A naive datetime stays
      naive, because crawlcw does not know its time zone.
    - An object of another type becomes its text.
    """
    kind = type(value)
    if kind is str:
        return value if value.isascii() else text(value)  # type: ignore[attr-defined,arg-type]  # mypy cannot narrow *value* by `kind`
    if value is None or kind is bool:
        return value
    if kind is int:
        return value if -_INT64 <= value < _INT64 else str_of_int(value)  # type: ignore[operator,arg-type]  # mypy cannot narrow *value* by `kind`
    if kind is float:
        return value if math.isfinite(value) else None  # type: ignore[arg-type]  # mypy cannot narrow *value* by `kind`
    if depth < MAX_DEPTH:
        # Check dict and list before all other types, because most nested values are dicts or lists.
        if kind is dict:
            cleaned = {}
            for k, v in value.items():  # type: ignore[attr-defined]  # mypy cannot narrow *value* by `kind`
                name = k if type(k) is str and k.isascii() else _key(k)
                is_plain = type(v) is str and v.isascii()  # true for most values
                cleaned[name] = v if is_plain else clean(v, depth=depth + 1)
            return cleaned
        if kind is list:
            return [clean(member, depth=depth + 1) for member in value]  # type: ignore[attr-defined]  # mypy cannot narrow *value* by `kind`
    return _clean_other(value, depth)


def text(value: str) -> str:
    """Return *value* without lone surrogates, which no encoding can represent."""
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


def str_of_int(value: int) -> str:
    """Return an integer of more than 64 bits as text, in hex if it has over 4,000 digits."""
    # Python refuses to convert an integer of more than 4,300 digits to decimal text.
    return str(value) if value.bit_length() < 13_000 else hex(value)


def _clean_other(value: object, depth: int) -> Any:
    if isinstance(value, Enum):
        return clean(value.value, depth=depth)
    if isinstance(value, str):
        return text(str(value))
    if isinstance(value, bool | int | float):
        return clean(int(value) if isinstance(value, int) else float(value))
    if isinstance(value, date | time):
        return _clean_time(value)
    if isinstance(value, Decimal):
        return Decimal(value) if value.is_finite() else None
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, ItemFile):
        return value
    fields = parts(value)
    if fields is None and not isinstance(value, list | tuple | set | frozenset):
        return _str(value)
    if depth >= MAX_DEPTH:
        return _as_text(value)
    if fields is not None:
        return {_key(k): clean(v, depth=depth + 1) for k, v in fields.items()}
    assert isinstance(value, Iterable)
    members = [clean(member, depth=depth + 1) for member in value]
    # The order of a set differs between processes.
    return sorted(members, key=repr) if isinstance(value, set | frozenset) else members


def _clean_time(value: date | time) -> Any:
    if isinstance(value, datetime):
        return _moment(value)
    if isinstance(value, date):
        return date(value.year, value.month, value.day)
    return value.isoformat()


def _moment(value: datetime) -> datetime:
    moment = value.replace(tzinfo=UTC if value.tzinfo else None)
    if value.tzinfo:
        # Keep a time unchanged if its conversion to UTC would leave the range of datetime.
        with suppress(OverflowError):
            moment = value.astimezone(UTC)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def _str(value: object) -> str:
    try:
        return text(str_of_int(value) if isinstance(value, int) else str(value))
    except Exception:
        # `__str__` may run any code, and a value must not fail because it has no text.
        return f"<{type(value).__name__}>"


def parts(instance: object) -> Mapping[Any, Any] | None:
    """Return a mapping of the fields of *instance*, or None if *instance* has no named fields."""
    if type(instance) is dict or isinstance(instance, Mapping):
        return instance
    if isinstance(instance, type):
        return None
    if dataclasses.is_dataclass(instance):
        return {f.name: getattr(instance, f.name) for f in dataclasses.fields(instance)}
    # Recognise attrs and pydantic by attributes of the class, because these packages may not be
    # installed.
    attributes = getattr(type(instance), "__attrs_attrs__", None)
    if attributes is not None:
        return {a.name: getattr(instance, a.name) for a in attributes}
    if hasattr(type(instance), "model_fields") and hasattr(instance, "model_dump"):
        dumped: Mapping[Any, Any] = instance.model_dump()
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
    """Return a clean *value* as one line of JSON, with times in ISO 8601 and bytes in base64.

    The text of an aware time ends in `Z`, and the text of a naive time has no suffix. A decimal is
    text, because most programs read a JSON number as a float.
    """
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_json_default)


def _json_default(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if type(value) is Decimal or type(value) is date:
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    raise TypeError(f"{type(value).__name__} is not a clean value")


def size(value: object) -> int:
    """Return the approximate number of bytes that a clean *value* takes in a store."""
    if isinstance(value, str | bytes):
        return len(value) if isinstance(value, bytes) or value.isascii() else len(value.encode())
    if isinstance(value, dict):
        return sum(len(key) + 8 + size(member) for key, member in value.items())
    if isinstance(value, list):
        return sum(8 + size(member) for member in value)
    return 8


class ItemFields(dict[str, Any]):
    """The fields of an item, with the name of the class whose object the spider yielded."""

    __slots__ = ("item_class",)

    def __init__(self, fields: Mapping[str, Any], *, item_class: str) -> None:
        super().__init__(fields)
        self.item_class = item_class


class FileSource:
    """Base class of a request, which an item may contain if the request saves a file."""

    __slots__ = ()

    @property
    def saves_file(self) -> bool:
        """Whether the response of the request is saved as a file."""
        raise NotImplementedError


class ItemFile(dict[str, Any]):
    """The file of a request in an item, as a value of the item.

    The ledger stores only `url`, `reason` and the id of the request's task. A reader of the ledger
    gets the other fields from that task: `path`, `sha256`, `size` in bytes, and `status`. Without a
    task they are None.
    """

    __slots__ = ("task_id",)

    def __init__(self, url: str, *, task_id: bytes | None, reason: str | None = None) -> None:
        """*task_id* is None if the crawl has dropped the request, for *reason*."""
        super().__init__(url=url, path=None, sha256=None, size=None, status=None, reason=reason)
        self.task_id = task_id


def files_of(fields: Mapping[str, Any]) -> Iterator[ItemFile]:
    """Yield the files in the fields of an item that a ledger has returned."""
    if _PLAIN_TYPES.issuperset(map(type, fields.values())):
        return
    stack: list[Any] = list(fields.values())
    while stack:
        value = stack.pop()
        if isinstance(value, ItemFile):
            yield value
        elif isinstance(value, dict):
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)


class InvalidItem:
    """Stands for an item that `Response.extract` could not make, until the callback yields it.

    Any use of the item's fields raises its `InvalidItemError`.
    """

    __slots__ = ("invalid_item_error",)
    invalid_item_error: InvalidItemError

    def __init__(self, error: InvalidItemError) -> None:
        super().__setattr__("invalid_item_error", error)

    def _use(self, *_: object) -> Never:
        raise self.invalid_item_error

    __getattr__ = __setattr__ = __getitem__ = __setitem__ = _use


def cleaned_item(
    item: object, *, file_of: Callable[[Any], ItemFile] | None = None
) -> dict[str, Any]:
    """Return an item of a spider as a clean dictionary, or as `ItemFields` if it has a class.

    *file_of* returns the value for a request in the item that saves a file; if *file_of* is None,
    an item must not contain such a request. Raises `InvalidItemError` if `parts` finds no fields in
    *item*, or if a value has an unknown type.
    """
    fields = item if type(item) is dict else parts(item)
    if fields is None:
        is_iterable = isinstance(item, Iterable) and not isinstance(item, str | bytes)
        raise InvalidItemError(
            f"{type(item).__name__} is not an item: "
            "yield a dict, a dataclass, an attrs or pydantic object, or a Request"
            + ("; use `yield from` for a collection of them" if is_iterable else "")
        )
    sources: list[FileSource] = []
    check(fields, None if file_of is None else sources)
    if sources and file_of is not None:
        files = {id(source): file_of(source) for source in sources}
        cleaned = clean(_with_files(fields, files))
    else:
        cleaned = clean(fields)
    assert isinstance(cleaned, dict)
    if fields is not item:
        return ItemFields(cleaned, item_class=text(type(item).__name__))
    if isinstance(item, ItemFields):
        return ItemFields(cleaned, item_class=text(item.item_class))
    return cleaned


def _with_files(value: Any, files: Mapping[int, ItemFile], *, depth: int = 0) -> Any:
    """Return a copy of *value*, with files in place of the requests with these ids."""
    if isinstance(value, FileSource) or depth > MAX_DEPTH:
        return files.get(id(value), value)
    if isinstance(value, _COLLECTION_TYPES):
        members = [_with_files(member, files, depth=depth + 1) for member in value]
        return sorted(members, key=repr) if isinstance(value, set | frozenset) else members
    if (fields := parts(value)) is None:
        return value
    return {name: _with_files(field, files, depth=depth + 1) for name, field in fields.items()}


def is_item(thing: object) -> bool:
    """Return whether *thing* has named fields, so that it can be an item."""
    return parts(thing) is not None


def check(fields: Mapping[Any, Any], sources: list[FileSource] | None = None) -> None:
    """Raise `InvalidItemError` for a value of an unknown type; the error shows the value's path.

    If *sources* is a list, requests that save files are valid values, and are added to the list.
    """
    for name, value in fields.items():
        if type(value) not in _PLAIN_TYPES:
            _check(value, printable(name), sources, depth=1)


def _check(value: object, path: str, sources: list[FileSource] | None, *, depth: int) -> None:
    kind = type(value)
    if kind in _PLAIN_TYPES or depth >= MAX_DEPTH:
        return None
    if isinstance(value, _COLLECTION_TYPES) and kind.__name__ != "SelectorList":
        assert isinstance(value, Iterable)
        for number, member in enumerate(value):
            if type(member) not in _PLAIN_TYPES:
                _check(member, f"{path}[{number}]", sources, depth=depth + 1)
        return None
    if isinstance(value, _STORED_TYPES) or _module(kind) in _READABLE:
        return None
    if any(_module(base) in _WITH_TEXT for base in kind.__mro__):
        return None
    if sources is not None and isinstance(value, FileSource) and value.saves_file:
        return sources.append(value)
    fields = parts(value)
    if fields is None:
        raise InvalidItemError(_sentence(kind, path))
    for name, member in fields.items():
        if type(member) not in _PLAIN_TYPES:
            _check(member, f"{path}.{printable(name)}", sources, depth=depth + 1)
    return None


def _module(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _sentence(kind: type, path: str) -> str:
    name = kind.__name__
    hint = _EXPRESSION_BY_CLASS.get(name)
    advice = f"did you mean {hint}?" if hint else "make it text, a number, a date, a list or a dict"
    article = "an" if name[:1] in "aeioAEIO" else "a"
    return f"'{printable(path, limit=80)}' is {article} {printable(name)}: {advice}"


def frozen(value: Any) -> Any:
    """Return a copy of a clean value, with read-only lists and dictionaries at every depth."""
    if isinstance(value, _Frozen):
        return value
    if isinstance(value, dict):
        return FrozenDict({key: frozen(member) for key, member in value.items()})
    if isinstance(value, list):
        return FrozenList(frozen(member) for member in value)
    return value


def thawed(value: Any) -> Any:
    """Return a copy of *value* with lists and dictionaries that can be changed."""
    if isinstance(value, dict):
        return {key: thawed(member) for key, member in value.items()}
    if isinstance(value, list):
        return [thawed(member) for member in value]
    return value


def _refuse(self: object, *_: object, **__: object) -> Never:
    kind = "list" if isinstance(self, list) else "dict"
    raise TypeError(f"this {kind} is read-only: change a copy, {kind}(...), and assign that")


class _Frozen:
    """Base of the types of read-only lists and dictionaries; a copy of an object is writable."""

    __setitem__ = __delitem__ = clear = pop = _refuse

    def __copy__(self) -> Any:
        return self.copy()  # type: ignore[attr-defined]  # list and dict have `copy`

    def __deepcopy__(self, _: object) -> Any:
        return thawed(self)

    def __reduce_ex__(self, _: object) -> Any:
        return type(self), (self.copy(),)  # type: ignore[attr-defined]  # list and dict have `copy`


class FrozenList(_Frozen, list[Any]):
    """A read-only list, for which `+=` makes a new list."""

    append = extend = insert = remove = reverse = sort = __imul__ = _refuse

    def __iadd__(self, other: Any) -> Any:  # type: ignore[misc]  # the result is a plain list
        return [*self, *other]


class FrozenDict(_Frozen, dict[str, Any]):
    """A read-only dictionary, for which `|=` makes a new dictionary."""

    popitem = setdefault = update = _refuse

    def __ior__(self, other: Any) -> Any:  # type: ignore[misc]  # the result is a plain dict
        return dict(self) | dict(other)
