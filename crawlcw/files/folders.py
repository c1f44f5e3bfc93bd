"""The folders that files are saved to, on a disk or in a remote store: each content once.

A file is at `FOLDER/3f/3fa2...-film.mp4`, the name beginning with its checksum, so
the folder itself is the index of what it has, from whatever process. Files that are on
their way are beside, in `.parts`, or for a remote store in `.crawlcw/parts` here.
"""

import errno
from pathlib import Path
from typing import Any, Protocol

from crawlcw.files import remote
from crawlcw.files.partial import PartialFile, exclusive, sync_folder

#: What file systems say of a name that they do not take.
_NAME_REFUSED = (errno.EINVAL, errno.EILSEQ, errno.ENAMETOOLONG)
_REMOTE_PARTS = Path(".crawlcw/parts")


class Folder(Protocol):
    """A place for whole files; blocking, for any thread."""

    @property
    def parts(self) -> Path:
        """Where files are while they come."""

    def keep(self, part: PartialFile, *, sha256: str, name: str) -> str:
        """Put a whole file in its place, and return its path.

        Where there is one of that content already, *part* is dropped, and the path is
        that one's. Raises `OSError`, or what a remote store raises.
        """


def folder(place: str) -> Folder:
    """Return the folder at *place*; raises `UsageError` for a store that cannot be opened."""
    return _RemoteFolder(place) if remote.is_remote(place) else _LocalFolder(Path(place))


class _LocalFolder:
    def __init__(self, place: Path) -> None:
        self._place = place
        self.parts = place / ".parts"

    def keep(self, part: PartialFile, *, sha256: str, name: str) -> str:
        bucket = self._place / sha256[:2]
        is_new = not bucket.exists()
        bucket.mkdir(exist_ok=True)
        # Two that come at once must not both find nothing.
        with exclusive(self.parts / "lock"):
            known = next((each for each in bucket.iterdir() if each.name.startswith(sha256)), None)
            target = known or bucket / name
            is_kept = known is None or known.stat().st_size != part.size
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
                sync_folder(self._place)
        else:
            part.discard()
        return str(target)


class _RemoteFolder:
    def __init__(self, place: str) -> None:
        self._store, path = remote.filesystem(place)
        self._path = path.rstrip("/")
        self.parts = _REMOTE_PARTS

    def keep(self, part: PartialFile, *, sha256: str, name: str) -> str:
        bucket = f"{self._path}/{sha256[:2]}"
        known = self._known(bucket, sha256)
        target = f"{bucket}/{name}" if known is None else known["name"]
        # Where a store shows what is being written, a crash leaves less.
        if known is None or known["size"] != part.size:
            self._store.makedirs(bucket, exist_ok=True)
            self._store.put_file(str(part.path), target)
        part.discard()
        return str(self._store.unstrip_protocol(target))

    def _known(self, bucket: str, sha256: str) -> dict[str, Any] | None:
        self._store.invalidate_cache(bucket)
        try:
            found = self._store.ls(bucket, detail=True)
        except FileNotFoundError:
            return None
        names = (each for each in found if each["name"].rpartition("/")[2].startswith(sha256))
        return next(names, None)
