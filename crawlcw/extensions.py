"""Extensions: entry points of installed packages, by group and name.

A group is one kind of extension. The name of the entry point is the word that a user writes: the
name of a command, the name of a layer, a file extension, or the scheme of a ledger's URL. See the
entry points specification of PyPA.
"""

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from crawlcw.errors import CrawlcwError, UsageError
from crawlcw.model.sanitize import describe_error, printable

#: Map from a group of extensions to the kind of its extensions.
KINDS = {
    "crawlcw.commands": "command",
    "crawlcw.feeds": "feed",
    "crawlcw.layers": "layer",
    "crawlcw.stores": "store",
}
COMMANDS, FEEDS, LAYERS, STORES = KINDS


def installed(group: str) -> list[EntryPoint]:
    """Return the extensions of *group* by name; crawlcw uses the first extension of each name."""
    return sorted(entry_points(group=group), key=lambda entry_point: entry_point.name)


def names(group: str) -> list[str]:
    """Return the names of the extensions of *group*, sorted."""
    return list(dict.fromkeys(entry_point.name for entry_point in installed(group)))


def load(group: str, name: str) -> Any:
    """Return the object of an extension, or None if no installed package offers it.

    If two packages offer the name, `load` uses the first in `sys.path`. Raises `UsageError` if the
    object cannot be loaded. If the extension's module raises a `CrawlcwError`, `load` raises that
    error.
    """
    for entry_point in entry_points(group=group, name=name):
        try:
            return entry_point.load()
        except CrawlcwError:
            raise
        except (Exception, SystemExit) as error:  # a foreign package may raise any error
            raise UsageError(
                f"{described(entry_point)} cannot be loaded: {describe_error(error)}"
            ) from error
    return None


def described(entry_point: EntryPoint) -> str:
    """Return text for a message: the kind, the name and the package of an extension."""
    kind = KINDS[entry_point.group]
    return printable(f"the {kind} {entry_point.name!r} of {package(entry_point)}")


def package(entry_point: EntryPoint) -> str:
    """Return the name and the version of the package that offers an extension."""
    distribution = entry_point.dist
    if distribution is None:
        return "an unknown package"
    return f"{distribution.name} {distribution.version}"
