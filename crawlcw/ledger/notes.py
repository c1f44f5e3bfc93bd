"""Notes beside the tasks: values in the document that names the ledger's kind."""

import re
from collections.abc import Mapping
from typing import Any

from crawlcw.ledger import documents
from crawlcw.ledger.port import Edit, Store, Unit, Write

#: A host may have a quote in its name, and no member of a document may.
_QUOTED = re.compile(r'["\\\x00-\x1f]')


class Notes:
    """A few values that are written down beside the tasks."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def state(self) -> Mapping[str, Any]:
        """Return what crawls have written down of themselves, see `set_state`; empty at first.

        Empty again where the tasks were dropped by other means than `Admin.purge`.
        """
        return await self._store.reading(_read, self._store.name, "state")

    async def set_state(self, state: Mapping[str, Any]) -> None:
        """Write clean values down, durably, beside those not named; None takes one away.

        `Admin.purge` takes away `seeds`: tasks that were added before may be gone.
        """
        await self._store.writing(_change, self._store.name, "state", state)

    async def control(self) -> Mapping[str, Any]:
        """Return the orders to running crawls, see `set_control`; one small read."""
        return await self._store.reading(_read, self._store.name, "control")

    async def set_control(self, control: Mapping[str, Any]) -> None:
        """Write clean values down, durably, beside those not named; None takes one away."""
        await self._store.writing(_change, self._store.name, "control", control)

    async def policy(self) -> Mapping[str, Any]:
        """Return the use case's settings as they are written down; empty where none are."""
        return await self._store.reading(_read, self._store.name, "policy")

    async def set_policy(self, policy: Mapping[str, Any]) -> None:
        """Write settings down, durably, beside those that are not named."""
        await self._store.writing(_merge, self._store.name, Edit(merge={"policy": _named(policy)}))


async def _read(unit: Unit, name: str, part: str) -> Mapping[str, Any]:
    found = await unit.marker.read([name], fields=(part,))
    values: dict[str, Any] = documents.unescaped(found.get(name, {}).get(part) or {})
    return values


async def _change(unit: Unit, name: str, part: str, values: Mapping[str, Any]) -> None:
    kept = {each: value for each, value in values.items() if value is not None}
    gone = _named(dict.fromkeys(values.keys() - kept.keys()))
    await _merge(unit, name, Edit(merge={part: _named(kept)}, without={part: gone.keys()}))


async def _merge(unit: Unit, name: str, edit: Edit) -> None:
    await unit.marker.change([Write(name, {}, edit)])


def _named(values: Mapping[str, Any]) -> dict[str, Any]:
    named: dict[str, Any] = documents.escaped(dict(values))
    return {_QUOTED.sub(lambda c: f"%{ord(c[0]):02X}", name): v for name, v in named.items()}
