"""The texts that begin alike, as one range of the order that both stores have: by code points."""

from typing import NamedTuple

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
