"""The sessions that pages are asked for with: a row each, changed by its fence alone."""

import sqlite3
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from crawlcw.ledger.documents import Document
from crawlcw.ledger.protocol import Left
from crawlcw.ledger.session_documents import session, session_document
from crawlcw.ledger.sqlite.connection import all_rows, update
from crawlcw.ledger.sqlite.rows import from_json, milliseconds, moment, to_json
from crawlcw.ledger.sqlite.store import SqliteStore
from crawlcw.model.identities import Cookie, Identity


class Sessions:
    """Keeps a row for each session: what others look for in columns, the rest as JSON."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    async def get(self, name: str) -> Identity | None:
        """See `protocol.Sessions.get`."""
        return await self._store.reader.run(self._get, name)

    def _get(self, db: sqlite3.Connection, name: str) -> Identity | None:
        row = db.execute(self._store.sql.session, {"id": name}).fetchone()
        return None if row is None else session(document_of_session(row))

    async def all(self) -> list[Identity]:
        """See `protocol.Sessions.all`."""
        rows = await self._store.reader.run(all_rows, self._store.sql.sessions)
        return [session(document_of_session(row)) for row in rows]

    async def change(self, before: Identity | None, after: Identity) -> bool:
        """Insert it, or replace it where it has the fence of *before*."""
        row = row_of_session(session_document(after))
        if before is None:
            written = await self._store.writer.run(update, self._store.sql.add_session, row)
        else:
            row = {**row, "held_fence": before.fence}
            written = await self._store.writer.run(update, self._store.sql.change_session, row)
        # The answer to a change that was written may have been lost.
        return written == 1 or await self.get(after.name) == after

    async def keep(self, name: str, fence: int, left: Left) -> bool:
        """See `protocol.Sessions.keep`."""
        patch: Document = {"cookies": {key: _patch(each) for key, each in left.cookies.items()}}
        if left.login_probe is not None:
            patch["witness"] = left.login_probe
        row = {"id": name, "fence": fence, "patch": to_json(patch), "score": left.score}
        return await self._store.writer.run(update, self._store.sql.keep_session, row) == 1

    async def forget(self) -> int:
        """See `protocol.Sessions.forget`."""
        return await self._store.writer.run(update, self._store.sql.forget_sessions, {})


def _patch(cookie: Cookie | None) -> Document | None:
    """Return what makes a cookie of whatever was kept in its place, by RFC 7396."""
    if cookie is None:
        return None
    # With null for what it has not: what is not named would stay.
    return {each.name: getattr(cookie, each.name) for each in fields(Cookie)}


def row_of_session(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a session's document as its columns hold it: what is looked for, and the rest."""
    content = dict(document)
    expires = content.pop("expires", None)
    return {
        "id": content.pop("_id"),
        "fence": content.pop("fence"),
        "owner": content.pop("owner", None),
        "expires": None if expires is None else milliseconds(expires),
        "content": to_json(content),
    }


def document_of_session(row: sqlite3.Row | Mapping[str, Any]) -> Document:
    """Return the document that a session's row holds."""
    found: Document = {"_id": row["id"], "fence": row["fence"], **from_json(row["content"])}
    if row["owner"] is not None:
        found["owner"] = row["owner"]
    if row["expires"] is not None:
        found["expires"] = moment(row["expires"])
    return found
