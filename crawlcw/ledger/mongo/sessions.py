"""The sessions that pages are asked for with: a document each, changed by its fence alone."""

from pymongo.errors import DuplicateKeyError

from crawlcw.ledger.documents import Document
from crawlcw.ledger.mongo.connection import mapped
from crawlcw.ledger.mongo.store import BATCH, MongoStore
from crawlcw.ledger.protocol import Left
from crawlcw.ledger.session_documents import cookie_document, session, session_document
from crawlcw.model.identities import Identity, IdentityState


class Sessions:
    """Keeps a document for each session."""

    def __init__(self, store: MongoStore) -> None:
        self._store = store

    async def get(self, name: str) -> Identity | None:
        """See `protocol.Sessions.get`."""
        with mapped():
            found = await self._store.sessions.find_one({"_id": name})
        return None if found is None else session(found)

    async def all(self) -> list[Identity]:
        """See `protocol.Sessions.all`."""
        with mapped():
            cursor = self._store.sessions.find({}).sort([("_id", 1)]).hint("_id_")
            return [session(found) for found in await cursor.to_list(BATCH)]

    async def change(self, before: Identity | None, after: Identity) -> bool:
        """Insert it, or replace it where it has the fence of *before*."""
        document = session_document(after)
        with mapped():
            if before is None:
                try:
                    await self._store.sessions.insert_one(document)
                except DuplicateKeyError:
                    return await self._is_written(after)
                return True
            known = {"_id": before.name, "fence": before.fence}
            fields = {"_id": 1}
            written = await self._store.sessions.find_one_and_replace(known, document, fields)
            return written is not None or await self._is_written(after)

    async def _is_written(self, after: Identity) -> bool:
        """Return whether a change is there already: its first answer was lost."""
        found = await self._store.sessions.find_one({"_id": after.name})
        return found is not None and session(found) == after

    async def keep(self, name: str, fence: int, left: Left) -> bool:
        """Set each cookie by its own path: a digest, so it is one step."""
        update: dict[str, Document] = {}
        for key, cookie in left.cookies.items():
            operator = "$unset" if cookie is None else "$set"
            value = "" if cookie is None else cookie_document(cookie)
            update.setdefault(operator, {})[f"cookies.{key}"] = value
        if left.login_probe is not None:
            update.setdefault("$set", {})["witness"] = left.login_probe
        if left.score:
            update["$inc"] = {"score": left.score}
        known = {"_id": name, "fence": fence, "state": str(IdentityState.READY)}
        with mapped():
            if not update:
                return await self._store.sessions.find_one(known, {"_id": 1}) is not None
            written = await self._store.sessions.update_one(known, update, hint="_id_")
        count: int = written.matched_count
        return count == 1

    async def forget(self) -> int:
        """See `protocol.Sessions.forget`."""
        with mapped():
            deleted = await self._store.sessions.delete_many({}, hint="_id_")
        count: int = deleted.deleted_count
        return count
