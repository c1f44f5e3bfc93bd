"""A random web with faults of pages, hosts and the network, made from a seed."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from random import Random

from crawlcw import FetchError, Reason, Request, Response
from tests.blame.virtual import VirtualClock

#: Timeouts of an attempt, equal to the settings of the crawl.
CONNECT_TIMEOUT = 10.0
READ_TIMEOUT = 10.0
_LATENCY = 0.05
_SLOW_LATENCY = 8.0


class Kind(StrEnum):
    """The behaviour of a page."""

    GOOD = "good"
    MISSING = "missing"  #: 404
    THROTTLED = "throttled"  #: 429, always
    THROTTLED_FOR = "throttled-for"  #: 429 with Retry-After, always
    UNAVAILABLE = "unavailable"  #: 503 with Retry-After, always
    TO_DEAD = "to-dead"  #: a redirect to a host that is dead
    TO_TLS = "to-tls"  #: a redirect to an origin without TLS
    TO_NOWHERE = "to-nowhere"  #: a redirect to an invalid URL
    RAISING = "raising"  #: its callback raises
    SLOW = "slow"  #: answers shortly before the timeout


#: The end of each kind: its reason, and its attempts of three.
ENDS: dict[Kind, tuple[Reason | None, int]] = {
    Kind.GOOD: (None, 0),
    Kind.SLOW: (None, 0),
    Kind.MISSING: (Reason.HTTP_STATUS, 1),
    Kind.THROTTLED: (Reason.HTTP_STATUS, 3),
    Kind.THROTTLED_FOR: (Reason.HTTP_STATUS, 3),
    Kind.UNAVAILABLE: (Reason.HTTP_STATUS, 3),
    Kind.TO_NOWHERE: (Reason.REDIRECT_INVALID, 1),
    Kind.RAISING: (Reason.PARSE_ERROR, 1),
}


class Health(StrEnum):
    """The behaviour of a whole origin."""

    WELL = "well"
    REFUSED = "refused"
    SILENT = "silent"  #: never accepts a connection
    NAMELESS = "nameless"
    NO_TLS = "no-tls"
    BANNING = "banning"  #: 429 for every page, robots.txt apart
    STOPS = "stops"  #: works, and refuses connections from some moment on


DEAD = frozenset({Health.REFUSED, Health.SILENT, Health.NAMELESS, Health.NO_TLS, Health.BANNING})


@dataclass(frozen=True, slots=True)
class Page:
    url: str
    kind: Kind
    priority: int
    target: str = ""  #: of a redirect


@dataclass(slots=True)
class Site:
    """A host: its origins by scheme, and the pages of each."""

    name: str
    health: dict[str, Health]
    pages: list[Page] = field(default_factory=list)
    stops_at: float = float("inf")
    down: list[tuple[float, float]] = field(default_factory=list)  #: times without connections
    unnamed: list[tuple[float, float]] = field(default_factory=list)  #: times without an address
    least_gap: float = 0.0  #: 429 for requests closer together than this
    last: float = float("-inf")


@dataclass(slots=True)
class World:
    """The web of one seed."""

    sites: dict[str, Site]
    away: list[
        tuple[float, float, Reason]
    ]  #: outages of our own network: begin, end, and the error of a request
    concurrency: int
    per_host: int
    obey_robots: bool
    cookies: bool  #: if so, redirects are followed in place

    @property
    def pages(self) -> Iterator[tuple[Site, Page]]:
        for site in self.sites.values():
            for page in site.pages:
                yield site, page


def made(seed: int) -> World:
    """Return the web of *seed*."""
    chance = Random(seed)
    sites: dict[str, Site] = {}
    for number in range(chance.randint(1, 7)):
        name = f"h{number}.example"
        health = {"http": Health.WELL}
        if chance.random() < 0.2:
            health["http"] = chance.choice([*sorted(DEAD - {Health.NO_TLS}), Health.STOPS])
        if chance.random() < 0.4:
            health["https"] = chance.choice(
                [Health.WELL, Health.NO_TLS, Health.REFUSED, Health.SILENT]
            )
        if health["http"] is Health.NAMELESS:
            health = dict.fromkeys(health, Health.NAMELESS)  # all origins of a host share its name
        site = sites[name] = Site(name, health)
        if chance.random() < 0.2:
            begin = chance.uniform(0, 60)
            site.down.append((begin, begin + chance.uniform(1, 15)))
        if chance.random() < 0.2:
            begin = chance.uniform(1, 30)
            site.unnamed.append((begin, begin + chance.uniform(5, 600)))
        if chance.random() < 0.15:
            site.least_gap = chance.choice([0.1, 0.3, 1.0])
        if health["http"] is Health.STOPS:
            site.stops_at = chance.uniform(0, 20)
    sites["dead.example"] = Site("dead.example", {"http": Health.REFUSED, "https": Health.NO_TLS})
    for name, site in sites.items():
        if name != "dead.example":
            _furnish(site, chance)
    away = []
    # With few hosts, a crawl cannot tell an outage of the network from dead hosts.
    healthy = [s for s in sites.values() if s.health["http"] is Health.WELL and not s.down]
    if len(healthy) >= 4 and chance.random() < 0.6:
        begin = chance.uniform(3, 30)
        lasts = chance.choice([5.0, 60.0, 600.0])
        way = chance.choice([Reason.CONNECT, Reason.TIMEOUT_CONNECT, Reason.DNS_NXDOMAIN])
        away.append((begin, begin + lasts, way))
    return World(
        sites=sites,
        away=away,
        concurrency=chance.choice([2, 8, 30]),
        per_host=chance.choice([1, 2, 8]),
        obey_robots=chance.random() < 0.5,
        cookies=chance.random() < 0.3,
    )


def _furnish(site: Site, chance: Random) -> None:
    kinds = [Kind.GOOD] * 6 + list(Kind)
    many = chance.random() < 0.2
    if many:
        site.down, site.unnamed, site.least_gap = [], [], 0.0
    for scheme in site.health:
        favourite = chance.choice([Kind.THROTTLED, Kind.THROTTLED_FOR, Kind.UNAVAILABLE])
        for number in range(chance.randint(1, 12)):
            kind = favourite if many and chance.random() < 0.7 else chance.choice(kinds)
            if number == 0:
                kind = Kind.GOOD
            url = f"{scheme}://{site.name}/{number}-{kind}"
            target = {
                Kind.TO_DEAD: "http://dead.example/x",
                Kind.TO_TLS: "https://dead.example/x",
                Kind.TO_NOWHERE: "http://[bad",
            }.get(kind, "")
            # An origin that refuses many pages and has never answered one is given up.
            # So each origin has a good page, which is requested first.
            priority = chance.choice([0, 0, 0, 5, -5]) if number else 10
            site.pages.append(Page(url, kind, priority, target))


class Web:
    """The downloader of a world, in virtual time."""

    def __init__(self, world: World, clock: VirtualClock) -> None:
        self._world = world
        self._clock = clock
        self._pages = {page.url: page for _, page in world.pages}
        self.asked: dict[str, int] = {}
        self.resolved: dict[str, float] = {}  #: time of the first resolution of each name

    async def fetch(self, request: Request, *, url: str) -> Response:
        self.asked[url] = self.asked.get(url, 0) + 1
        scheme, _, rest = url.partition("://")
        site = self._world.sites[rest.partition("/")[0]]
        await self._connect(site, scheme)
        if url.endswith("/robots.txt"):
            await self._answer_after(site, _LATENCY)
            return Response(url, request=request, status=404)
        # A rate limit counts arrivals of requests, not their answers.
        is_early = self._is_early(site)
        page = self._pages.get(url)
        is_slow = page is not None and page.kind is Kind.SLOW and not is_early
        await self._answer_after(site, _SLOW_LATENCY if is_slow else _LATENCY)
        if site.health[scheme] is Health.BANNING:
            return _throttling(url, request, 429, None)
        if is_early:
            return _throttling(url, request, 429, "1")
        return _response(url, request, page)

    def _is_early(self, site: Site) -> bool:
        """Return whether a request comes too soon after the previous one."""
        gap, site.last = self._clock.elapsed - site.last, self._clock.elapsed
        return gap < site.least_gap

    async def _connect(self, site: Site, scheme: str) -> None:
        now = self._clock.elapsed
        for begin, end, way in self._world.away:
            if begin <= now < end:
                await asyncio.sleep(CONNECT_TIMEOUT if way is Reason.TIMEOUT_CONNECT else 0.01)
                raise FetchError(way, "the network is away")
        health = site.health.get(scheme, Health.REFUSED)
        unnamed = any(begin <= now < end for begin, end in site.unnamed)
        if health is Health.NAMELESS or unnamed:
            raise FetchError(Reason.DNS_NXDOMAIN, "no such name")
        self.resolved.setdefault(site.name, now)
        stopped = health is Health.STOPS and now >= site.stops_at
        if health is Health.REFUSED or stopped or any(b <= now < e for b, e in site.down):
            raise FetchError(Reason.CONNECT, "refused")
        if health is Health.SILENT:
            await asyncio.sleep(CONNECT_TIMEOUT)
            raise FetchError(Reason.TIMEOUT_CONNECT, "no answer")
        if health is Health.NO_TLS:
            raise FetchError(Reason.TLS, "wrong version number")

    async def _answer_after(self, site: Site, latency: float) -> None:
        """Wait for an answer, which never comes if the network goes away before it."""
        ends = self._clock.elapsed + latency
        for begin, end, _ in self._world.away:
            if self._clock.elapsed < end and begin < ends:
                await asyncio.sleep(READ_TIMEOUT)
                raise FetchError(Reason.TIMEOUT_READ, "no byte")
        await asyncio.sleep(latency)

    async def close(self) -> None:
        pass


def _throttling(url: str, request: Request, status: int, after: str | None) -> Response:
    headers = {} if after is None else {"Retry-After": after}
    return Response(url, request=request, status=status, headers=headers)


def _response(url: str, request: Request, page: Page | None) -> Response:
    if page is None:
        return Response(url, request=request, status=404)
    match page.kind:
        case Kind.MISSING:
            return Response(url, request=request, status=404)
        case Kind.THROTTLED:
            return _throttling(url, request, 429, None)
        case Kind.THROTTLED_FOR:
            return _throttling(url, request, 429, "100000")
        case Kind.UNAVAILABLE:
            return _throttling(url, request, 503, "1")
        case Kind.TO_DEAD | Kind.TO_TLS | Kind.TO_NOWHERE:
            headers = {"Location": page.target}
            return Response(url, request=request, status=302, headers=headers)
        case Kind.GOOD | Kind.SLOW | Kind.RAISING:
            return Response(
                url,
                request=request,
                status=200,
                headers={"Content-Type": "text/html"},
                body=b"<p>here</p>",
                elapsed=timedelta(seconds=_LATENCY),
            )
