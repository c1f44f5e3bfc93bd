"""Seeds that a ledger has: where all of them are there, `start()` need not run again.

A fingerprint of the spider tells whether it would start with the same: its source, its
arguments, and plain values of its classes and its module. It errs on one side only: after
any change, and where it cannot tell, the crawl seeds again.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, time, timedelta
from hashlib import blake2b
from pathlib import Path, PurePath
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
    """Return a digest that changes when the spider may start with other requests.

    None where that cannot be told: an argument is no plain value, or a source file cannot be
    read. A change that has nothing to do with `start()` changes it as well.
    """
    told = _Fingerprint()
    kinds = type(spider).__mro__
    try:
        told.value(arguments_of(spider))
        for kind in kinds[: kinds.index(Spider)]:
            module = sys.modules[kind.__module__]
            told.value([kind.__qualname__, Path(str(module.__file__)).read_bytes()])
            told.plain(vars(module))
            told.plain(vars(kind))
    except (_NotPlainError, AttributeError, KeyError, OSError):
        return None
    told.plain(vars(spider))
    urls = spider.start_urls
    # A collection of another kind, such as the lines of a file, is gone through.
    told.plain({"start_urls": urls if isinstance(urls, list | tuple) else list(urls)})
    return told.digest.hexdigest()


class _NotPlainError(Exception):
    """A value that may change without looking different."""


class _Fingerprint:
    def __init__(self) -> None:
        self.digest = blake2b(digest_size=16)

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

    def plain(self, named: Mapping[str, object]) -> None:
        """Take in what has a public name, as far as it is plain."""
        for name, value in sorted(named.items()):
            if name.startswith("__"):
                continue
            self._mark("named", name)
            try:
                self.value(value)
            except _NotPlainError:
                # What it had taken in before it met something else is told all the same.
                self._mark("not plain", type(value).__name__)
