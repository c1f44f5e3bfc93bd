"""Tasks that the ledger is known to have, so that they need not be added again.

A hint that saves a write: most links of a page lead to pages already known. A
task that is not in here may be in the ledger all the same.
"""

from collections.abc import Iterable

#: Two generations of this many ids of 16 bytes: about 20 MB.
_GENERATION = 100_000


class SeenFilter:
    """A bounded set of task ids that forgets the oldest."""

    def __init__(self, *, generation: int = _GENERATION) -> None:
        self._size = generation
        self._young: set[bytes] = set()
        self._old: set[bytes] = set()

    def __contains__(self, task_id: object) -> bool:
        return task_id in self._young or task_id in self._old

    def add(self, task_ids: Iterable[bytes]) -> None:
        """Remember ids that the ledger has acknowledged."""
        self._young.update(task_ids)
        if len(self._young) > self._size:
            self._old, self._young = self._young, set()
