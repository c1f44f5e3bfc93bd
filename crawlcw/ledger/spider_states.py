"""State of a spider, changed as a whole by its revision.

It is one document:

    _id          "state"
    revision     the number of times that it was written
    values       {name: value}
    pending      {id of a task in hex: {fence, sums: {name: number}}}

Names and the keys in values are escaped, for they may be any text.
"""

from collections.abc import Mapping
from typing import Any

from crawlcw.ledger.documents import Document, escaped, unescaped
from crawlcw.ledger.port import Edit, Not, Store, Unit, Write
from crawlcw.model.spider_state import PageSums, StoredState
from crawlcw.model.values import frozen

STATE_ID = "state"


class SpiderStates:
    """State that a spider keeps between its pages, changed as a whole by its revision."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def read(self, *, known: int = 0) -> StoredState | None:
        """Return the state; None where its revision is the one that is *known*."""
        return await self._store.reading(_read, known)

    async def change(self, before: StoredState, after: StoredState) -> bool:
        """Write the differences of *after*, durably, if the revision is that of *before*.

        Return whether it was written. Sent again after it was not answered, it is written
        once; where others have written meanwhile, the answer is that it was not.
        """
        return await self._store.writing(_change, before, after)

    async def forget(self) -> bool:
        """Let there be no state any more, by another revision; return whether there was one."""
        return await self._store.writing(_forget)


async def _read(unit: Unit, known: int) -> StoredState | None:
    found = await unit.state.read([STATE_ID], where={"revision": Not(known)})
    return _stored_state(found[STATE_ID]) if found else None


async def _change(unit: Unit, before: StoredState, after: StoredState) -> bool:
    if not before.revision:
        written = await unit.state.insert([_document(after)])
    else:
        write = Write(STATE_ID, {"revision": before.revision}, _edit(before, after))
        written = await unit.state.change([write])
    # The answer to a change that was written may have been lost.
    return written == 1 or await _read(unit, 0) == after


def _edit(before: StoredState, after: StoredState) -> Edit:
    """Return what sets the values and the pending sums that are other in *after*."""
    values = {n: v for n, v in after.values.items() if before.values.get(n, after) is not v}
    pending = {t: each for t, each in after.pending.items() if before.pending.get(t) != each}
    changed = _document(StoredState(revision=after.revision, values=values, pending=pending))
    return Edit(
        set={"revision": changed["revision"]},
        merge={"values": changed["values"], "pending": changed["pending"]},
        without={
            "values": escaped(dict.fromkeys(before.values.keys() - after.values.keys())).keys(),
            "pending": [task_id.hex() for task_id in before.pending.keys() - after.pending.keys()],
        },
    )


async def _forget(unit: Unit) -> bool:
    found = await unit.state.read([STATE_ID])
    nothing = Edit(set={"values": {}, "pending": {}}, inc={"revision": 1})
    await unit.state.change([Write(STATE_ID, {}, nothing)])
    return any(document["values"] for document in found.values())


def _document(state: StoredState) -> Document:
    """Return a state as it is stored."""
    return {
        "_id": STATE_ID,
        "revision": state.revision,
        "values": escaped(dict(state.values)),
        "pending": {
            task_id.hex(): {"fence": added.fence, "sums": escaped(dict(added.sums))}
            for task_id, added in state.pending.items()
        },
    }


def _stored_state(found: Mapping[str, Any]) -> StoredState:
    """Return the state of a document."""
    return StoredState(
        revision=found["revision"],
        values={name: frozen(value) for name, value in unescaped(dict(found["values"])).items()},
        pending={
            bytes.fromhex(task_id): PageSums(added["fence"], unescaped(dict(added["sums"])))
            for task_id, added in found["pending"].items()
        },
    )
