"""Give only the current user access to the ledger's file, because requests contain secrets.

crawlcw creates folders with mode 0700, and the file with 0600. SQLite gives the `-wal` and the
`-shm` file the mode of the database file. The mode of an existing folder does not change.
"""

import logging
import os
import stat
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)

_FOLDER = 0o700
_FILE = 0o600


def make_private(path: Path) -> None:
    """Create the file at *path* and missing folders; only the current user has access to them.

    Raises `OSError` for a folder that cannot be created. If the file cannot be created,
    `make_private` does nothing, because SQLite will report the reason.
    """
    # Create each folder separately, because `mkdir(parents=True)` sets the mode of only one.
    for folder in reversed((path.parent, *path.parent.parents)):
        if not folder.exists():
            folder.mkdir(mode=_FOLDER, exist_ok=True)
    if not path.parent.is_dir():
        path.parent.mkdir(exist_ok=True)  # raises an error that says why
    with suppress(OSError):
        # Do not open an existing file, because `os.close` would remove this process's locks on the
        # file. Another connection may need them. `resolve` follows a symbolic link.
        os.close(os.open(path.resolve(), os.O_RDWR | os.O_CREAT | os.O_EXCL, _FILE))


def is_read_only(path: Path) -> bool:
    """Return whether this user may not change the existing file at *path*."""
    # Resolve a symbolic link, because SQLite creates `-wal` and `-shm` beside the link's target.
    file = path.resolve()
    return not (os.access(file, os.W_OK) and os.access(file.parent, os.W_OK))


def is_still(path: Path) -> bool:
    """Return whether SQLite can read the file at *path* as immutable.

    The file must be read-only, and no process may have it open. If a `-wal` file exists, some
    process has the database open.
    """
    file = path.resolve()
    return (
        os.access(file, os.R_OK)
        and is_read_only(path)
        and not file.with_name(f"{file.name}-wal").exists()
    )


def shut_out_others(path: Path) -> None:
    """Remove the access of all other users to a file that every user may read.

    If only the owner and the group may read a file, the owner chose its mode, so the mode stays.
    """
    for file in (path, *(path.with_name(f"{path.name}{end}") for end in ("-wal", "-shm"))):
        with suppress(FileNotFoundError):
            mode = stat.S_IMODE(file.stat().st_mode)
            if not mode & stat.S_IRWXO:
                continue
            try:
                file.chmod(_FILE)
            except OSError as error:
                logger.warning(
                    "every user may read the ledger %s (mode %o), and crawlcw cannot change that: "
                    "%s",
                    file,
                    mode,
                    error.strerror,
                    extra={"event": "ledger_readable"},
                )
                continue
            if file == path:
                logger.info(
                    "every user could read the ledger %s (mode %o): now only its owner can",
                    file,
                    mode,
                    extra={"event": "ledger_made_private"},
                )
