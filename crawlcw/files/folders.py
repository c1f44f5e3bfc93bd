"""Folders of saved files, on disk or in a remote store, without duplicates.

A saved file has a path such as `FOLDER/3f/3fa2...-film.mp4`. The file's name begins with its
checksum, so every process can find equal files in the folder. Incomplete files are in
`FOLDER/.parts`. Incomplete files for a remote store are in the local folder `.crawlcw/parts`.
"""

import errno
import re
from pathlib import Path
from typing import Any, TypeAlias

from crawlcw.errors import UsageError
from crawlcw.files.partial import PartialFile, exclusive, sync_folder

#: Error numbers of file systems that refuse a file name.
_NAME_REFUSED = (errno.EINVAL, errno.EILSEQ, errno.ENAMETOOLONG)
_REMOTE_PARTS = Path(".crawlcw/parts")


def folder(location: str) -> "Folder":
    """Return the folder at *location*; raises `UsageError` if it is in an unusable store."""
    return _RemoteFolder(location) if is_remote(location) else _LocalFolder(Path(location))


class _LocalFolder:
    """A local folder for complete files; incomplete files are in its folder `.parts`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.parts = path / ".parts"

    def keep(self, part: PartialFile, *, sha256: str, name: str) -> str:
        """Move the complete file *part* into this folder, and return its path.

        If a file with the same content exists, drop *part* and return the path of that file.
        """
        bucket = self._path / sha256[:2]
        is_new = not bucket.exists()
        bucket.mkdir(exist_ok=True)
        # The lock prevents duplicates when two equal files complete at the same time.
        with exclusive(self.parts / "lock"):
            existing_path = next(
                (path for path in bucket.iterdir() if path.name.startswith(sha256)), None
            )
            target = existing_path or bucket / name
            is_kept = existing_path is None or existing_path.stat().st_size != part.size
            if is_kept:
                try:
                    part.move_to(target)
                except (OSError, UnicodeError) as error:
                    if isinstance(error, OSError) and error.errno not in _NAME_REFUSED:
                        raise
                    target = bucket / sha256
                    part.move_to(target)
        if is_kept:
            sync_folder(bucket)
            if is_new:
                sync_folder(self._path)
        else:
            part.discard()
        return str(target)


class _RemoteFolder:
    """A remote folder for complete files, whose `keep` raises the store's own exceptions."""

    def __init__(self, location: str) -> None:
        self._store, path = filesystem(location)
        self._path = path.rstrip("/")
        self.parts = _REMOTE_PARTS

    def keep(self, part: PartialFile, *, sha256: str, name: str) -> str:
        bucket = f"{self._path}/{sha256[:2]}"
        self._store.invalidate_cache(bucket)
        try:
            entries = self._store.ls(bucket, detail=True)
        except FileNotFoundError:
            entries = []
        matches = (
            entry for entry in entries if entry["name"].rpartition("/")[2].startswith(sha256)
        )
        existing = next(matches, None)
        target = f"{bucket}/{name}" if existing is None else existing["name"]
        # If the stored file has another size, a crash has interrupted its upload, so replace it.
        if existing is None or existing["size"] != part.size:
            self._store.makedirs(bucket, exist_ok=True)
            self._store.put_file(str(part.path), target)
        part.discard()
        return str(self._store.unstrip_protocol(target))


Folder: TypeAlias = _LocalFolder | _RemoteFolder


def is_remote(location: str) -> bool:
    """Return whether *location* is a URL of a remote store, not a local path."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", location) is not None


def filesystem(location: str) -> tuple[Any, str]:
    """Return the store and the path of *location*; raises `UsageError` if a library is missing."""
    scheme = location.partition("://")[0]
    try:
        import fsspec

        store, path = fsspec.core.url_to_fs(location)
    except ImportError as error:
        raise UsageError(
            f"{scheme}:// needs fsspec and its library for {scheme}: "
            f"`pip install 'crawlcw[remote]'` ({error})"
        ) from None
    except ValueError as error:
        raise UsageError(f"cannot write to {scheme}://: {error}") from None
    return store, path
