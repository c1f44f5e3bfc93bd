"""Identity that pages are asked for with: a session, and its states.

A session is durable and shared by all processes. It is fresh until a login has
made it ready, and retired once it was logged out or banned. A decision
is written if the session still has the fence that it was made with; every such write
raises it. Nothing here does I/O, and no representation has a secret.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from crawlcw.model.retry import backoff

#: The session of pages whose request names none.
DEFAULT_SESSION = "default"
#: The beginning of the names of a pool's sessions; a number follows, from 1.
POOLED = "pool-"
#: Names are shown and logged, so they hold nothing that has to be cleaned.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@+-]{0,99}\Z")
SESSION_NAMES = "write letters, digits and any of _ . @ + -, 100 at most"


class IdentityState(StrEnum):
    """Where a session stands."""

    FRESH = "fresh"  #: it was never logged in
    READY = "ready"  #: pages may be asked for with it
    RETIRED = "retired"  #: logged out, banned, or its login failed: to be logged in anew


@dataclass(frozen=True, slots=True, kw_only=True)
class Cookie:
    """A cookie as it is kept between processes."""

    name: str
    value: str = field(repr=False)  #: as it is sent
    domain: str  #: the host that set it, or the domain that it is for
    host_only: bool
    path: str
    port: int  #: 0 for those of HTTP and HTTPS; any other has cookies of its own
    secure: bool
    expires: datetime | None = None  #: None: with the session


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A session as the ledger has it."""

    name: str
    state: IdentityState = IdentityState.FRESH
    fence: int = 0  #: raised by every change of what stands here, but for what pages leave
    cookies: Mapping[str, Cookie] = field(default_factory=dict, repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    origins: tuple[str, ...] = ()  #: where the headers may be sent: those that the login asked
    proxy: str | None = None  #: `Proxy.key` of the one that its requests go through
    data: Mapping[str, Any] = field(default_factory=dict, repr=False)  #: the spider's own
    score: int = 0  #: what showed that this login was of use, see `sessions`
    login_probe: str | None = None  #: a page that only a session that is logged in is given
    owner: str | None = None  #: the worker that logs it in
    expires: datetime | None = None  #: when that worker is taken for dead
    failures: int = 0  #: logins in a row that failed, or were of no use
    not_before: datetime | None = None  #: when the next login may begin
    given_up: datetime | None = None  #: when the last login allowed has failed
    reason: str = ""  #: why it is retired, cleaned

    @property
    def is_pooled(self) -> bool:
        """Whether it is one of a pool, so another one may ask for the same page."""
        return self.name.startswith(POOLED)

    @property
    def is_ready(self) -> bool:
        """Whether pages may be asked for with it."""
        return self.state is IdentityState.READY


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginPolicy:
    """How often a login may fail in a row, and how long to wait in between."""

    most: int = 5
    base: timedelta = timedelta(seconds=5)
    ceiling: timedelta = timedelta(hours=1)


def is_session_name(name: object) -> bool:
    """Return whether *name* can be a session's."""
    return isinstance(name, str) and _NAME.match(name) is not None


def login_from(identity: Identity, *, now: datetime, since: datetime) -> datetime | None:
    """Return when a login may begin, *now* or later; None where it was given up.

    A session that was given up before *since*, the start of this process, may be tried anew.
    """
    if is_given_up(identity, since=since):
        return None
    waits = [identity.not_before] if identity.not_before is not None else []
    if identity.owner is not None and identity.expires is not None:
        waits.append(identity.expires)
    return max([now, *waits])


def is_given_up(identity: Identity, *, since: datetime) -> bool:
    """Return whether this run is over for a session, see `login_from`."""
    return identity.given_up is not None and identity.given_up >= since


def login_begun(
    identity: Identity, *, owner: str, now: datetime, lease: timedelta, proxy: str | None = None
) -> Identity:
    """Return a session that *owner* begins to log in: a dead worker's login is taken over.

    *proxy* is the key of the one that it goes through from now on.
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
    """Return a session that is ready, as its login has left it."""
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


def login_failed(identity: Identity, why: str, *, now: datetime, policy: LoginPolicy) -> Identity:
    """Return a session whose login has failed: tried again later, or given up."""
    return _resting(identity, why, failures=identity.failures + 1, now=now, policy=policy)


def login_put_off(identity: Identity, *, until: datetime) -> Identity:
    """Return a session whose login failed for our uplink, or a proxy."""
    return replace(_released(identity), not_before=until)


def retired(identity: Identity, why: str, *, now: datetime, policy: LoginPolicy) -> Identity:
    """Return a session that was logged out, or banned: its cookies are of no use any more.

    A login has failed where nothing showed that it was of use.
    """
    failures = 0 if identity.score else identity.failures + 1
    out = replace(identity, cookies={}, headers=())
    return _resting(out, why, failures=failures, now=now, policy=policy)


def moved(identity: Identity, *, proxy: str | None) -> Identity:
    """Return a session that goes on through another proxy."""
    return replace(identity, fence=identity.fence + 1, proxy=proxy)


def replaced(identity: Identity, why: str, *, proxy: str | None, logs_in: bool) -> Identity:
    """Return a new session in the place of one that was banned, or retired without a login.

    It has nothing of the old one but its name. No login of it has failed.
    """
    return Identity(
        name=identity.name,
        fence=identity.fence + 1,
        state=IdentityState.RETIRED if logs_in else IdentityState.READY,
        proxy=proxy,
        reason=why,
    )


def _released(identity: Identity) -> Identity:
    return replace(identity, fence=identity.fence + 1, owner=None, expires=None)


def _resting(
    identity: Identity, why: str, *, failures: int, now: datetime, policy: LoginPolicy
) -> Identity:
    # The first failure may be chance; waiting begins at the second.
    wait = backoff(failures - 1, base=policy.base, ceiling=policy.ceiling)
    return replace(
        _released(identity),
        state=IdentityState.RETIRED,
        reason=why,
        failures=failures,
        not_before=now + wait if failures > 1 else None,
        given_up=now if failures >= policy.most else None,
    )
