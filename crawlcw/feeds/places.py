"""The places of feeds: a file that appears when it is whole, a device, stdout, a remote store."""

import gzip
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, cast

from crawlcw.errors import UsageError
from crawlcw.feeds.target import Target
from crawlcw.files.remote import filesystem

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


def check(target: Target) -> None:
    """Raise `UsageError` where nothing can be written there, before hours of work are done for it.

    Of a remote place only that it can be opened at all: that its library is installed.
    """
    if target.is_remote:
        filesystem(target.place)
    elif not target.is_stdout:
        _check_file(Path(target.place))


@contextmanager
def opened(target: Target, *, stdout: BinaryIO) -> Iterator[BinaryIO]:
    """Open the place for writing; what was there is replaced when the block ends well.

    Raises `UsageError` where it cannot be written.
    """
    if target.is_stdout:
        yield stdout
        stdout.flush()
        return
    writing = _remote if target.is_remote else _replacing
    with (
        naming(target),
        writing(target.place) as stream,
        _compressing(stream, target.compression) as packed,
    ):
        yield packed


class naming:  # noqa: N801  # a context manager, and entered for every item
    """A block in which what cannot be written is a `UsageError` that names the place."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            place = "stdout" if self._target.is_stdout else self._target.place
            raise UsageError(f"cannot write {place}: {error.strerror or error}") from error


@contextmanager
def _compressing(stream: BinaryIO, compression: str | None) -> Iterator[BinaryIO]:
    if compression is None:
        yield stream
    elif compression == "gzip":
        # Without a time and a name in it, the same items are the same bytes.
        with gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0) as packed:
            yield cast("BinaryIO", packed)
    else:
        with zstd.ZstdFile(stream, "wb") as packed:
            yield cast("BinaryIO", packed)


@contextmanager
def _replacing(place: str) -> Iterator[BinaryIO]:
    """Open `FILE.part`, which becomes the file when the block ends well."""
    # Behind a link, the file is replaced and not the link; a device or a
    # pipe cannot be replaced.
    target = Path(place).resolve()
    if target.exists() and not target.is_file():
        with target.open("wb") as stream:
            yield stream
        return
    part = target.with_name(target.name + ".part")
    try:
        with part.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _remote(place: str) -> Iterator[BinaryIO]:
    """Open an object of a remote store, which most stores show only when it is whole."""
    store, path = filesystem(place)
    stream = store.open(path, "wb")
    try:
        yield stream
    except BaseException:
        # Not `close`, which would make what there is look whole.
        getattr(stream, "discard", stream.close)()
        raise
    stream.close()


def _check_file(path: Path) -> None:
    folder = path.resolve().parent
    if not folder.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {folder}")
    place = path if path.exists() else folder
    if path.is_dir() or not os.access(place, os.W_OK) or not os.access(folder, os.W_OK):
        raise UsageError(f"cannot write {path}: it is a folder, or this user may not write there")
