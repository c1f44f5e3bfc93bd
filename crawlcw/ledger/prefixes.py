"""The texts that begin alike: their range of the order that both stores have, and their host.

That order is by code points.
"""

from dataclasses import replace
from typing import NamedTuple

from crawlcw.errors import FetchError
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.protocol import TaskFilter
from crawlcw.model import urls

_LAST = 0x10FFFF
#: No text that is stored as UTF-8 has one of these.
_SURROGATES = range(0xD800, 0xE000)


class Range(NamedTuple):
    """The texts that begin with a prefix: from `first` on, and before `end`."""

    first: str
    end: str | None  #: None: all that come after `first`


def beginning_with(prefix: str) -> Range:
    """Return the range of the texts that begin with *prefix*, and of no others."""
    kept = prefix.rstrip(chr(_LAST))
    if not kept:
        return Range(prefix, None)
    after = ord(kept[-1]) + 1
    return Range(prefix, kept[:-1] + chr(_SURROGATES.stop if after in _SURROGATES else after))


def with_host(chosen: TaskFilter, kind: LedgerKind) -> TaskFilter:
    """Return the same choice with the host that its prefix has, so that a host's index answers.

    The same where that is not known: the prefix ends within the host, or is one of keys.
    """
    if kind.tracked or chosen.host is not None or not chosen.url_prefix:
        return chosen
    return replace(chosen, host=_host_of(chosen.url_prefix))


def _host_of(prefix: str) -> str | None:
    scheme, _, rest = prefix.partition("://")
    authority, slash, _ = rest.partition("/")
    if not slash:
        return None
    origin = f"{scheme}://{authority}/"
    try:
        location = urls.locate(origin)
    except FetchError:
        return None
    # Tasks have no URL that begins with another spelling.
    return location.host if location.url == origin else None
