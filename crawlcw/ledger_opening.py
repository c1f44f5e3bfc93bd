"""Open the ledger at a URL; only this module chooses the kind of store.

The module is separate from `assembly`, because most commands and the supervisor need a ledger but
no crawler. Another package can offer a store by an entry point in the group `crawlcw.stores`. The
entry point's name is the scheme of ledger URLs, and its value is the ledger class.
"""

from pathlib import Path
from typing import Protocol, runtime_checkable

import anyio

from crawlcw import extensions
from crawlcw.api.settings import Settings
from crawlcw.errors import LedgerConfigurationError, UsageError
from crawlcw.ledger.copying import CopiedLedger
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.protocol import Ledger

_METHODS = "`open`, `open_existing`, `recorded_names` and `discard`"
#: Path in the URL of a temporary SQLite ledger.
_IN_MEMORY = Path(":memory:")
BUILT_IN = ("sqlite", "mongodb", "mongodb+srv")
DEFAULT_LEDGER = "sqlite:///.crawlcw/ledger.db"


@runtime_checkable
class Opener(Protocol):
    """The interface of a ledger class that an entry point offers.

    All methods must be class or static methods, because crawlcw makes no instance of the class.
    """

    async def open(
        self, url: str, name: str, *, kind: LedgerKind | None, create: bool
    ) -> CopiedLedger:
        """Return the ledger of *name*; see `open_ledger`.

        If *create* is false, `open` raises `UnknownNameError` for a missing ledger, and needs only
        read access to an existing ledger.
        """

    async def open_existing(self, url: str, name: str) -> CopiedLedger:
        """Return the ledger of *name*, and change nothing in it; see `open_for_inspection`."""

    async def recorded_names(self, url: str) -> list[str]:
        """See `recorded_names`."""

    async def discard(self, url: str, name: str) -> None:
        """See `discard`."""


async def open_ledger(
    url: str,
    name: str,
    *,
    settings: Settings | None = None,
    create: bool = True,
    kind: LedgerKind | None = LedgerKind.SPIDER,
) -> CopiedLedger:
    """Return the ledger of the spider named *name* at *url*.

    Forms of *url*:

    - `sqlite:///relative/path`, `sqlite:////absolute/path`
    - `mongodb://host/database`, `mongodb+srv://...`
    - `postgresql://host/database`
    - `sqlite:///:memory:`, a new temporary ledger

    *kind* says whether *name* is a spider or a use case; None accepts both. If *create* is false,
    `open_ledger` creates nothing, needs only read access, and raises `UnknownNameError` (a
    `UsageError`) for an unknown name. Raises `LedgerConfigurationError` or
    `LedgerUnavailableError`.
    """
    if (opener := _registered_opener(url)) is not None:
        return await opener.open(url, name, kind=kind, create=create)
    path = _path(url)
    if path is None:
        from crawlcw.ledger.mongo import MongoLedger  # MongoDB's drivers load slowly

        settings = settings or Settings()
        return await MongoLedger.open(
            url,
            name,
            driver=settings.mongo_driver,
            claims=settings.claim,
            kind=kind,
            create=create,
        )
    from crawlcw.ledger.sqlite import SqliteLedger
    from crawlcw.ledger.sqlite.file_modes import is_read_only

    if path == _IN_MEMORY:
        return await SqliteLedger.open_temporary(name, kind=kind)
    if not create:
        await _check_exists(path)
        if is_read_only(path):
            if name not in await recorded_names(url):
                raise UsageError(f"nothing is recorded for {name!r} in the read-only ledger {path}")
            return await SqliteLedger.open_existing(path, name, kind=kind)
    return await SqliteLedger.open(path, name, kind=kind, create=create)


async def open_tracked(
    url: str, use_case: str, *, driver: str = "pymongo", create: bool = True
) -> Ledger:
    """Return the ledger of the use case named *use_case* at *url*.

    *driver* is the client library for MongoDB. See `open_ledger` for the other arguments.
    """
    settings = Settings(mongo_driver=driver, claim="batch")
    return await open_ledger(
        url, use_case, settings=settings, create=create, kind=LedgerKind.USE_CASE
    )


