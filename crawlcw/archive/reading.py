"""Reading stored pages back, whatever has become of their files."""

from collections import OrderedDict
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from crawlcw.archive import records
from crawlcw.archive.files import OPEN
from crawlcw.archive.records import Answer, DamagedRecordError
from crawlcw.model.stored_page import StoredPage

#: Files that are open at once: pages of one time lie in those of as many processes.
_MOST_OPEN = 32


class FileMissingError(Exception):
    """The file of a record is not in the folder, or cannot be opened; the text says which."""


class StoredPages:
    """The folder with a spider's WARC files, to be read; blocking, a context manager."""

    def __init__(self, folder: Path) -> None:
        """Raises `UsageError` without warcio."""
        records.check_installed()
        self._folder = folder
        self._open: OrderedDict[str, BinaryIO] = OrderedDict()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: object, _trace: TracebackType | None
    ) -> None:
        for stream in self._open.values():
            stream.close()
        self._open.clear()

    def read(self, place: StoredPage, *, most: int) -> Answer:
        """Return the answer at *place*; see `records.read`.

        Raises `FileMissingError` or `DamagedRecordError`.
        """
        if not place.is_sound:
            raise DamagedRecordError("the ledger names no place of a record")
        stream = self._stream(place.file)
        try:
            stream.seek(place.offset)
            packed = stream.read(place.length)
        except OSError as error:
            raise DamagedRecordError(f"it cannot be read: {error.strerror}") from None
        if len(packed) < place.length:
            raise DamagedRecordError("the file ends before it")
        return records.read(packed, most=most)

    def _stream(self, name: str) -> BinaryIO:
        if name in self._open:
            self._open.move_to_end(name)
            return self._open[name]
        if len(self._open) >= _MOST_OPEN:
            self._open.popitem(last=False)[1].close()
        self._open[name] = stream = self._opened(name)
        return stream

    def _opened(self, name: str) -> BinaryIO:
        # It loses the second name when its process ends, perhaps between two looks.
        for found in (name, f"{name}{OPEN}", name):
            try:
                return (self._folder / found).open("rb")
            except FileNotFoundError:
                continue
            except OSError as error:
                raise FileMissingError(f"{name} cannot be opened: {error.strerror}") from None
        raise FileMissingError(f"{name} is not in {self._folder}")
