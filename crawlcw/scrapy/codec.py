"""Store a Scrapy request in the context of a task, and make the request from it again.

A context has plain values only, see `model.values`. Any other value is a dictionary with one key,
a tag such as `@tuple`. Nothing is pickled. `decoded` never imports a module, and fills the fields
of items and requests without their constructors.
"""

import functools
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from operator import attrgetter
from types import MemberDescriptorType, NoneType
from typing import Any

import scrapy
from itemadapter import ItemAdapter
from scrapy.http import Headers
from scrapy.utils.serialize import ScrapyJSONEncoder

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.errors import SpiderError
from crawlcw.model import urls, values
from crawlcw.scrapy import functions
from crawlcw.scrapy.functions import Unstorable as Unstorable

#: The maximum nesting of encoded values; a tag adds up to four levels to it.
MAX_DEPTH = values.MAX_DEPTH - 5
#: The maximum size of a context in bytes; MongoDB refuses documents of 16 MiB.
MAX_SIZE = 8 << 20
_INT64 = 1 << 63
_PLAIN_TYPES = frozenset({str, int, float, bool, bytes, NoneType})
#: How to write a value of each type, and the tag of the written value.
_WRITERS: Mapping[type, tuple[str, Callable[[Any], Any]]] = {
    datetime: ("@datetime", datetime.isoformat),
    date: ("@date", date.isoformat),
    time: ("@time", time.isoformat),
    timedelta: ("@timedelta", lambda delta: [delta.days, delta.seconds, delta.microseconds]),
    Decimal: ("@decimal", str),
    range: ("@range", lambda numbers: [str(numbers.start), str(numbers.stop), str(numbers.step)]),
    Headers: ("@headers", lambda headers: _header_pairs(headers)),
}
#: How to read the written value of each tag.
_READERS: Mapping[str, Callable[[Any], Any]] = {
    "@int": lambda digits: int(digits, 16),
    "@float": float,
    "@text": lambda raw: raw.decode("utf-8", "surrogatepass"),
    "@datetime": datetime.fromisoformat,
    "@date": date.fromisoformat,
    "@time": time.fromisoformat,
    "@timedelta": lambda parts: timedelta(*parts),
    "@decimal": Decimal,
    "@range": lambda parts: range(*map(int, parts)),
    "@headers": lambda pairs: Headers(_header_values(pairs)),
}
_COLLECTION_TAGS: Mapping[type, str] = {tuple: "@tuple", set: "@set", frozenset: "@frozenset"}
_COLLECTIONS: Mapping[str, Callable[[Any], Any]] = {
    tag: kind for kind, tag in _COLLECTION_TAGS.items()
}
#: The parts of a request that are stored under their own names, if they are not empty.
_PARTS = ("meta", "cb_kwargs", "flags", "cookies", "headers", "priority", "dont_filter")
#: Get these parts without making empty ones. Scrapy 2.14 has fewer private names than later ones.
_parts = attrgetter(
    *(
        f"_{name}" if hasattr(scrapy.Request, f"_{name}") or name in {"meta", "cb_kwargs"} else name
        for name in _PARTS
    )
)
_INVALID = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def context_of(request: scrapy.Request, spider: scrapy.Spider) -> dict[str, Any]:
    """Return all of *request* but its method and its body, as the context of a task.

    Raises `Unstorable`; then the request must be done while the crawl parses its parent's page.
    """
    context: dict[str, Any] = {}
    location = urls.located(request.url)
    if isinstance(location, urls.Refusal) or location.url != request.url:
        context["url"] = request.url
    for name, function in (("cb", request.callback), ("eb", request.errback)):
        if function is not None:
            method = functions.method_name(function, spider)
            context[name] = method or _encode(function, spider, 1)
    for name, value in zip(_PARTS, _parts(request), strict=True):
        if value:
            try:
                context[name] = _encode(value, spider, 1)
            except Unstorable as error:
                raise Unstorable(f"{error} in {name}") from None
    if request.encoding != "utf-8":
        context["encoding"] = request.encoding
    if type(request) is not scrapy.Request:
        name = context["class"] = class_name(type(request))
        if functions.named(name) is not type(request):
            raise Unstorable(f"a request of the class {name}, which no module defines")
        state = _state(request)
        fields = {field: state[field] for field in state.keys() - _REQUEST_FIELDS}
        context["state"] = _encode(fields, spider, 1)
    if context and values.size(context) > MAX_SIZE:
        raise Unstorable(f"values of more than {MAX_SIZE >> 20} MiB")
    return context


