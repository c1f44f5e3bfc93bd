"""Translate filters and changes of tasks to the tests and edits that every store applies.

A prefix becomes one range of texts, because every store orders texts by code points.
"""

from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from crawlcw.errors import FetchError, LedgerUnavailableError
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.port import (
    After,
    Among,
    AtMost,
    Containing,
    Edit,
    LedgerTables,
    Listed,
    P,
    Store,
    T,
    Where,
    Within,
    Work,
)
from crawlcw.ledger.values import Cursor, TaskFilter
from crawlcw.model import urls
from crawlcw.model.task import WAITING
from crawlcw.model.transitions import BulkChange

#: Maximum number of tasks that one read examines in search of matches.
SCAN_LIMIT = 50_000
_MAX_RESUMES = 5
_LAST_CODE_POINT = 0x10FFFF
#: Surrogates never occur in a text that is stored as UTF-8, so `beginning_with` skips them.
_SURROGATES = range(0xD800, 0xE000)
#: The URL of every page begins with this text, because its scheme is `http` or `https`.
_EVERY_SCHEME = "http"
#: The smallest difference of two times in a ledger.
_MILLISECOND = timedelta(milliseconds=1)


def where_of(selection: TaskFilter, kind: LedgerKind) -> dict[str, Any]:
    """Return the tests of a task filter, except its `ids`, in the form of `port.Where`."""
    selection = simplified(selection, kind)
    is_bound = selection.changed_since is not None or selection.changed_before is not None
    tests = {
        "status": Among(tuple(int(status) for status in selection.statuses)),
        "update_time": Within(selection.changed_since, selection.changed_before)
        if is_bound
        else None,
        "host": selection.host,
        "reason": _reason_test(selection),
        "callback": selection.callback,
        "url": _url_test(selection),
        "due": None if selection.due_by is None else AtMost(selection.due_by),
    }
    return {name: test for name, test in tests.items() if test is not None}


def _reason_test(selection: TaskFilter) -> Any:
    if selection.reasons is None:
        return None if selection.reason is None else str(selection.reason)
    return Among(sorted(str(r) for r in set(selection.reasons) if selection.reason in (None, r)))


def _url_test(selection: TaskFilter) -> Any:
    if selection.url is not None:
        return selection.url
    prefix = beginning_with(selection.url_prefix) if selection.url_prefix else None
    if not selection.containing:
        return prefix
    return Containing(selection.containing, prefix or Within(None, None))


def edit_of(
    change: BulkChange, now: datetime, extra_fields: Mapping[str, Any] | None = None
) -> Edit:
    """Return an `Edit` with the fields of a bulk change and with *extra_fields*."""
    return Edit(
        set={
            "status": int(change.to_status),
            "due": now if change.to_status in WAITING else None,
            "update_time": now,
            "reason": None,
            **dict.fromkeys(change.resets, 0),
            **dict.fromkeys(change.forgets),
            **(extra_fields or {}),
        },
        inc={"fence": 1} if change.raises_fence else {},
        # A quarantined task keeps its `quarantine_fence`, because this fence is above 0.
        raise_to={"quarantine_fence": 0} if change.ends_leases else {},
    )


def with_end(selection: TaskFilter, now: datetime) -> TaskFilter:
    """Return the filter; if it has no `changed_before`, set `changed_before` to *now*."""
    return (
        replace(selection, changed_before=now + _MILLISECOND)
        if selection.changed_before is None
        else selection
    )


def after_key(key: str | None) -> Where:
    """Return a test for a key above *key*, or a test for every key if *key* is None."""
    return {} if key is None else {"_id": After(key)}


async def resumed(store: Store, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call *work* for a read; repeat the call a few times while the ledger is unavailable."""
    for _ in range(_MAX_RESUMES):
        with suppress(LedgerUnavailableError):
            return await store.reading(work, *args, **kwargs)
    return await store.reading(work, *args, **kwargs)


def batches(values: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of at most *size* values, in the order of the values."""
    value_iterator = iter(values)
    while batch := [*islice(value_iterator, size)]:
        yield batch


async def walk(
    run_read: Callable[..., Awaitable[Listed]],
    where: Where,
    *,
    batch_size: int,
    ids: Collection[bytes] | None = None,
) -> AsyncGenerator[list[bytes], None]:
    """Yield batches of *ids*, or, if *ids* is None, of the ids of the tasks that pass *where*.

    Without *ids*, the task that changed most recently comes first. *run_read* calls a function that
    reads the ledger; it may be `port.Store.reading`. A later write must test each task again,
    because the task may have changed after the read, and because `walk` does not test *ids*.
    """
    if ids is not None:
        for batch in batches(dict.fromkeys(ids), batch_size):
            yield batch
        return
    next_cursor: Cursor | None = None
    while True:
        cursors, next_cursor = await run_read(listed, where, batch_size, SCAN_LIMIT, next_cursor)
        if cursors:
            yield [cursor.id for cursor in cursors]
        if next_cursor is None:
            return


async def listed(
    tables: LedgerTables, where: Where, limit: int, scan_limit: int, cursor: Cursor | None
) -> Listed:
    """See `port.Tasks.listed`."""
    return await tables.tasks.listed(where, limit=limit, scan_limit=scan_limit, cursor=cursor)


def beginning_with(prefix: str) -> Within:
    """Return the range that contains exactly the texts that begin with *prefix*."""
    stem = prefix.rstrip(chr(_LAST_CODE_POINT))
    if not stem:
        return Within(prefix, None)
    next_code_point = ord(stem[-1]) + 1
    return Within(
        prefix,
        stem[:-1] + chr(_SURROGATES.stop if next_code_point in _SURROGATES else next_code_point),
    )


def simplified(selection: TaskFilter, kind: LedgerKind) -> TaskFilter:
    """Return *selection* with the host of its URL or prefix, so that a store uses the host's index.

    If every URL begins with the prefix, the result has no URL prefix. The filter does not change if
    the URL prefix ends within the host's name, or if the tasks have keys instead of URLs.
    """
    beginning = selection.url or selection.url_prefix
    if kind.tracked or not beginning:
        return selection
    if _EVERY_SCHEME.startswith(beginning):
        return replace(selection, url_prefix=None)
    if selection.host is not None:
        return selection
    return replace(selection, host=_host_of(beginning))


def _host_of(prefix: str) -> str | None:
    scheme, _, rest = prefix.partition("://")
    authority, slash, _ = rest.partition("/")
    if not slash:
        return None
    origin = f"{scheme}://{authority}/"
    try:
        location = urls.locate(origin)
    except FetchError:
        return None
    # The URLs of tasks are normalised, so a prefix with another spelling of its origin has no task.
    return location.host if location.url == origin else None
