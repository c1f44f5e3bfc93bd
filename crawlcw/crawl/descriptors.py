"""Whether a process may open as many files as its fetchers will want, sockets included.

Where it may not, pages wait for descriptors, and the ledger's own connections with
them: that is found out, and mended where the system lets us, before a crawl begins.
"""

import importlib
from typing import Any

from crawlcw.errors import SettingsError

#: Connections of a client of MongoDB at the most, by its own default.
_LEDGER = 100
#: The ledger's files, the log, pipes and children.
_OTHERS = 50


def needed(concurrency: int) -> int:
    """Return how many descriptors a process of so many fetchers is to be allowed.

    Twice what it may have open at once: connections that rest are open as well, and
    a spider opens files of its own.
    """
    return 2 * (concurrency + _LEDGER + _OTHERS)


def secure(concurrency: int) -> None:
    """Raise this process's limit, which its children inherit, to what is `needed`.

    Raises `SettingsError` where the system does not allow that.
    """
    resource = _resource()
    if resource is None:
        return
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = needed(concurrency)
    if limit == resource.RLIM_INFINITY or limit >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (ValueError, OSError):
        raise SettingsError(
            f"concurrency={concurrency} needs {wanted:,} file descriptors in each process, and the "
            f"system allows {hard:,}: lower concurrency, or raise that limit (ulimit -Hn)"
        ) from None


def _resource() -> Any:
    try:
        return importlib.import_module("resource")
    except ImportError:
        return None  # Windows has none
