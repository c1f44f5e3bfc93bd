"""Values that a ledger stores beside its tasks: notes of crawls, and a spider's state.

A write of a spider's state fails if another process has changed `revision` since the writer read
the state. The state is one document:

    _id          "state"
    revision     number of writes of the state
    values       {name: value}
    pending      {id of a task in hex: {fence, sums: {name: number}}}

Names of values, and the keys within the values, are escaped because they may be any text.
"""

import re
from collections.abc import Mapping
from typing import Any

from crawlcw.ledger.documents import Document, escaped, unescaped
from crawlcw.ledger.port import Edit, LedgerTables, Not, Store, Write
from crawlcw.model.spider_state import PageSums, StoredState
from crawlcw.model.values import frozen

#: Characters that a stored key must not contain, but that a host's name may contain.
_QUOTED = re.compile(r'["\\\x00-\x1f]')
STATE_ID = "state"


class Notes:
    """Values that crawls store in the marker, a document that the ledger has beside its tasks."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def state(self) -> Mapping[str, Any]:
        """Return the values that crawls recorded with `set_state`, or an empty mapping.

        The mapping is also empty if a user has dropped the table of tasks.
        """
        return await self._store.reading(_read_note, self._store.name, "state")

    async def set_state(self, state: Mapping[str, Any]) -> None:
        """Record values durably; None deletes a recorded value, and all other values stay.

        `Admin.purge` removes `seeds`, because the tasks of the seeds may be gone.
        """
        await self._store.writing(_change_note, self._store.name, "state", state)

    async def control(self) -> Mapping[str, Any]:
        """Return the orders to running crawls, such as pause, in one small read."""
        return await self._store.reading(_read_note, self._store.name, "control")

    async def set_control(self, control: Mapping[str, Any]) -> None:
        """Record values durably; None deletes a recorded value, and all other values stay."""
        await self._store.writing(_change_note, self._store.name, "control", control)

    async def policy(self) -> Mapping[str, Any]:
        """Return the recorded settings of the use case, or an empty mapping."""
        return await self._store.reading(_read_note, self._store.name, "policy")

    async def set_policy(self, policy: Mapping[str, Any]) -> None:
        """Record the settings in *policy* durably; recorded settings that *policy* lacks stay."""
        await self._store.writing(
            _merge, self._store.name, Edit(merge={"policy": _with_escaped_names(policy)})
        )


async def _read_note(tables: LedgerTables, name: str, field: str) -> Mapping[str, Any]:
    markers = await tables.marker.read([name], fields=(field,))
    values: dict[str, Any] = unescaped(markers.get(name, {}).get(field) or {})
    return values


async def _change_note(
    tables: LedgerTables, name: str, field: str, values: Mapping[str, Any]
) -> None:
    entries = {key: value for key, value in values.items() if value is not None}
    removals = _with_escaped_names(dict.fromkeys(values.keys() - entries.keys()))
    await _merge(
        tables,
        name,
        Edit(merge={field: _with_escaped_names(entries)}, without={field: removals.keys()}),
    )


async def _merge(tables: LedgerTables, name: str, edit: Edit) -> None:
    await tables.marker.change([Write(name, {}, edit)])


def _with_escaped_names(values: Mapping[str, Any]) -> dict[str, Any]:
    escaped_values: dict[str, Any] = escaped(dict(values))
    return {
        _QUOTED.sub(lambda c: f"%{ord(c[0]):02X}", name): v for name, v in escaped_values.items()
    }


class SpiderStates:
    """State that a spider keeps between its pages; a change must give the current revision."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def read(self, *, known_revision: int = 0) -> StoredState | None:
        """Return the state, or None if the stored revision equals *known_revision*."""
        return await self._store.reading(_read_state, known_revision)

    async def change(self, old_state: StoredState, new_state: StoredState) -> bool:
        """Write the states' differences durably, if the stored revision is that of *old_state*.

        Return whether the new state was written. If a reply was lost and the caller calls again,
        the change is written only once. If another process has changed the state meanwhile, nothing
        is written.
        """
        return await self._store.writing(_change_state, old_state, new_state)

    async def forget(self) -> bool:
        """Delete all values and increment the revision; return whether there was any value."""
        return await self._store.writing(_forget_state)


async def _read_state(tables: LedgerTables, revision: int) -> StoredState | None:
    states = await tables.state.read([STATE_ID], where={"revision": Not(revision)})
    return _stored_state(states[STATE_ID]) if states else None


async def _change_state(tables: LedgerTables, base: StoredState, state: StoredState) -> bool:
    if not base.revision:
        written_count = await tables.state.insert([_document(state)])
    else:
        write = Write(STATE_ID, {"revision": base.revision}, _edit(base, state))
        written_count = await tables.state.change([write])
    # The reply to an earlier, successful write may have been lost, so compare the states.
    return written_count == 1 or await _read_state(tables, 0) == state


def _edit(base: StoredState, state: StoredState) -> Edit:
    """Return the edit from *base* to *state*; it contains only values and sums that differ."""
    values = {n: v for n, v in state.values.items() if base.values.get(n, state) is not v}
    pending = {t: sums for t, sums in state.pending.items() if base.pending.get(t) != sums}
    changed_document = _document(
        StoredState(revision=state.revision, values=values, pending=pending)
    )
    return Edit(
        set={"revision": changed_document["revision"]},
        merge={"values": changed_document["values"], "pending": changed_document["pending"]},
        without={
            "values": escaped(dict.fromkeys(base.values.keys() - state.values.keys())).keys(),
            "pending": [task_id.hex() for task_id in base.pending.keys() - state.pending.keys()],
        },
    )


async def _forget_state(tables: LedgerTables) -> bool:
    states = await tables.state.read([STATE_ID])
    edit = Edit(set={"values": {}, "pending": {}}, inc={"revision": 1})
    await tables.state.change([Write(STATE_ID, {}, edit)])
    return any(document["values"] for document in states.values())


def _document(state: StoredState) -> Document:
    """Return the document that stores a state."""
    return {
        "_id": STATE_ID,
        "revision": state.revision,
        "values": escaped(dict(state.values)),
        "pending": {
            task_id.hex(): {"fence": added.fence, "sums": escaped(dict(added.sums))}
            for task_id, added in state.pending.items()
        },
    }


def _stored_state(document: Mapping[str, Any]) -> StoredState:
    """Return the state that a document stores."""
    return StoredState(
        revision=document["revision"],
        values={name: frozen(value) for name, value in unescaped(dict(document["values"])).items()},
        pending={
            bytes.fromhex(task_id): PageSums(added["fence"], unescaped(dict(added["sums"])))
            for task_id, added in document["pending"].items()
        },
    )
