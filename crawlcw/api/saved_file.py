"""A file that was saved instead of being read into memory."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFile:
    """What became of a request with `save_to`; plain values, so it can be part of an item."""

    path: str  #: `save_to` and what the file is called there; files of one content have one path
    sha256: str  #: of its bytes, in hexadecimal
    size: int  #: bytes
