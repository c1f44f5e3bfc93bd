"""Kind of a ledger (a spider's pages or a use case's tracked tasks), and number of its format."""

from enum import Enum
from typing import Self

from crawlcw.errors import LedgerFormatError, LedgerKindError

#: Number of the format, which rises when the names or meaning of stored fields change in any store.
FORMAT = 2


class LedgerKind(Enum):
    """Kind of a ledger's tasks; the value in `--json` distinguishes spiders from use cases."""

    SPIDER = "spider"
    USE_CASE = "use_case"

    @classmethod
    def of(cls, tracked: object) -> Self:
        """Return the kind of a ledger; *tracked* is the stored flag of a use case's ledger."""
        return cls.USE_CASE if tracked else cls.SPIDER

    @property
    def tracked(self) -> bool:
        """Whether the ledger's tasks are tracked tasks of a use case, not pages."""
        return self is LedgerKind.USE_CASE

    def __str__(self) -> str:
        """Return the kind's name for error messages."""
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

    The message begins with *ledger*, the ledger's name, and suggests to use *other* instead.
    """
    if recorded is not expected:
        raise LedgerKindError(
            f"{ledger} holds a {recorded} named {name}, not a {expected}: "
            f"give the {expected} another name, or use {other}"
        )


def check_format(recorded: object, name: str) -> None:
    """Raise `LedgerFormatError` if *recorded* is not the format that this version reads."""
    if recorded != FORMAT:
        raise LedgerFormatError(
            f"another version of crawlcw wrote the data of {name} (format {recorded or 'unknown'}, "
            f"this one reads {FORMAT}): `crawlcw drop {name}` with the same --ledger deletes it"
        )