def request_of(request: Request, spider: scrapy.Spider) -> scrapy.Request:
    """Return the Scrapy request that the task of *request* stores.

    Raises `SpiderError` if the project has changed, so that it lacks a part of the request.
    """
    context: Any = request.context or {}
    parts = {name: decoded(context[name], spider) for name in _PARTS if name in context}
    try:
        kind = functions.named(context["class"]) if "class" in context else scrapy.Request
        if not isinstance(kind, type) or not issubclass(kind, scrapy.Request):
            raise TypeError(f"{context['class']} is not a class of requests")
        scrapy_request = scrapy.Request.__new__(kind)
        if "state" in context:
            _set_state(scrapy_request, _decode(context["state"], spider))
        # The constructor of a subclass may take other arguments; its results are in the state.
        scrapy.Request.__init__(
            scrapy_request,
            context.get("url") or request.url,
            method=request.method,
            body=request.body or b"",
            callback=_stored_callback(context.get("cb"), spider),
            errback=_stored_callback(context.get("eb"), spider),
            encoding=context.get("encoding", "utf-8"),
            **parts,
        )
    except _INVALID as error:
        raise _unreadable(error) from error
    return scrapy_request


def encoded(value: object, spider: scrapy.Spider) -> Any:
    """Return *value* as a value that crawlcw stores unchanged; raises `Unstorable`."""
    return _encode(value, spider, 1)


def decoded(value: object, spider: scrapy.Spider) -> Any:
    """Return the value that `encoded` has encoded; raises `SpiderError` if it is invalid."""
    try:
        return _decode(value, spider)
    except _INVALID as error:
        raise _unreadable(error) from error


def class_name(item_class: type) -> str:
    """Return the name under which `item_class` finds a class."""
    return functions.name_of(item_class)


def item_class(name: str) -> type | None:
    """Return the class of items with this `class_name`, if its module is imported."""
    kind = functions.named(name)
    return kind if isinstance(kind, type) and ItemAdapter.is_item_class(kind) else None


def item_values(item: Any) -> dict[str, Any]:
    """Return the fields of an item with the values that Scrapy's JSON exporter would write."""
    fields = item if isinstance(item, Mapping) else ItemAdapter(item)
    return {str(name): _item_value(value, 1) for name, value in fields.items()}


def response_headers(response: Response) -> Headers:
    """Return the headers of *response*, with each Set-Cookie header apart."""
    headers = Headers()
    for name, value in response.headers.items():
        headers[name] = value.encode("utf-8", "surrogateescape")
    if cookies := getattr(response, "set_cookies", ()):
        headers["Set-Cookie"] = [cookie.encode("utf-8", "surrogateescape") for cookie in cookies]
    return headers


def _unreadable(error: Exception) -> SpiderError:
    return SpiderError(
        f"a stored request does not fit the spider's code ({error}): undo the change of the code, "
        "or delete the crawl's data and start again with `crawlcw run ... --fresh`"
    )


