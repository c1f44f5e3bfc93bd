"""The format of stored ledgers: one number, and no upgrade from another one."""

from crawlcw.errors import LedgerFormatError

#: Changes with the names and the meaning of stored fields, in any store.
FORMAT = 1


def check_format(found: object, name: str) -> None:
    """Raise `LedgerFormatError` if the data of *name* has another format; None: an unknown one."""
    if found != FORMAT:
        raise LedgerFormatError(
            f"another version of crawlcw wrote the data of {name} (format {found or 'unknown'}, "
            f"this one reads {FORMAT}): `crawlcw run {name} --fresh` deletes it and starts again, "
            f"`crawlcw drop {name}` only deletes it"
        )
