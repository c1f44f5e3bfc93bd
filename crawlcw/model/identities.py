"""The identity for requests of pages: a session, and its states.

A session is durable and shared by all processes. It is fresh until a login makes it ready,
and retired after it was logged out or banned. The ledger writes a decision only if the session
still has the fence on which the decision was based; each write of a decision raises the fence.
Nothing in this module does I/O, and no `repr` shows a secret.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from crawlcw.model.retry import backoff

#: The session of requests that do not name one.
DEFAULT_SESSION = "default"
#: The beginning of the names of a pool's sessions; a number follows, from 1.
POOLED = "pool-"
#: Logs show names, so they must not contain characters that need escaping.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@+-]{0,99}\Z")
SESSION_NAMES = "write letters, digits and any of _ . @ + -, 100 at most"


class IdentityState(StrEnum):
    """The state of a session."""

    FRESH = "fresh"  #: it was never logged in
    READY = "ready"  #: requests may use it
    RETIRED = "retired"  #: logged out, banned, or its login failed: it must log in again


@dataclass(frozen=True, slots=True, kw_only=True)
class Cookie:
    """A cookie as the ledger stores it."""

    name: str
    value: str = field(repr=False)  #: exactly as in the header
    domain: str  #: the host that set it, or the domain that it is for
    host_only: bool
    path: str
    port: int  #: 0 for the default ports of HTTP and HTTPS; other ports have separate cookies
    secure: bool
    expires: datetime | None = None  #: None: at the end of the session


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A session in the ledger."""

    name: str
    state: IdentityState = IdentityState.FRESH
    fence: int = 0  #: raised by every change, except changes by pages
    cookies: Mapping[str, Cookie] = field(default_factory=dict, repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    origins: tuple[str, ...] = ()  #: the origins that the login used, which get the headers
    proxy: str | None = None  #: `Proxy.key` of the proxy for its requests
    data: Mapping[str, Any] = field(default_factory=dict, repr=False)  #: values of the spider
    score: int = 0  #: the number of signs that this login works, see `sessions`
    login_probe: str | None = None  #: a page that only a logged-in session gets
    owner: str | None = None  #: the worker that logs it in
    expires: datetime | None = None  #: when that worker counts as dead
    failures: int = 0  #: logins in a row that failed or did not help
    not_before: datetime | None = None  #: when the next login may begin
    given_up: datetime | None = None  #: when the last allowed login failed
    reason: str = ""  #: why it is retired, cleaned

    @property
    def is_pooled(self) -> bool:
        """Whether it belongs to a pool, so another session may request the same page."""
        return self.name.startswith(POOLED)

    @property
    def is_ready(self) -> bool:
        """Whether requests may use it."""
        return self.state is IdentityState.READY


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginPolicy:
    """How often a login may fail in a row, and the waits between the attempts."""

    max_failures: int = 5
    base: timedelta = timedelta(seconds=5)
    ceiling: timedelta = timedelta(hours=1)


def is_session_name(name: object) -> bool:
    """Return whether *name* can be the name of a session."""
    return isinstance(name, str) and _NAME.match(name) is not None


def earliest_login(
    identity: Identity, *, now: datetime, process_start: datetime
) -> datetime | None:
    """Return when a login may begin, *now* or later; None if this run gave the session up.

    If an earlier run gave it up, before *since*, the start of this process, it may log in again.
    """
    if is_given_up(identity, process_start=process_start):
        return None
    waits = [identity.not_before] if identity.not_before is not None else []
    if identity.owner is not None and identity.expires is not None:
        waits.append(identity.expires)
    return max([now, *waits])


def is_given_up(identity: Identity, *, process_start: datetime) -> bool:
    """Return whether this run has given up a session, see `earliest_login`."""
    return identity.given_up is not None and identity.given_up >= process_start


def login_begun(
    identity: Identity, *, owner: str, now: datetime, lease: timedelta, proxy: str | None = None
) -> Identity:
    """Return a session that *owner* begins to log in, possibly in place of a dead worker.

    *proxy* is the key of its proxy from now on.
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
    """Return a session that is ready, with the results of its login."""
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
    """Return a session whose login has failed: it logs in again later, or never again."""
    return _resting(identity, cause, failures=identity.failures + 1, now=now, policy=policy)


def login_deferred(identity: Identity, *, not_before: datetime) -> Identity:
    """Return a session whose login failed because of our uplink or a proxy."""
    return replace(_released(identity), not_before=not_before)


def retired(identity: Identity, cause: str, *, now: datetime, policy: LoginPolicy) -> Identity:
    """Return a session that was logged out or banned, without its useless cookies.

    If there was no sign that its login worked, this counts as a failed login.
    """
    failures = 0 if identity.score else identity.failures + 1
    logged_out = replace(identity, cookies={}, headers=())
    return _resting(logged_out, cause, failures=failures, now=now, policy=policy)


def moved(identity: Identity, *, proxy: str | None) -> Identity:
    """Return a session that continues with another proxy."""
    return replace(identity, fence=identity.fence + 1, proxy=proxy)


def replaced(identity: Identity, cause: str, *, proxy: str | None, logs_in: bool) -> Identity:
    """Return a new session in place of one that was banned, or retired without a login.

    It keeps only the name of the old session. Its count of failed logins is 0.
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
    # There is no wait after the first failure, because it may be chance.
    retry_delay = backoff(failures - 1, base=policy.base, ceiling=policy.ceiling)
    return replace(
        _released(identity),
        state=IdentityState.RETIRED,
        reason=cause,
        failures=failures,
        not_before=now + retry_delay if failures > 1 else None,
        given_up=now if failures >= policy.max_failures else None,
    )
