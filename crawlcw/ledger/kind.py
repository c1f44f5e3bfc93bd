"""Kind and format of a ledger: pages of a spider, or tracked tasks of a use case; no upgrades."""

from enum import Enum
from typing import Self

from crawlcw.errors import LedgerFormatError, LedgerKindError

#: Increases when the names or the meaning of stored fields change, in any store.
FORMAT = 2


class LedgerKind(Enum):
    """Kind of a ledger's tasks; the value is the word of `--json` for the name's owner."""

    SPIDER = "spider"
    USE_CASE = "use_case"

    @classmethod
    def of(cls, tracked: object) -> Self:
        """Return the kind of a ledger; the store notes whether its tasks are *tracked*."""
        return cls.USE_CASE if tracked else cls.SPIDER

    @property
    def tracked(self) -> bool:
        """Whether the tasks are tracked tasks, not pages."""
        return self is LedgerKind.USE_CASE

    def __str__(self) -> str:
        """Return the kind as messages call it."""
        return self.value.replace("_", " ")


def check_kind(
    recorded: LedgerKind,
    expected: LedgerKind,
    name: str,
    *,
    ledger: str = "the database",
    other: str = "another database",
) -> None:
    """Raise `LedgerKindError` if the tasks of *name* are not of the kind *expected*.

    *ledger* and *other* are for the message: the ledger, and a ledger in which the name is free.
    """
    if recorded is not expected:
        raise LedgerKindError(
            f"{ledger} holds a {recorded} named {name}, not a {expected}: "
            f"give the {expected} another name, or use {other}"
        )


def check_format(recorded: object, name: str) -> None:
    """Raise `LedgerFormatError` if the data of *name* has another or an unknown (None) format."""
    if recorded != FORMAT:
        raise LedgerFormatError(
            f"another version of crawlcw wrote the data of {name} (format {recorded or 'unknown'}, "
            f"this one reads {FORMAT}): `crawlcw drop {name}` with the same --ledger deletes it"
        )
