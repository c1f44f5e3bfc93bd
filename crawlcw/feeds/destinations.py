"""Export targets: a file, which appears when complete, a device, stdout or a remote store."""

import gzip
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from crawlcw.errors import UsageError
from crawlcw.feeds.target import Target
from crawlcw.files.remote import filesystem

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


def check(target: Target) -> None:
    """Raise `UsageError` if the target cannot be written, before a crawl spends hours on it.

    For a remote target only check that its library is installed.
    """
    if target.is_remote:
        filesystem(target.place)
    elif not target.is_stdout:
        _check_file(Path(target.place))


@contextmanager
def opened(target: Target, *, stdout: BinaryIO) -> Iterator[BinaryIO]:
    """Open the target for writing; a file is replaced at the successful end of the block.

    Raises `UsageError` if it cannot be written.
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


@contextmanager
def naming(target: Target) -> Iterator[None]:
    """Turn an `OSError` within the block into a `UsageError` with the target's name."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        place = "stdout" if target.is_stdout else target.place
        raise UsageError(f"cannot write {place}: {error.strerror or error}") from error


@contextmanager
def _compressing(stream: BinaryIO, compression: str | None) -> Iterator[BinaryIO]:
    if compression is None:
        yield stream
    elif compression == "gzip":
        # Without time and name, equal items give equal bytes.
        with gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0) as packed:
            yield cast("BinaryIO", packed)
    else:
        with zstd.ZstdFile(stream, "wb") as packed:
            yield cast("BinaryIO", packed)


@contextmanager
def _replacing(place: str) -> Iterator[BinaryIO]:
    """Open `FILE.part`, which becomes the file at the successful end of the block."""
    # Replaces the target of a link, not the link; writes to devices and pipes directly.
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
    """Open an object of a remote store; most stores publish it only when complete."""
    store, path = filesystem(place)
    stream = store.open(path, "wb")
    try:
        yield stream
    except BaseException:
        # Not `close`, which would publish the incomplete object.
        getattr(stream, "discard", stream.close)()
        raise
    stream.close()


def _check_file(path: Path) -> None:
    folder = path.resolve().parent
    if not folder.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {folder}")
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder")
    for place in (folder, path) if path.exists() else (folder,):
        if not os.access(place, os.W_OK):
            raise UsageError(
                f"cannot write {path}: {place} is read-only, or this user has no write access to it"
            )