async def recorded_names(url: str, *, settings: Settings | None = None) -> list[str]:
    """Return the sorted names of spiders and use cases that have tasks in the ledger at *url*.

    The arguments and errors are those of `open_ledger` with `create=False`.
    """
    if (opener := _registered_opener(url)) is not None:
        return await opener.recorded_names(url)
    path = _path(url)
    if path is None:
        from crawlcw.ledger.mongo import MongoLedger

        driver = (settings or Settings()).mongo_driver
        return await MongoLedger.recorded_names(url, driver=driver)
    from crawlcw.ledger.sqlite import marker

    await _check_exists(path)
    return await marker.recorded_names(path)


async def discard(url: str, name: str, *, settings: Settings | None = None) -> None:
    """Delete all data of *name* from the ledger at *url*, whatever the ledger's format."""
    if (opener := _registered_opener(url)) is not None:
        return await opener.discard(url, name)
    path = _path(url)
    if path is None:
        from crawlcw.ledger.mongo import MongoLedger

        driver = (settings or Settings()).mongo_driver
        return await MongoLedger.discard(url, name, driver=driver)
    from crawlcw.ledger.sqlite import SqliteLedger

    return await SqliteLedger.discard(path, name)


async def open_for_inspection(url: str, name: str, *, settings: Settings | None = None) -> Ledger:
    """Return the existing ledger of the spider or use case *name* at *url*, for inspection.

    The arguments and errors are those of `open_ledger` with `create=False`.
    """
    settings = settings or Settings()
    if (opener := _registered_opener(url)) is not None:
        return await opener.open_existing(url, name)
    path = _path(url)
    if path is None:
        from crawlcw.ledger.mongo import MongoLedger

        return await MongoLedger.open_existing(url, name, driver=settings.mongo_driver)
    from crawlcw.ledger.sqlite import SqliteLedger

    await _check_exists(path)
    return await SqliteLedger.open_existing(path, name)


def schemes() -> list[str]:
    """Return the URL schemes of all ledgers, both built-in and from installed packages."""
    return [*BUILT_IN, *extensions.names(extensions.STORES)]


def store(scheme: str) -> Opener | None:
    """Return the class that an installed package offers for *scheme*, or None if no package does.

    Raises `UsageError` if the class cannot be loaded or lacks a method.
    """
    opener = extensions.load(extensions.STORES, scheme)
    if opener is not None and not isinstance(opener, Opener):
        raise UsageError(f"the store of {scheme}:// cannot be used: it needs {_METHODS}")
    return opener


def _registered_opener(url: str) -> Opener | None:
    """Return the class that an entry point offers for *url*, or None for a built-in store."""
    scheme = url.partition("://")[0]
    return None if scheme in BUILT_IN else store(scheme)


def _path(url: str) -> Path | None:
    """Return the file of an SQLite ledger, or None for a ledger on MongoDB."""
    scheme, _, rest = url.partition("://")
    if scheme in ("mongodb", "mongodb+srv"):
        return None
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        return Path(rest[1:])
    raise LedgerConfigurationError(
        f"{_without_password(url)!r} is not a ledger: write sqlite:///path, "
        "mongodb://host/database or postgresql://host/database"
    )


async def _check_exists(path: Path) -> None:
    try:
        exists = await anyio.Path(path).exists()
    except OSError as error:
        raise LedgerConfigurationError(
            f"no access to the ledger {path}: {error.strerror}. Give this user access to each "
            "folder of that path, or choose another ledger with --ledger."
        ) from None
    if not exists:
        raise UsageError(
            f"there is no ledger at {path}: run a spider first, or choose another ledger with "
            "--ledger"
        )


def _without_password(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    credentials, at_sign, host = rest.rpartition("@")
    return f"{scheme}{separator}***@{host}" if at_sign and credentials else url
