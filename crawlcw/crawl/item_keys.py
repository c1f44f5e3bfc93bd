"""Drop items whose key is already recorded in the ledger, by any process in any run.

`Keys` finds the key of an item in the callback. Before the committer writes outcomes, `Duplicates`
reserves the keys in the ledger, and drops the items whose keys belong to other pages.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Self

from crawlcw.api.spider import Spider
from crawlcw.errors import SpiderError
from crawlcw.ledger.protocol import Ledger
from crawlcw.model import transitions, values
from crawlcw.model.task import Lease
from crawlcw.model.transitions import Settlement

#: The reason of an item that is dropped because its key is recorded.
DUPLICATE = "duplicate"
_DIGEST_BYTES = 16


class Keys:
    """Finds the key of an item by the spider's `item_key`."""

    def __init__(self, spider: Spider) -> None:
        self._item_key = spider.item_key
        self.last_wins = spider.item_key_wins == "last"

    def key_of(self, item: Mapping[str, Any]) -> str | None:
        """Return the digest of an item's key in hex; None for an item without a key.

        Raises `SpiderError` if the key has a type that a ledger cannot store.
        """
        name = self._item_key
        key = item.get(name) if isinstance(name, str) else name(item)
        if key is None:
            return None
        try:
            text = values.to_json({"key": values.clean(key)})
        except (TypeError, ValueError) as error:
            raise SpiderError(f"item_key returned {type(key).__name__}: return a text") from error
        return blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicates:
    """Reserves the keys of items, and drops or replaces items with recorded keys."""

    ledger: Ledger
    keys: Keys
    kept_versions: int  #: see the setting `keep_versions`

    @classmethod
    def of(cls, spider: Spider, ledger: Ledger, kept_versions: int) -> Self | None:
        """Return the object for a spider's items, or None if the items have no keys."""
        if spider.item_key is None:
            return None
        return cls(ledger=ledger, keys=Keys(spider), kept_versions=kept_versions)

    async def drop(
        self,
        settlements: Sequence[Settlement],
        positions: Sequence[Mapping[str, int]],
        items_dropped: Counter[str],
    ) -> list[Settlement]:
        """Return the settlements without duplicate items; count the duplicates in *items_dropped*.

        *positions* has a mapping for each settlement: from an item's key to the item's position.
        """
        lease_by_key = dict[str, Lease]()
        for settlement, position_by_key in zip(settlements, positions, strict=True):
            for key in position_by_key:
                if self.keys.last_wins or key not in lease_by_key:
                    lease_by_key[key] = settlement.lease
        if not lease_by_key:
            return [*settlements]
        reserved = await self.ledger.item_keys.reserve(lease_by_key, replace=self.keys.last_wins)
        kept = list[Settlement]()
        for settlement, position_by_key in zip(settlements, positions, strict=True):
            dropped_positions = {
                position
                for key, position in position_by_key.items()
                if key in reserved.refused or lease_by_key[key] is not settlement.lease
            }
            if not dropped_positions:
                kept.append(settlement)
                continue
            items_dropped[DUPLICATE] += len(dropped_positions)
            kept.append(_without(settlement, dropped_positions))
        for task_id, replaced_keys in reserved.replaced.items():
            await self._remove(task_id, replaced_keys)
        return kept

    async def release(self, settlements: Sequence[Settlement]) -> None:
        """Release the keys of the pages' earlier visits, after the new outcomes are written."""
        for settlement in settlements:
            # A page that was never settled has no keys of an earlier visit.
            if settlement.lease.task.settled and settlement.change.items is not None:
                await self.ledger.item_keys.release(settlement.lease)

    async def _remove(self, task_id: bytes, replaced_keys: set[str]) -> None:
        """Remove items whose keys are in *replaced_keys* from a task that no worker has leased."""
        while (record := await self.ledger.tasks.get(task_id)) is not None:
            items = [item for item in record.items if self.keys.key_of(item) not in replaced_keys]
            settlement = transitions.reparse(
                record.task,
                response=record.response,
                items=tuple(items),
                now=self.ledger.now(),
                kept_versions=self.kept_versions,
            )
            if settlement is None or len(items) == len(record.items):
                return
            # Read the task again, because another process may have replaced its items at the same
            # time. `replace` cannot tell that write from its own, because each raises the fence by
            # one.
            await self.ledger.outcomes.replace([settlement])


def _without(settlement: Settlement, dropped_positions: set[int]) -> Settlement:
    items = settlement.change.items or ()
    kept = tuple(item for n, item in enumerate(items) if n not in dropped_positions)
    return replace(settlement, change=replace(settlement.change, items=kept))
