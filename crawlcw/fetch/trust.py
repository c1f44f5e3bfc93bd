"""How long a connection rests before it is used again: what origins have shown.

A server that answers without being asked does so by an endpoint that is
broken: others at the same origin may be in order. So it is the endpoint that
has to show how it behaves, by connections that were silent for `REST` seconds
after one of its answers. An endpoint is a path without the numbers in it, and
without the values of its query: `/page/7?id=3` and `/page/8?id=4` are one.

    what is known                                        rest after its answer
    an endpoint with fewer than `CLEAN_RESTS` of these   REST
    an endpoint with as many                             none
    any endpoint of a folder that has shown
    `CLEAN_ENDPOINTS` clean ones (`/wiki/Crawler`)       none
    an origin that broke the rules of HTTP               REST
    an origin that spoke without being asked             never used again

No I/O, and nothing of aiohttp is here.
"""

import math
import re
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

#: Seconds. Late answers came within 50 ms of the first where they were measured.
REST = 0.1
CLEAN_RESTS = 2
CLEAN_ENDPOINTS = 24

#: Bounds of what is remembered. What was forgotten has to be shown again.
_ORIGINS = 4_000
_OUTSPOKEN = 50_000
_COUNTS = 64  #: of one origin

_NUMBER = re.compile(r"\d+")
_VALUE = re.compile(r"=[^&]*")

#: Whether it is over TLS, the host and the port; and which proxy it is asked through, for what
#: comes unasked, or is no HTTP, may be the proxy's.
OriginKey = tuple[bool, str, int | None, int | None]


class Endpoint(NamedTuple):
    """What of a site answers a URL, as far as its text tells."""

    folder: int
    name: int


def endpoint_of(address: str) -> Endpoint:
    """Return the endpoint of a URL, or of its path and query."""
    path, _, query = address.partition("?")
    folder, _, name = _NUMBER.sub("0", path).rpartition("/")
    # Hashes, for a server chooses how long its paths are.
    return Endpoint(hash((folder, None)), hash((folder, name, _VALUE.sub("", query))))


@dataclass(slots=True)
class Origin:
    """What one origin has shown."""

    spoke_unasked: bool = False
    broke_http: bool = False
    opening: float = 0.0  #: the fewest seconds that a new connection took; 0: none yet
    waiting: int = 0  #: requests that wait for a connection to have rested
    _clean: dict[int, int] = field(default_factory=dict)  #: the latest last

    def rest_after(self, endpoint: Endpoint) -> float:
        """Return for how many seconds a connection rests after an answer of *endpoint*."""
        if self.spoke_unasked:
            return math.inf
        if self.broke_http:
            return REST
        clean = self._clean.get
        trusted = clean(endpoint.name, 0) >= CLEAN_RESTS
        return 0.0 if trusted or clean(endpoint.folder, 0) >= CLEAN_ENDPOINTS else REST

    def rested(self, endpoint: Endpoint) -> None:
        """Note that a connection was silent for `REST` seconds after an answer of *endpoint*."""
        if endpoint.name not in self._clean:
            self._count(endpoint.folder)
        self._count(endpoint.name)

    def _count(self, shown: int) -> None:
        self._clean[shown] = self._clean.pop(shown, 0) + 1
        if len(self._clean) > _COUNTS:
            del self._clean[next(iter(self._clean))]


class Origins:
    """The origins that were asked lately, and longer those that spoke without being asked."""

    def __init__(self) -> None:
        self._origins: OrderedDict[OriginKey, Origin] = OrderedDict()
        self._outspoken: OrderedDict[OriginKey, None] = OrderedDict()

    def of(self, key: OriginKey) -> Origin:
        """Return what is known of an origin."""
        found = self._origins.get(key)
        if found is None:
            found = self._origins[key] = Origin(spoke_unasked=key in self._outspoken)
            if len(self._origins) > _ORIGINS:
                self._origins.popitem(last=False)
        else:
            self._origins.move_to_end(key)
        return found

    def spoke_unasked(self, key: OriginKey) -> None:
        """Note that bytes came from an origin which nobody had asked for."""
        self.of(key).spoke_unasked = True
        self._outspoken[key] = None
        self._outspoken.move_to_end(key)
        if len(self._outspoken) > _OUTSPOKEN:
            self._outspoken.popitem(last=False)

    def broke_http(self, key: OriginKey) -> None:
        """Note that what came from an origin was no HTTP."""
        self.of(key).broke_http = True
