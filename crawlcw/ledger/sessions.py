"""Store sessions (identities for requests), and refuse a write if the session's fence has changed.

A session is stored as this document:

    _id          name of the session
    fence        number of changes of the session's state
    state        fresh, ready or retired
    cookies      {digest: {name, value, domain, host_only, path, port, secure, expires}}
    headers, origins, proxy, data   as in `Identity`
    score, login_probe              see `SessionChanges`
    owner, expires                  worker that logs in now, and the end of its right to do so
    failures, not_before, given_up, reason   results of the last logins

The key of a cookie is a digest of the parts that identify the cookie. The cookie's name cannot be
the key, because a text from a server must never become a field's name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from crawlcw.ledger.documents import Document, escaped, unescaped
from crawlcw.ledger.port import Edit, LedgerTables, Store, Write
from crawlcw.model.identities import Cookie, Identity, IdentityState
from crawlcw.model.values import frozen


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionChanges:
    """Changes that pages make to a session whose state is ready."""

    cookies: Mapping[str, Cookie | None]  #: changed cookies by digest; None deletes a cookie
    score: int = 0  #: number of pages with a good response, which is added to the old score
    login_probe: str | None = None  #: URL of the last page with a good response


class Sessions:
    """Sessions for requests, with their cookies and the state of their logins."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def get(self, name: str) -> Identity | None:
        """Return the session *name*, or None if the session was never used."""
        return await self._store.reading(_get, name)

    async def change(self, old_session: Identity | None, new_session: Identity) -> bool:
        """Write *new_session* durably if the stored session has the fence of *old_session*.

        `change` returns whether the session was written. If *old_session* is None, the new session
        is written only if no stored session has this name. A call that is repeated after a lost
        reply writes the session only once, but returns True too.
        """
        return await self._store.writing(_change, old_session, new_session)

    async def keep(self, name: str, fence: int, changes: SessionChanges) -> bool:
        """Write durably how pages changed a session; return whether the changes were written.

        Stored cookies that *changes* does not name stay unchanged. Nothing is written if the
        session's fence is not *fence*, or if the session is not ready.
        """
        return await self._store.writing(_keep, name, fence, changes)

    async def forget(self) -> int:
        """Delete all sessions, and return their number; the next request makes a new session."""
        return await self._store.writing(lambda tables: tables.sessions.delete({}))


async def _get(tables: LedgerTables, name: str) -> Identity | None:
    sessions = await tables.sessions.read([name])
    return _session(sessions[name]) if name in sessions else None


async def _change(
    tables: LedgerTables, old_session: Identity | None, new_session: Identity
) -> bool:
    document = _document(new_session)
    if old_session is None:
        present_fields = {name: value for name, value in document.items() if value is not None}
        written_count = await tables.sessions.insert([present_fields])
    else:
        del document["_id"]
        write = Write(old_session.name, {"fence": old_session.fence}, Edit(set=document))
        written_count = await tables.sessions.change([write])
    # The reply to an earlier, successful write may have been lost, so compare the stored session.
    return written_count == 1 or await _get(tables, new_session.name) == new_session


async def _keep(tables: LedgerTables, name: str, fence: int, changes: SessionChanges) -> bool:
    cookies = {
        n: _cookie_document(cookie) for n, cookie in changes.cookies.items() if cookie is not None
    }
    edit = Edit(
        set={} if changes.login_probe is None else {"login_probe": changes.login_probe},
        inc={"score": changes.score},
        merge={"cookies": cookies},
        without={"cookies": changes.cookies.keys() - cookies.keys()},
    )
    where = {"fence": fence, "state": str(IdentityState.READY)}
    return await tables.sessions.change([Write(name, where, edit)]) == 1


def _document(identity: Identity) -> Document:
    """Return the document that stores a session; a field with None is removed from the ledger."""
    document = {field.name: getattr(identity, field.name) for field in fields(Identity)}
    document["_id"] = document.pop("name")
    document["state"] = str(identity.state)
    document["cookies"] = {
        key: _cookie_document(cookie) for key, cookie in identity.cookies.items()
    }
    document["headers"] = [list(pair) for pair in identity.headers]
    document["origins"] = list(identity.origins)
    document["data"] = escaped(dict(identity.data))
    return document


def _cookie_document(cookie: Cookie) -> Document:
    values = {field.name: getattr(cookie, field.name) for field in fields(Cookie)}
    return {name: value for name, value in values.items() if value is not None}


def _session(document: Mapping[str, Any]) -> Identity:
    """Return the session that a document stores."""
    field_names = {field.name for field in fields(Identity)}
    values = {name: value for name, value in document.items() if name in field_names}
    return Identity(
        **{
            **values,
            "name": document["_id"],
            "state": IdentityState(document["state"]),
            "cookies": {
                key: _cookie(cookie) for key, cookie in document.get("cookies", {}).items()
            },
            "headers": tuple((name, value) for name, value in document.get("headers", ())),
            "origins": tuple(document.get("origins", ())),
            "data": frozen(unescaped(document.get("data") or {})),
        }
    )


def _cookie(document: Mapping[str, Any]) -> Cookie:
    field_names = {field.name for field in fields(Cookie)}
    return Cookie(**{name: value for name, value in document.items() if name in field_names})
