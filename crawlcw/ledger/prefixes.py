"""The texts that begin alike: their range of the order that both stores have, and their hosts.

That order is by code points.
"""

import re
from dataclasses import replace
from typing import NamedTuple

from crawlcw.errors import FetchError
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.protocol import TaskFilter
from crawlcw.model import urls

_LAST = 0x10FFFF
#: No text that is stored as UTF-8 has one of these.
_SURROGATES = range(0xD800, 0xE000)
#: What may come behind the host and the port of a URL.
_PATH = re.compile("[/?#]")
#: So begin `http://` and `https://`, and tasks have no other.
_EVERY_SCHEME = "http"


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


def simplified(chosen: TaskFilter, kind: LedgerKind) -> TaskFilter:
    """Return the same choice with the host that its prefix has, so that a host's index answers.

    Without the prefix where every URL begins so. The same where no host is known: the prefix ends
    within it, see `hosts_within`, or is one of keys.
    """
    if kind.tracked or not chosen.url_prefix:
        return chosen
    if _EVERY_SCHEME.startswith(chosen.url_prefix):
        return replace(chosen, url_prefix=None)
    if chosen.host is not None:
        return chosen
    return replace(chosen, host=_host_of(chosen.url_prefix))


def hosts_within(chosen: TaskFilter, kind: LedgerKind) -> Range | None:
    """Return a range with the hosts of all tasks whose prefix ends within the host.

    It may have other hosts as well. None: it would have all, or another choice is made.
    """
    if kind.tracked or chosen.host is not None or not chosen.url_prefix:
        return None
    _, _, rest = chosen.url_prefix.partition("://")
    authority = _PATH.split(rest, maxsplit=1)[0]
    # A URL may have a dot behind the name, its host has none: `a.example.:80` is `a.example:80`.
    name = authority.partition(".:")[0].rstrip(".")
    return beginning_with(name) if name else None


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
