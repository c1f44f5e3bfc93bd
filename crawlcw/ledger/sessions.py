"""Sessions, the identities for requests; the fence of a session guards each change.

A session is the document

    _id          its name
    fence        the number of changes of its state
    state        fresh, ready or retired
    cookies      {digest: {name, value, domain, host_only, path, port, secure, expires}}
    headers, origins, proxy, data   as in `Identity`
    score, login_probe              see `Left`
    owner, expires                  the worker that logs it in, and until when; else absent
    failures, not_before, given_up, reason   of its last logins

The key of a cookie is a digest of the parts that identify it. Its name is a server's text, and
such a text must never become a field's name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from crawlcw.ledger.documents import Document, escaped, unescaped
from crawlcw.ledger.port import Edit, Store, Unit, Write
from crawlcw.model.identities import Cookie, Identity, IdentityState
from crawlcw.model.values import frozen


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Changes that pages make to a session while it is ready."""

    cookies: Mapping[str, Cookie | None]  #: the changed ones; None: deleted
    score: int = 0  #: number of further pages with a good response
    login_probe: str | None = None  #: the last of these pages; None: as before


class Sessions:
    """Sessions for requests: their cookies and their logins."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def get(self, name: str) -> Identity | None:
        """Return the session of that name; None before its first use."""
        return await self._store.reading(_get, name)

    async def change(self, before: Identity | None, after: Identity) -> bool:
        """Write a session, durably, if it still has the fence of *before*; return whether.

        If *before* is None, it is written if no session has its name. A session that is sent
        again after a lost reply is written once, and the result is True.
        """
        return await self._store.writing(_change, before, after)

    async def keep(self, name: str, fence: int, left: Left) -> bool:
        """Record the changes that pages made to a session, durably; return whether it was written.

        Other cookies stay as other pages have written them. Nothing is written if the session has
        another fence, or is not ready.
        """
        return await self._store.writing(_keep, name, fence, left)

    async def forget(self) -> int:
        """Delete all sessions; return how many. The next use of one creates it again."""
        return await self._store.writing(lambda unit: unit.sessions.delete({}))


async def _get(unit: Unit, name: str) -> Identity | None:
    found = await unit.sessions.read([name])
    return _session(found[name]) if name in found else None


async def _change(unit: Unit, before: Identity | None, after: Identity) -> bool:
    document = _document(after)
    if before is None:
        present = {name: value for name, value in document.items() if value is not None}
        written = await unit.sessions.insert([present])
    else:
        del document["_id"]
        write = Write(before.name, {"fence": before.fence}, Edit(set=document))
        written = await unit.sessions.change([write])
    # The reply to a successful write may have been lost.
    return written == 1 or await _get(unit, after.name) == after


async def _keep(unit: Unit, name: str, fence: int, left: Left) -> bool:
    cookies = {n: _cookie_document(each) for n, each in left.cookies.items() if each is not None}
    edit = Edit(
        set={} if left.login_probe is None else {"login_probe": left.login_probe},
        inc={"score": left.score},
        merge={"cookies": cookies},
        without={"cookies": left.cookies.keys() - cookies.keys()},
    )
    ready = {"fence": fence, "state": str(IdentityState.READY)}
    return await unit.sessions.change([Write(name, ready, edit)]) == 1


def _document(identity: Identity) -> Document:
    """Return a session as its document, with None for fields that become absent."""
    found = {field.name: getattr(identity, field.name) for field in fields(Identity)}
    found["_id"] = found.pop("name")
    found["state"] = str(identity.state)
    found["cookies"] = {key: _cookie_document(each) for key, each in identity.cookies.items()}
    found["headers"] = [list(pair) for pair in identity.headers]
    found["origins"] = list(identity.origins)
    found["data"] = escaped(dict(identity.data))
    return found


def _cookie_document(cookie: Cookie) -> Document:
    found = {field.name: getattr(cookie, field.name) for field in fields(Cookie)}
    return {name: value for name, value in found.items() if value is not None}


def _session(found: Mapping[str, Any]) -> Identity:
    """Return the session of a document."""
    known = {field.name for field in fields(Identity)}
    values = {name: value for name, value in found.items() if name in known}
    return Identity(
        **{
            **values,
            "name": found["_id"],
            "state": IdentityState(found["state"]),
            "cookies": {key: _cookie(each) for key, each in found.get("cookies", {}).items()},
            "headers": tuple((name, value) for name, value in found.get("headers", ())),
            "origins": tuple(found.get("origins", ())),
            "data": frozen(unescaped(found.get("data") or {})),
        }
    )


def _cookie(found: Mapping[str, Any]) -> Cookie:
    known = {field.name for field in fields(Cookie)}
    return Cookie(**{name: value for name, value in found.items() if name in known})
