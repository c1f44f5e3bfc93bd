"""Store a Scrapy request in the context of a task, and make the request from it again.

A context has plain values only, see `model.values`. Any other value is a dictionary with one key,
a tag such as `@tuple`. Nothing is pickled. `decoded` never imports a module, and fills the fields
of items and requests without their constructors.
"""

import math
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from operator import attrgetter
from typing import Any

import scrapy
from scrapy.http import Headers

from crawlcw.api import arguments
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.errors import SpiderError
from crawlcw.model import urls, values
from crawlcw.model.sanitize import printable
from crawlcw.model.task import PRIVATE_KEY
from crawlcw.scrapy import functions, items
from crawlcw.scrapy.functions import Unstorable as Unstorable
from crawlcw.scrapy.functions import class_name as class_name
from crawlcw.scrapy.items import item_class as item_class
from crawlcw.scrapy.items import item_of as item_of
from crawlcw.scrapy.items import item_values as item_values

#: The maximum nesting of encoded values; a tag adds up to four levels to it.
MAX_DEPTH = values.MAX_DEPTH - 5
#: The maximum size of a context in bytes; MongoDB refuses documents of 16 MiB.
MAX_SIZE = 8 << 20
_INT64 = 1 << 63
_INTEGER = re.compile(r"-?\d+")
_TICK = timedelta(microseconds=1)
#: Types of values without other values in them: the tag, and how to write and read a value.
_FORMS: tuple[tuple[type, str, Callable[[Any], Any], Callable[[Any], Any]], ...] = (
    (datetime, "@datetime", datetime.isoformat, datetime.fromisoformat),
    (date, "@date", date.isoformat, date.fromisoformat),
    (time, "@time", time.isoformat, time.fromisoformat),
    (timedelta, "@timedelta", lambda span: str(span // _TICK), lambda ticks: int(ticks) * _TICK),
    (Decimal, "@decimal", str, Decimal),
    (range, "@range", repr, lambda text: range(*map(int, _INTEGER.findall(text)))),
    (Headers, "@headers", lambda headers: _header_pairs(headers), lambda pairs: _headers(pairs)),
)
_WRITERS = {kind: (tag, write) for kind, tag, write, _ in _FORMS}
_READERS: dict[str, Callable[[Any], Any]] = {
    "@int": lambda digits: int(digits, 16),
    "@float": float,
    "@text": lambda raw: raw.decode("utf-8", "surrogatepass"),
    **{tag: read for _, tag, _, read in _FORMS},
}
_COLLECTION_TAGS: Mapping[type, str] = {tuple: "@tuple", set: "@set", frozenset: "@frozenset"}
_COLLECTIONS: dict[str, Callable[[Any], Any]] = {
    **{tag: kind for kind, tag in _COLLECTION_TAGS.items()},
    "@dict": dict,
    "@ordered": OrderedDict,
}
#: The parts of a request that a context has under their own names, unless they are empty.
_PARTS = ("meta", "cb_kwargs", "flags", "cookies", "headers", "priority", "dont_filter")
#: Get these parts without making empty ones. Scrapy 2.14 has fewer private names than later ones.
_parts = attrgetter(
    *("_meta", "_cb_kwargs"),
    *(f"_{name}" if hasattr(scrapy.Request, f"_{name}") else name for name in _PARTS[2:]),
)
_headers_part = attrgetter("_headers" if hasattr(scrapy.Request, "_headers") else "headers")
#: The attributes of every request; only those of a subclass are its state.
_REQUEST_FIELDS = frozenset(items.state_of(scrapy.Request("data:,")))
#: The exceptions of a context that does not fit the code of the project.
_MISFITS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def context_of(request: scrapy.Request, spider: scrapy.Spider) -> dict[str, Any]:
    """Return all of *request* except method, body and `task_headers`, as the context of a task.

    Raises `Unstorable`; then the request must be done while the crawl parses its parent's page.
    """
    context: dict[str, Any] = {}
    private: dict[str, Any] = {}
    location = urls.located(request.url)
    if isinstance(location, urls.Refusal) or location.url != request.url:
        parts = private if _is_private("url", request.url) else context
        parts["url"] = request.url
    for name, function in (("cb", request.callback), ("eb", request.errback)):
        if function is not None:
            method = functions.method_name(function, spider)
            context[name] = method or encoded(function, spider)
    for name, value in zip(_PARTS, _parts(request), strict=True):
        if name == "headers" and value:
            value = _headers_of_context(value)
        if value:
            parts = private if _is_private(name, value) else context
            try:
                parts[name] = encoded(value, spider)
            except Unstorable as error:
                raise Unstorable(f"{error} in {name}") from None
    if request.encoding != "utf-8":
        context["encoding"] = request.encoding
    if type(request) is not scrapy.Request:
        context |= _subclass_parts(request, spider)
    if private:
        context[PRIVATE_KEY] = private
    if values.size(context) > MAX_SIZE:
        raise Unstorable(f"values of more than {MAX_SIZE >> 20} MiB")
    return context


def _subclass_parts(request: scrapy.Request, spider: scrapy.Spider) -> dict[str, Any]:
    """Return the name of the class of *request*, and the attributes that only this class has."""
    name = class_name(type(request))
    if functions.named(name) is not type(request):
        raise Unstorable(f"a request of the class {name}, which no module defines")
    state = items.state_of(request)
    fields = {k: state[k] for k in state.keys() - _REQUEST_FIELDS}
    return {"class": name, "state": encoded(fields, spider)}


def task_headers(request: scrapy.Request) -> tuple[tuple[str, str], ...]:
    """Return the headers of *request* that a task can have; `context_of` has the others."""
    headers = _headers_part(request)
    if not headers:
        return ()
    return tuple(pair for name, texts in dict.items(headers) for pair in _pairs(name, texts))


def request_of(request: Request, spider: scrapy.Spider) -> scrapy.Request:
    """Return the Scrapy request that the task of *request* stores.

    Raises `SpiderError` if the project has changed, so that it lacks a part of the request.
    """
    context: Any = request.context or {}
    try:
        context = {**context, **context.get(PRIVATE_KEY, {})}
        parts = {name: decoded(context[name], spider) for name in _PARTS if name in context}
        headers = parts.pop("headers", Headers() if request.headers else None)
        for name, value in request.headers:
            headers.appendlist(name, value.encode("latin-1"))
        kind = functions.named(context["class"]) if "class" in context else scrapy.Request
        if not isinstance(kind, type) or not issubclass(kind, scrapy.Request):
            raise LookupError(f"there is no class of requests {context['class']}")
        # A request that the command `add` has added has its callback in the task only.
        added_callback = None if request.callback == "parse" else request.callback
        scrapy_request = scrapy.Request.__new__(kind)
        if "state" in context:
            items.set_state(scrapy_request, decoded(context["state"], spider))
        # The constructor of a subclass may take other arguments; its results are in the state.
        scrapy.Request.__init__(
            scrapy_request,
            context.get("url") or request.url,
            method=request.method,
            body=request.body or b"",
            callback=_function(context.get("cb", added_callback), spider),
            errback=_function(context.get("eb"), spider),
            encoding=context.get("encoding", "utf-8"),
            **parts,
        )
        if headers is not None:
            headers.encoding = scrapy_request.encoding
            scrapy_request.headers = headers
    except _MISFITS as error:
        raise SpiderError(
            f"a stored request does not fit the spider's code ({printable(error)}): undo the "
            "change, or delete the crawl's data and start again with `crawlcw run ... --fresh`"
        ) from error
    return scrapy_request


def encoded(value: Any, spider: scrapy.Spider, *, depth: int = 1) -> Any:
    """Return *value* as a value that crawlcw stores unchanged; raises `Unstorable`."""
    kind = type(value)
    if kind is str:
        return _text(value)
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
            if type(name) is not str or name[:1] == "@" or _text(name) is not name:
                return {"@dict": _members(value.items(), spider, depth)}
            is_plain = type(member) is str and member.isascii()  # true for most values
            fields[name] = member if is_plain else encoded(member, spider, depth=depth + 1)
        return fields
    if kind is list:
        return [encoded(member, spider, depth=depth + 1) for member in value]
    if kind in _COLLECTION_TAGS:
        return {_COLLECTION_TAGS[kind]: _members(value, spider, depth)}
    if kind in _WRITERS:
        tag, write = _WRITERS[kind]
        return {tag: write(value)}
    return _encoded_object(value, spider, depth)


def decoded(value: Any, spider: scrapy.Spider) -> Any:
    """Return the value that `encoded` has encoded.

    Raises `LookupError`, `ValueError` or another of `_MISFITS` for a value that `encoded` would not
    return for this project.
    """
    if isinstance(value, list):
        return [decoded(member, spider) for member in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((tag, stored),) = value.items()
        if tag[:1] == "@":
            return _decoded_object(tag, stored, spider)
    return {
        name: member if type(member) is str else decoded(member, spider)
        for name, member in value.items()
    }


def response_headers(response: Response) -> Headers:
    """Return the headers of *response*, with each Set-Cookie header apart."""
    headers = Headers()
    for name, value in response.headers.items():
        headers[name] = _raw(value)
    if response.set_cookies:
        headers["Set-Cookie"] = [_raw(cookie) for cookie in response.set_cookies]
    return headers


def _raw(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")


def _text(value: str) -> Any:
    """Return *value*, or its bytes if it has lone surrogates, which stores would replace."""
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return {"@text": value.encode("utf-8", "surrogatepass")}
    return value


def _members(members: Any, spider: scrapy.Spider, depth: int) -> list[Any]:
    """Encode the members of a tagged value; a pair of a mapping becomes a list."""
    is_pairs = not isinstance(members, tuple | list | set | frozenset)
    return [encoded(list(part) if is_pairs else part, spider, depth=depth + 2) for part in members]


def _encoded_object(value: Any, spider: scrapy.Spider, depth: int) -> Any:
    kind: Any = type(value)
    if kind is OrderedDict:
        return {"@ordered": _members(value.items(), spider, depth)}
    if value is spider:
        return {"@spider": True}
    if isinstance(value, str) and not isinstance(value, Enum):  # such as the text of an lxml node
        return _text(str.__str__(value))
    if callable(value):
        tag, parts = functions.parts_of(value, spider)
        return {tag: _members(parts, spider, depth)}
    name = class_name(kind)
    if isinstance(value, dict) or item_class(name) is not kind:
        raise Unstorable(f"a value of the type {name}")
    return {"@item": _members([name, items.state_of(value)], spider, depth)}


def _decoded_object(tag: str, stored: Any, spider: scrapy.Spider) -> Any:
    if tag in _READERS:
        return _READERS[tag](stored)
    if tag == "@spider":
        return spider
    parts = decoded(stored, spider)
    if tag in _COLLECTIONS:
        return _COLLECTIONS[tag](parts)
    if tag != "@item":
        return functions.function_of(tag, parts, spider)
    name, state = parts
    if (kind := item_class(name)) is None:
        raise LookupError(f"there is no class of items {name}")
    return items.item_with(kind, state)


def _function(stored: Any, spider: scrapy.Spider) -> Any:
    return functions.method_of(spider, stored) if type(stored) is str else decoded(stored, spider)


def _is_private(name: str, value: Any) -> bool:
    """Return whether a part of a request may be a password, or contain one."""
    if name == "url":
        return "@" in value
    return name in ("cookies", "headers") or (name == "meta" and "@" in str(value.get("proxy")))


def _headers_of_context(headers: Headers) -> Headers:
    """Return the headers that a task cannot have, such as headers without a value."""
    refused_headers = Headers()
    for name, texts in dict.items(headers):
        if not _pairs(name, texts):
            dict.__setitem__(refused_headers, name, texts)
    return refused_headers


def _pairs(name: bytes, texts: list[bytes]) -> tuple[tuple[str, str], ...]:
    """Return the pairs of a task for one header; no pairs if a task must not have the header."""
    try:
        return arguments.headers(
            [(name.decode("latin-1"), text.decode("latin-1")) for text in texts]
        )
    except SpiderError:
        return ()


def _header_pairs(headers: Headers) -> list[list[str]]:
    # Store the headers as text, because people read the context.
    pairs = dict.items(headers)
    return [[part.decode("latin-1") for part in (name, *parts)] for name, parts in pairs]


def _headers(pairs: Any) -> Headers:
    headers = Headers()
    for pair in pairs:
        name, *parts = (part.encode("latin-1") for part in pair)
        dict.__setitem__(headers, name, parts)  # `Headers` has normalized them before
    return headers
