"""Where the body of a page is kept: one record of a WARC file. No I/O."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

#: A plain name: what a ledger says must not lead to any other file of the machine.
_NAME = re.compile(r"[\w-][\w.-]{0,249}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPage:
    """A record in the folder of its spider's WARC files."""

    file: str  #: a name, without a path: the folder may be moved
    offset: int  #: bytes before the record
    length: int  #: bytes of the record, as it is packed

    @property
    def is_sound(self) -> bool:
        """Whether it can be a record's place at all, and within the folder."""
        return _NAME.fullmatch(self.file) is not None and self.offset >= 0 and self.length > 0

    @classmethod
    def from_document(cls, found: Mapping[str, Any] | None) -> Self | None:
        """Return what `to_document` was made of; None where nothing is stored."""
        if not found:
            return None
        return cls(file=str(found["file"]), offset=found["offset"], length=found["length"])

    def to_document(self) -> dict[str, Any]:
        """Return it as it is written down with its task."""
        return {"file": self.file, "offset": self.offset, "length": self.length}