def _encode(value: Any, spider: scrapy.Spider, depth: int) -> Any:
    kind = type(value)
    if kind is str:
        return value if value.isascii() else _text(value)
    if value is None or kind is bool or kind is bytes:
        return value
    if kind is int:
        return value if -_INT64 <= value < _INT64 else {"@int": hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {"@float": repr(value)}
    if depth > MAX_DEPTH:
        raise Unstorable(f"values nested deeper than {MAX_DEPTH} levels")
    if kind is dict:
        fields = {}
        for name, member in value.items():
            if type(name) is not str or name[:1] == "@" or not name.isascii():
                return {"@dict": _pairs(value, spider, depth)}
            is_plain = type(member) is str and member.isascii()  # true for most values
            fields[name] = member if is_plain else _encode(member, spider, depth + 1)
        return fields
    if kind is list:
        return [_encode(member, spider, depth + 1) for member in value]
    if kind in _COLLECTION_TAGS:
        return {_COLLECTION_TAGS[kind]: [_encode(member, spider, depth + 2) for member in value]}
    if kind in _WRITERS:
        tag, write = _WRITERS[kind]
        return {tag: write(value)}
    return _encode_object(value, spider, depth)


def _text(value: str) -> Any:
    """Return *value*, or its bytes if it has lone surrogates, which stores would replace."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return {"@text": value.encode("utf-8", "surrogatepass")}
    return value


def _pairs(mapping: Mapping[Any, Any], spider: scrapy.Spider, depth: int) -> list[Any]:
    return [[_encode(part, spider, depth + 3) for part in pair] for pair in mapping.items()]


def _encode_object(value: Any, spider: scrapy.Spider, depth: int) -> Any:
    kind = type(value)
    if kind is OrderedDict:
        return {"@ordered": _pairs(value, spider, depth)}
    if value is spider:
        return {"@spider": True}
    if isinstance(value, str) and not isinstance(value, Enum):  # such as the text of an lxml node
        return _text(str.__str__(value))
    name = class_name(kind)
    if item_class(name) is kind and not isinstance(value, dict):
        return {"@item": [name, _encode(_state(value), spider, depth + 2)]}
    if callable(value):
        tag, parts = functions.parts_of(value, spider)
        return {tag: [_encode(part, spider, depth + 2) for part in parts]}
    raise Unstorable(f"a value of the type {name}")


def _decode(value: Any, spider: scrapy.Spider) -> Any:
    if isinstance(value, dict):
        if len(value) == 1:
            ((tag, stored),) = value.items()
            if tag[:1] == "@":
                return _decode_tagged(tag, stored, spider)
        return {
            name: member if type(member) is str else _decode(member, spider)
            for name, member in value.items()
        }
    if isinstance(value, list):
        return [_decode(member, spider) for member in value]
    return value


def _decode_tagged(tag: str, stored: Any, spider: scrapy.Spider) -> Any:
    if tag in _READERS:
        return _READERS[tag](stored)
    if tag == "@spider":
        return spider
    parts = _decode(stored, spider)
    if tag in _COLLECTIONS:
        return _COLLECTIONS[tag](parts)
    if tag in {"@dict", "@ordered"}:
        return dict(parts) if tag == "@dict" else OrderedDict(parts)
    if tag != "@item":
        return functions.function_of(tag, parts, spider)
    name, state = parts
    if (kind := item_class(name)) is None:
        raise LookupError(f"there is no class of items {name}")
    if hasattr(kind, "model_construct"):  # a model of pydantic, which has more state than fields
        return kind.model_construct(**state)
    item = scrapy.Item.__new__(kind) if issubclass(kind, scrapy.Item) else object.__new__(kind)
    _set_state(item, state)
    return item


def _stored_callback(stored: Any, spider: scrapy.Spider) -> Any:
    return functions.method_of(spider, stored) if type(stored) is str else _decode(stored, spider)


def _header_pairs(headers: Headers) -> list[list[str]]:
    # Store the headers as text, because people read the context.
    return [
        [part.decode("latin-1") for part in (name, *header_values)]
        for name, header_values in dict.items(headers)
    ]


def _header_values(pairs: Any) -> dict[bytes, list[bytes]]:
    return {name.encode("latin-1"): [v.encode("latin-1") for v in vs] for name, *vs in pairs}


def _item_value(value: Any, depth: int) -> Any:
    if type(value) in _PLAIN_TYPES or depth > values.MAX_DEPTH:
        return value
    if isinstance(value, Mapping) or (not isinstance(value, type) and ItemAdapter.is_item(value)):
        fields = value if isinstance(value, Mapping) else ItemAdapter(value)
        return {str(name): _item_value(member, depth + 1) for name, member in fields.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_item_value(member, depth + 1) for member in value]
    if isinstance(value, str | int | float | bytes | Enum):
        return value
    try:
        return ScrapyJSONEncoder().default(value)
    except TypeError:
        return str(value)


def _state(instance: object) -> dict[str, Any]:
    """Return all attributes that *instance* itself has, in slots and in its `__dict__`."""
    kind: Any = type(instance)
    slots = _slots(kind)
    state = {name: getattr(instance, name) for name in slots if hasattr(instance, name)}
    return state | getattr(instance, "__dict__", {})


@functools.lru_cache(maxsize=1024)
def _slots(kind: Any) -> tuple[str, ...]:
    members = (member for base in kind.__mro__ for member in vars(base).items())
    slots = (name for name, member in members if isinstance(member, MemberDescriptorType))
    return tuple(name for name in slots if not name.startswith("__"))


def _set_state(instance: object, state: Mapping[str, Any]) -> None:
    for name, value in state.items():
        if name.startswith("__"):
            raise ValueError(f"{name} is not a field")
        object.__setattr__(instance, name, value)


#: The attributes of every request; only those of a subclass are its state.
_REQUEST_FIELDS = frozenset(_state(scrapy.Request("data:,")))
