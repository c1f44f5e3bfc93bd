"""Take an item of a Scrapy project apart, and make it again without a call of its constructor.

Scrapy's items, and the items of dataclasses, attrs and pydantic, differ only in their attributes.
"""

import functools
from collections.abc import Mapping
from enum import Enum
from types import MemberDescriptorType, NoneType
from typing import Any

import scrapy
from itemadapter import ItemAdapter
from scrapy.utils.serialize import ScrapyJSONEncoder

from crawlcw.model import values
from crawlcw.scrapy import functions

_PLAIN_TYPES = frozenset({str, int, float, bool, bytes, NoneType})
_JSON = ScrapyJSONEncoder()
#: Classes of plugins whose objects stand in `meta` and have plain attributes, as items do.
_VALUE_CLASSES = frozenset({"scrapy_playwright.page:PageMethod"})


def item_class(name: str) -> type | None:
    """Return the class of items with this `class_name`, if its module is imported."""
    kind: Any = functions.named(name)
    return kind if _is_item_class(kind) or name in _VALUE_CLASSES else None


def item_values(item: Any) -> dict[str, Any]:
    """Return the fields of an item with the values that Scrapy's JSON exporter would write."""
    fields: dict[str, Any] = _item_value(item, 0)
    return fields


def item_of(kind: type, fields: Mapping[str, Any]) -> Any:
    """Return an item of the class *kind* with *fields*, without a call of its constructor."""
    return item_with(kind, {"_values": fields} if issubclass(kind, scrapy.Item) else fields)


def state_of(instance: object) -> dict[str, Any]:
    """Return all attributes that *instance* itself has, in slots and in its `__dict__`."""
    kind: Any = type(instance)
    state = {name: getattr(instance, name) for name in _slots(kind) if hasattr(instance, name)}
    return state | getattr(instance, "__dict__", {})


@functools.lru_cache(maxsize=1024)
def _slots(kind: Any) -> tuple[str, ...]:
    members = (member for base in kind.__mro__ for member in vars(base).items())
    slots = (name for name, member in members if isinstance(member, MemberDescriptorType))
    return tuple(name for name in slots if not name.startswith("__"))


def set_state(instance: object, state: Mapping[str, Any]) -> None:
    """Give *instance* the attributes that `state_of` has returned.

    Raises `ValueError` for a name that begins with two underscores.
    """
    for name, value in state.items():
        if name.startswith("__"):
            raise ValueError(f"{name} is not a field")
        object.__setattr__(instance, name, value)


def item_with(kind: Any, state: Mapping[str, Any]) -> Any:
    """Return an item of the class *kind* with the attributes that `state_of` has returned."""
    if hasattr(kind, "model_construct"):  # a pydantic model has also other state
        return kind.model_construct(**state)
    item = scrapy.Item.__new__(kind) if issubclass(kind, scrapy.Item) else object.__new__(kind)
    set_state(item, state)
    return item


@functools.lru_cache(maxsize=1024)
def _is_item_class(kind: Any) -> bool:
    return isinstance(kind, type) and ItemAdapter.is_item_class(kind)


def _item_value(value: Any, depth: int) -> Any:
    kind: Any = type(value)
    if kind in _PLAIN_TYPES or depth > values.MAX_DEPTH or isinstance(value, Enum):
        return value
    if isinstance(value, Mapping) or _is_item_class(kind):
        fields = value if isinstance(value, Mapping) else ItemAdapter(value)
        return {str(name): _item_value(member, depth + 1) for name, member in fields.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_item_value(member, depth + 1) for member in value]
    if isinstance(value, str | int | float | bytes):
        return value
    try:
        return _JSON.default(value)
    except TypeError:
        return str(value)
