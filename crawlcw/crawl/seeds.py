"""Which seeds a ledger has: where all of them are there, `start()` need not be run again.

What a spider would start with is told by a fingerprint of its arguments, its
plain attributes and the code that `start()` reaches. It errs on one side only:
where it cannot tell, or anything has changed, the crawl seeds again.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, time, timedelta
from hashlib import blake2b
from pathlib import PurePath
from types import CodeType, FunctionType
from typing import Any

from crawlcw.api.spider import Spider, arguments_of

#: With seeds on more hosts than that, a crawl seeds again each time.
MOST_HOSTS = 10_000

_PLAIN = (bool, int, float, str, bytes, date, time, timedelta, PurePath, type(None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeds:
    """What is written down of seeds when all of them are in the ledger."""

    fingerprint: str  #: of the spider that made them
    hosts: frozenset[str]  #: where they lead

    @classmethod
    def read(cls, found: Mapping[str, Any] | None) -> "Seeds | None":
        """Return what `document` made, or None where there is nothing."""
        if not found:
            return None
        return cls(fingerprint=found["fingerprint"], hosts=frozenset(found["hosts"]))

    def document(self) -> dict[str, Any]:
        """Return it as it is written down."""
        return {"fingerprint": self.fingerprint, "hosts": sorted(self.hosts)}


def is_deeper(max_depth: int | None, *, than: int | None) -> bool:
    """Return whether a crawl with *max_depth* follows links that one limited to *than* did not."""
    return than is not None and (max_depth is None or max_depth > than)


def fingerprint(spider: Spider) -> str | None:
    """Return what changes when the spider may start with something else.

    None where nobody can tell: it was given an argument that is no plain value.
    """
    told = _Fingerprint(spider)
    try:
        told.value(arguments_of(spider))
    except _NotPlainError:
        return None
    told.attributes()
    told.function(type(spider).start)
    return told.digest.hexdigest()


class _NotPlainError(Exception):
    """A value that may change without looking different."""


class _Fingerprint:
    def __init__(self, spider: Spider) -> None:
        self.digest = blake2b(digest_size=16)
        self._spider = spider
        self._module = type(spider).__module__
        self._functions: set[CodeType] = set()

    def value(self, value: object) -> None:
        """Take in a plain value; raises `_NotPlainError` for any other."""
        match value:
            case Mapping():
                self._mark("mapping", len(value))
                for key, each in value.items():
                    self.value(key)
                    self.value(each)
            case list() | tuple():
                if all(type(each) is str for each in value):
                    self._mark("texts", value)  # a million URLs at once
                    return
                self._mark("list", len(value))
                for each in value:
                    self.value(each)
            case set() | frozenset():
                # Their order depends on how strings are hashed in this process.
                if not all(isinstance(each, _PLAIN) for each in value):
                    raise _NotPlainError
                self._mark("set", sorted(map(repr, value)))
            case _ if isinstance(value, _PLAIN):
                self._mark(type(value).__name__, value)
            case _:
                raise _NotPlainError

    def _mark(self, kind: str, value: object) -> None:
        text = f"{kind} {value!r}".encode("utf-8", "surrogatepass")
        self.digest.update(b"%d:%b" % (len(text), text))

    def _value_if_plain(self, name: str, value: object) -> None:
        # What it had taken in before it met something else is told all the same.
        try:
            self._mark("named", name)
            self.value(value)
        except _NotPlainError:
            self._mark("not plain", type(value).__name__)

    def attributes(self) -> None:
        """Take in what the spider has, and its class: what `start()` may be made of."""
        self._mark("spider", type(self._spider).__qualname__)
        for kind in type(self._spider).__mro__:
            if kind in (Spider, object):
                break
            self._named(vars(kind))
        self._named(vars(self._spider))
        urls = self._spider.start_urls
        # A collection of another kind, such as the lines of a file, is gone through.
        self._value_if_plain("start_urls", urls if isinstance(urls, list | tuple) else list(urls))

    def _named(self, attributes: Mapping[str, object]) -> None:
        for name, value in sorted(attributes.items()):
            if not name.startswith("__"):
                self._value_if_plain(name, value)

    def function(self, function: Callable[..., object]) -> None:
        """Take in the code of a function, and of those of the same module that it names."""
        inner = inspect.unwrap(function)
        if not isinstance(inner, FunctionType) or inner.__code__ in self._functions:
            return
        self._value_if_plain("defaults", inner.__defaults__)
        self._value_if_plain("keywords", inner.__kwdefaults__)
        cells = (_content(cell) for cell in inner.__closure__ or ())
        self._reached(zip(inner.__code__.co_freevars, cells, strict=False))
        self._code(inner.__code__, inner.__globals__)

    def _code(self, code: CodeType, module: Mapping[str, object]) -> None:
        self._functions.add(code)
        self._mark("code", code.co_code)
        self._value_if_plain("names", code.co_names)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._code(constant, module)
            else:
                self._value_if_plain("constant", constant)
        named = [(name, module[name]) for name in code.co_names if name in module]
        methods = inspect.getmembers_static(type(self._spider), inspect.isroutine)
        self._reached([*named, *((n, m) for n, m in methods if n in code.co_names)])

    def _reached(self, named: Iterable[tuple[str, object]]) -> None:
        for name, value in named:
            function = getattr(value, "__func__", value)  # of a class or static method
            if isinstance(function, FunctionType):
                if function.__module__ == self._module:
                    self.function(function)
            else:
                self._value_if_plain(name, value)


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty yet
        return None
