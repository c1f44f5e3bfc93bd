"""The limit on open files of a process: sockets of its fetchers and of the ledger are such.

Where too few are allowed, pages and the ledger's own connections wait for descriptors.
"""

import resource

from crawlcw.errors import SettingsError

#: Connections of a client of MongoDB at the most, by its own default.
_LEDGER = 100
#: The ledger's files, the log, pipes and children.
_OTHERS = 50


def secure(concurrency: int) -> None:
    """Raise this process's limit, which its children inherit, to what its fetchers will need.

    Raises `SettingsError` where the system does not allow that.
    """
    # Twice what may be open at once: connections that rest are open as well, and a spider
    # opens files of its own.
    needed = 2 * (concurrency + _LEDGER + _OTHERS)
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit >= needed:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except (ValueError, OSError):
        raise SettingsError(
            f"concurrency={concurrency} needs {needed:,} file descriptors in each process, and the "
            f"system allows {hard:,}: lower concurrency, or raise that limit (ulimit -Hn)"
        ) from None
