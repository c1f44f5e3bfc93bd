"""Define crawl sessions, which hold the cookies, headers and proxy of a group of requests.

The ledger stores the sessions, and all processes of a crawl share them. A session is fresh until a
login makes it ready. A session is retired after the site has logged it out or banned it. Each
change raises the session's fence, which is a counter. The ledger writes a change only if the
session still has the fence that the caller has read. No `repr` shows a secret. No I/O.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from crawlcw.model.retry import backoff

#: The session for requests that name no session.
DEFAULT_SESSION = "default"
#: The prefix of the names of pooled sessions, such as `pool-1`.
POOLED = "pool-"
#: Logs show session names, so a name must not contain characters that need escaping.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@+-]{0,99}\Z")
SESSION_NAMES = "write letters, digits and any of _ . @ + -, 100 at most"


class IdentityState(StrEnum):
    """Whether requests may use a session, or the session must log in first."""

    FRESH = "fresh"  #: the session has had no login yet
    READY = "ready"  #: requests may use it
    RETIRED = "retired"  #: logged out, banned, or the login failed, so a new login is needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Cookie:
    """A cookie of a crawl session, as the ledger stores it."""

    name: str
    value: str = field(repr=False)  #: value exactly as in the Set-Cookie header
    domain: str  #: the host that set the cookie, or the cookie's Domain attribute
    host_only: bool
    path: str
    port: int  #: port of the server; 0: the default ports of HTTP and HTTPS
    secure: bool
    expires: datetime | None = None  #: expiry time, or None if the cookie ends with its session


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A crawl session, as the ledger stores it."""

    name: str
    state: IdentityState = IdentityState.FRESH
    fence: int = 0  #: number of changes of the session; changes by pages do not count
    cookies: Mapping[str, Cookie] = field(default_factory=dict, repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    origins: tuple[str, ...] = ()  #: origins (scheme, host, port) to which requests send `headers`
    proxy: str | None = None  #: `Proxy.key` of the proxy for its requests
    data: Mapping[str, Any] = field(default_factory=dict, repr=False)  #: values of the spider
    score: int = 0  #: number of responses that showed that the login works
    login_probe: str | None = None  #: URL of a page that only a logged-in session receives
    owner: str | None = None  #: the worker that is logging the session in
    expires: datetime | None = None  #: time at which `owner` counts as dead
    failures: int = 0  #: number of consecutive failed or useless logins
    not_before: datetime | None = None  #: earliest time of the next login
    given_up: datetime | None = None  #: time at which the session was given up
    reason: str = ""  #: why the session is retired

    @property
    def is_pooled(self) -> bool:
        """Whether the session is in a pool; any session of a pool can request the pool's pages."""
        return self.name.startswith(POOLED)

    @property
    def is_ready(self) -> bool:
        """Whether requests may use the session."""
        return self.state is IdentityState.READY


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginPolicy:
    """The limit of failed logins in a row, and the waits between two logins of a session."""

    max_failures: int = 5
    base: timedelta = timedelta(seconds=5)
    ceiling: timedelta = timedelta(hours=1)


def is_session_name(name: object) -> bool:
    """Return whether *name* can be the name of a session."""
    return isinstance(name, str) and _NAME.match(name) is not None


def earliest_login(
    identity: Identity, *, now: datetime, process_start: datetime
) -> datetime | None:
    """Return when a session may log in next; None means that this run has given up the session.

    A session that an earlier run gave up, before *process_start*, may log in again.
    """
    if is_given_up(identity, process_start=process_start):
        return None
    waits = [identity.not_before] if identity.not_before is not None else []
    if identity.owner is not None and identity.expires is not None:
        waits.append(identity.expires)
    return max([now, *waits])


def is_given_up(identity: Identity, *, process_start: datetime) -> bool:
    """Return whether a session was given up after *process_start*, and so must not log in."""
    return identity.given_up is not None and identity.given_up >= process_start


def login_begun(
    identity: Identity, *, owner: str, now: datetime, lease: timedelta, proxy: str | None = None
) -> Identity:
    """Let the worker *owner* begin a login; return the new value of the session.

    *proxy* is the key of the proxy that the session uses from now on.
    """
    return replace(
        identity,
        fence=identity.fence + 1,
        owner=owner,
        expires=now + lease,
        given_up=None,
        not_before=None,
        proxy=proxy,
        failures=identity.failures if identity.given_up is None else 0,
    )


def logged_in(
    identity: Identity,
    *,
    cookies: Mapping[str, Cookie],
    headers: tuple[tuple[str, str], ...] = (),
    origins: tuple[str, ...] = (),
    data: Mapping[str, Any] | None = None,
) -> Identity:
    """Return the session after a successful login, with the login's cookies and headers."""
    return replace(
        _released(identity),
        state=IdentityState.READY,
        cookies=cookies,
        headers=headers,
        origins=origins,
        data=identity.data if data is None else data,
        score=0,
        reason="",
    )


def login_failed(identity: Identity, cause: str, *, now: datetime, policy: LoginPolicy) -> Identity:
    """Return the session after a failed login: the session logs in again later, or never."""
    return _resting(identity, cause, failures=identity.failures + 1, now=now, policy=policy)


def login_deferred(identity: Identity, *, not_before: datetime) -> Identity:
    """Return the new value of a session whose login failed because of our network or a proxy."""
    return replace(_released(identity), not_before=not_before)


def retired(identity: Identity, cause: str, *, now: datetime, policy: LoginPolicy) -> Identity:
    """Return the session without cookies and headers, after the site logged it out or banned it.

    If no response has shown that the login worked, a logout by the site counts as a failed login.
    """
    failures = 0 if identity.score else identity.failures + 1
    logged_out = replace(identity, cookies={}, headers=())
    return _resting(logged_out, cause, failures=failures, now=now, policy=policy)


def moved(identity: Identity, *, proxy: str | None) -> Identity:
    """Return the session with *proxy* in place of its former proxy."""
    return replace(identity, fence=identity.fence + 1, proxy=proxy)


def replaced(identity: Identity, cause: str, *, proxy: str | None, logs_in: bool) -> Identity:
    """Return a new session that replaces a banned or retired session of the same name.

    The new session has none of the old cookies, headers and data, and no failed logins.
    """
    return Identity(
        name=identity.name,
        fence=identity.fence + 1,
        state=IdentityState.RETIRED if logs_in else IdentityState.READY,
        proxy=proxy,
        reason=cause,
    )


def _released(identity: Identity) -> Identity:
    return replace(identity, fence=identity.fence + 1, owner=None, expires=None)


def _resting(
    identity: Identity, cause: str, *, failures: int, now: datetime, policy: LoginPolicy
) -> Identity:
    # The first failed login may be an accident, so the session may log in again immediately.
    retry_delay = backoff(failures - 1, base=policy.base, ceiling=policy.ceiling)
    return replace(
        _released(identity),
        state=IdentityState.RETIRED,
        reason=cause,
        failures=failures,
        not_before=now + retry_delay if failures > 1 else None,
        given_up=now if failures >= policy.max_failures else None,
    )
