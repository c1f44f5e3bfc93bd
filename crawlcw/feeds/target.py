"""Targets of the option `-o`: a file, a device, stdout or a store.

A file appears only when it is complete. The extension of a target's file name selects the format
and the compression.
"""

import gzip
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

from crawlcw.errors import UsageError
from crawlcw.files.folders import filesystem, is_remote

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

STDOUT = "-"
#: The formats that need no other package.
BUILT_IN = ("jsonl", "json", "csv")
#: Map from file extensions to formats, for extensions that differ from the format's name.
_EXTENSIONS = {
    ".jl": "jsonl",
    ".ndjson": "jsonl",
}
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Location, format and compression of an export."""

    location: str  #: a path, a URL such as `s3://bucket/key`, or `-` for stdout
    format: str  #: one of `format_names`
    compression: str | None = None  #: `gzip`, `zstd` or None
    item_class: str | None = None  #: name of the class of the items to write; None: all items

    @property
    def is_stdout(self) -> bool:
        """Whether the export goes to stdout."""
        return self.location == STDOUT

    @property
    def name(self) -> str:
        """The location for a message."""
        return "stdout" if self.is_stdout else self.location

    @property
    def is_remote(self) -> bool:
        """Whether the location is a URL, which fsspec opens."""
        return is_remote(self.location)

    def takes(self, item_class: str) -> bool:
        """Return whether the target takes items of a class; the class of a mapping is `dict`.

        The last part of a recorded name is enough: `Book` takes `shop.items:Book` too.
        """
        return self.item_class in (None, item_class, re.split("[:.]", item_class)[-1])

    @classmethod
    def parse(cls, text: str) -> "Target":
        """Return the target for *text*: a path or URL with an extension, `-`, or `-:FORMAT`.

        `:CLASS` may follow each of them, except `-`. A path may contain colons too, so *text* has a
        class only if it is no target as a whole. Raises `UsageError` for an unknown extension, and
        for a path that this user cannot access.
        """
        try:
            return cls._without_class(text)
        except UsageError:
            for colon in re.finditer(":", text):
                location, item_class = text[: colon.start()], text[colon.end() :]
                if item_class and "/" not in item_class and location != STDOUT:
                    with suppress(UsageError):
                        return replace(cls._without_class(location), item_class=item_class)
            raise

    @classmethod
    def _without_class(cls, text: str) -> "Target":
        name, colon, form = text.partition(":")
        if name == STDOUT and (colon or not form):
            form = form if colon else "jsonl"
            if form not in BUILT_IN and form not in format_names():
                formats = ", -:".join(format_names())
                raise UsageError(f"{form!r} is not a format: write -:{formats}")
            return cls(location=STDOUT, format=form)
        path = Path(text)
        try:
            is_special = path.exists() and not path.is_file() and not path.is_dir()
        except OSError as error:
            raise UsageError(f"cannot write {text}: {error.strerror}") from None
        if is_special:
            # A device or a named pipe has no extension that names a format, so write JSON Lines.
            return cls(location=text, format="jsonl")
        *_, suffix = path.suffixes[-1:] or [""]
        compression = _COMPRESSIONS.get(suffix.lower())
        extension = (path.with_suffix("").suffix if compression else suffix).lower()
        form = _EXTENSIONS.get(extension, extension.removeprefix("."))
        if form not in BUILT_IN and form not in format_names():
            *names, last_name = (f".{name}" for name in format_names())
            raise UsageError(
                f"{text!r} has no known format: end the name with {', '.join(names)} or "
                f"{last_name}, "
                "and then with .gz or .zst to compress it"
            )
        if form == "parquet" and compression:
            raise UsageError(f"{text!r}: a Parquet file is already compressed: remove {suffix}")
        return cls(location=text, format=form, compression=compression)

    def check(self) -> None:
        """Raise `UsageError` early, before a crawl starts, if the target cannot be written.

        For a remote target, only check that its library is installed.
        """
        if self.is_remote:
            filesystem(self.location)
        elif not self.is_stdout:
            _check_file(Path(self.location))


def format_names() -> list[str]:
    """Return the names of the built-in formats and the formats of installed packages."""
    # Import `extensions` late, because this import takes 8 ms, and few crawls need it.
    from crawlcw import extensions

    return [*BUILT_IN, *(n for n in extensions.names(extensions.FEEDS) if n not in BUILT_IN)]


@contextmanager
def opened(target: Target, *, stdout: BinaryIO) -> Iterator[BinaryIO]:
    """Open the target for writing, and replace a file only if the block succeeds.

    Raises `UsageError` if the target cannot be written.
    """
    if target.is_stdout:
        yield stdout
        stdout.flush()
        return
    open_target = _remote if target.is_remote else _replacing
    with (
        naming(target),
        open_target(target.location) as stream,
        _compressing(stream, target.compression) as packed,
    ):
        yield packed


@contextmanager
def naming(target: Target) -> Iterator[None]:
    """Replace an `OSError` of the `with` block by a `UsageError` that names the target."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UsageError(f"cannot write {target.name}: {error.strerror or error}") from error


@contextmanager
def _compressing(stream: BinaryIO, compression: str | None) -> Iterator[BinaryIO]:
    if compression is None:
        yield stream
    elif compression == "gzip":
        # Omit the time and the file name from gzip's header, so that equal items give equal bytes.
        with gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0) as packed:
            yield cast("BinaryIO", packed)
    else:
        with zstd.ZstdFile(stream, "wb") as packed:
            yield cast("BinaryIO", packed)


@contextmanager
def _replacing(path_text: str) -> Iterator[BinaryIO]:
    """Open `FILE.part`; this file replaces FILE if the `with` block succeeds."""
    # Follow a symbolic link, and replace the file that it points to. Write devices directly.
    target = Path(path_text).resolve()
    if target.exists() and not target.is_file():
        with target.open("wb") as stream:
            yield stream
        return
    part_path = target.with_name(target.name + ".part")
    try:
        with part_path.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        part_path.replace(target)
    finally:
        part_path.unlink(missing_ok=True)


@contextmanager
def _remote(url: str) -> Iterator[BinaryIO]:
    """Open an object of a remote store; most stores publish an object only when it is complete."""
    store, path = filesystem(url)
    stream = store.open(path, "wb")
    try:
        yield stream
    except BaseException:
        # Do not call the stream's `close`, because `close` would publish the incomplete object.
        getattr(stream, "discard", stream.close)()
        raise
    stream.close()


def _check_file(path: Path) -> None:
    folder = path.resolve().parent
    if not folder.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {folder}")
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder")
    for entry in (folder, path) if path.exists() else (folder,):
        if not os.access(entry, os.W_OK):
            raise UsageError(
                f"cannot write {path}: {entry} is read-only, or this user has no write access to it"
            )
