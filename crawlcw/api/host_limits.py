"""Check the hosts that a spider names in `limits` and `allowed_hosts`.

This module raises an error for a name that cannot be the host of a task. Otherwise a limit for such
a name would never apply, and such a name in `allowed_hosts` would make the crawl drop links
silently. This module finds the limit of a host; the host queues apply limits.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

from crawlcw.api.settings import Settings
from crawlcw.errors import FetchError, SettingsError, SpiderError
from crawlcw.model import durations, urls
from crawlcw.model.sanitize import redacted

#: Default ports, which `task.host` never contains (see `urls.Location`).
_DEFAULT_PORTS = (":80", ":443")
#: Matches text that no host may contain, such as a slash, or a colon without a port.
_NOT_IN_HOSTS = re.compile(r"[\s/\\?#@*]|:\Z")


@dataclass(frozen=True, slots=True, init=False)
class Limit:
    """The limits that a spider gives a host; if a limit is None, the setting applies.

    Raises `SettingsError` if a value is invalid.
    """

    concurrency: int | None  #: simultaneous requests to the host; 0 means no limit
    delay: timedelta | None  #: the minimum time between two requests to the host

    def __init__(
        self, *, concurrency: int | None = None, delay: timedelta | float | str | None = None
    ) -> None:
        is_whole = isinstance(concurrency, int) and not isinstance(concurrency, bool)
        if concurrency is not None and not (is_whole and concurrency >= 0):
            raise SettingsError(
                f"Limit(concurrency=...): {concurrency!r} is not a whole number of at least 0"
            )
        object.__setattr__(self, "concurrency", concurrency)
        try:
            duration = None if delay is None else durations.duration(delay)
        except SettingsError as error:
            raise SettingsError(f"Limit(delay=...): {error}") from None
        object.__setattr__(self, "delay", duration)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLimit:
    """The effective limits of one host."""

    concurrency: int  #: simultaneous requests to the host; 0 means no limit
    delay: float  #: seconds between the starts of two requests to the host


class Limits:
    """A spider's limits, indexed by host.

    The possible keys are `shop.example.com:8080`, `shop.example.com` (on every port),
    `*.example.com` (its subdomains without itself, on every port), and `*`. If several keys match a
    host, the most specific key counts.
    """

    def __init__(self, limits: Mapping[str, Limit]) -> None:
        """Raise `SettingsError` if a key of *limits* is not possible, or a value is no `Limit`."""
        if not isinstance(limits, Mapping):
            raise SettingsError(f"limits is {limits!r}: write a dict of hosts and Limit(...)")
        self._hosts: dict[str, Limit] = {}  # by host
        self._by_suffix: dict[str, Limit] = {}
        self._other_hosts: Limit | None = None
        for host_pattern, limit in limits.items():
            if not isinstance(limit, Limit):
                raise SettingsError(f"limits[{host_pattern!r}] is {limit!r}: write a Limit(...)")
            if host_pattern == "*":
                self._other_hosts = limit
                continue
            host = _host(host_pattern)
            limit_by_host = self._by_suffix if host_pattern.startswith("*.") else self._hosts
            if host in limit_by_host:
                raise SettingsError(f"limits[{host_pattern!r}]: {host} occurs twice: remove one")
            limit_by_host[host] = limit

    def of(self, host: str) -> Limit | None:
        """Return the most specific limit of a task's *host*, or None if no limit matches."""
        name = urls.name_of(host)
        limit = self._hosts.get(host) or self._hosts.get(name)
        parent = name if self._by_suffix else ""
        while limit is None and parent:
            parent = parent.partition(".")[2]
            limit = self._by_suffix.get(parent)
        return self._other_hosts if limit is None else limit


def limit_of(host: str, limits: Limits, settings: Settings) -> HostLimit:
    """Return the effective limits of *host*, from its `Limit` or else from the settings."""
    limit = limits.of(host)
    concurrency = limit.concurrency if limit else None
    delay = limit.delay if limit else None
    return HostLimit(
        concurrency=settings.per_host_concurrency if concurrency is None else concurrency,
        delay=(settings.delay if delay is None else delay).total_seconds(),
    )


def _host(key: str) -> str:
    """Return the host in *key*, without `*.`, in the form of `task.host`."""
    pattern_error = SettingsError(
        f"limits[{key!r}] is neither a host nor a pattern: write shop.example.com, "
        "shop.example.com:8080, *.example.com or *"
    )
    if not isinstance(key, str):
        raise pattern_error
    name = key.removeprefix("*.")
    host = _host_named(name)
    # `*.` fits only a name without a port: an IPv6 address has no subdomains.
    if host is None or (name != key and ":" in host):
        raise pattern_error
    if name.endswith(_DEFAULT_PORTS):
        raise SettingsError(
            f"limits[{key!r}]: leave out the port, because host names do not include 80 and 443"
        )
    return host


def _host_named(name: str) -> str | None:
    """Return *name* in the form that `task.host` has; None if *name* is not a host."""
    if not name or _NOT_IN_HOSTS.search(name):
        return None
    try:
        host = urls.locate(f"http://{name}/").host
    except FetchError:
        return None
    return None if host.startswith(".") else host


def checked_hosts(allowed: object, kind: str) -> frozenset[str]:
    """Return the hosts in *allowed*, the value of `kind.allowed_hosts`.

    Raises `SpiderError` if the value is not a list, or if a member is not a host.
    """
    if isinstance(allowed, str) and allowed != "*":
        raise SpiderError(f"{kind}.allowed_hosts is a single text: write a list")
    # Refuse an iterator, because the crawl reads `allowed_hosts` more than once.
    if not isinstance(allowed, Iterable) or isinstance(allowed, Iterator):
        raise SpiderError(f"{kind}.allowed_hosts is {allowed!r}: write a list")
    return frozenset(_allowed_host(host, kind) for host in allowed)


def _allowed_host(value: object, kind: str) -> str:
    name = value.strip() if isinstance(value, str) else ""
    if name == "*":
        return name
    host = _host_named(name)
    if host is None:
        raise SpiderError(
            # Redact the text, because a URL may have a password.
            f"{kind}.allowed_hosts: {redacted(repr(value))} is not a host: write example.com "
            'for the host and its subdomains, example.com:8080 for only that port, or "*" for all'
        )
    if name.endswith(_DEFAULT_PORTS):
        raise SpiderError(
            f"{kind}.allowed_hosts: {name!r}: leave out the port, because host names do not "
            "include 80 and 443"
        )
    return host
