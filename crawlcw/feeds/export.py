"""Export the recorded items to one or more targets, in one pass and with constant memory.

`follow` writes the existing items, and then each new item when a crawl records it.
"""

import asyncio
import difflib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, BinaryIO

from crawlcw.errors import UsageError
from crawlcw.feeds import forms
from crawlcw.feeds.output import Output
from crawlcw.feeds.target import Target
from crawlcw.ledger.protocol import Dimension, ItemRow, Ledger, TaskFilter
from crawlcw.model.sanitize import printable
from crawlcw.model.task import Record, Status

logger = logging.getLogger(__name__)

#: Number of items after which the export lets other tasks of the event loop run.
_BATCH_SIZE = 1_000
#: The class of an item that the spider yielded as a mapping.
MAPPING = "dict"
#: Number and length of the names in an error.
_MAX_NAMES, _MAX_NAME_LENGTH = 20, 60
#: Seconds between two polls of the ledger.
_POLL_INTERVAL_S = 1.0
#: Each poll reads the outcomes of this last period, because outcomes may reach the ledger late.
_MAX_DELAY = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemSelection:
    """Selection of the items and the fields that an export writes."""

    fields: Sequence[str] | None = None  #: fields to write, in the order of writing; None: all
    with_meta: bool = False  #: whether to add the page's `_url` and `_fetched_at`
    fetched_since: datetime | None = None  #: oldest fetch time of exported pages; None: any
    callback: str | None = None  #: callback of the items' pages; None: any
    versions: bool = False  #: whether to export the items of a page's earlier visits too
    defuse: bool = True  #: whether to escape CSV cells that look like formulas

    def newer_than(self, fetched_since: datetime) -> "ItemSelection":
        """Return a copy of the selection, limited to pages fetched at *fetched_since* or later."""
        return replace(self, fetched_since=fetched_since)


async def export(
    ledger: Ledger, targets: Collection[Target], selection: ItemSelection, *, stdout: BinaryIO
) -> int:
    """Write the items to all *targets*; return the number of items.

    Each target gets all items of its class or is not written; `-` is *stdout*. Raises `UsageError`
    if a target cannot be written, or if no task has the callback or no item a field of *selection*.
    If no item has the class of a target, or if a writer of another package fails, the export first
    completes the other targets, and then raises the error.
    """
    await _check_callback(ledger, selection)
    count = 0
    fields = _FieldCheck(selection)
    columns = selection.fields
    if columns is not None and selection.with_meta:
        columns = list(dict.fromkeys([*columns, "_url", "_fetched_at"]))
    outputs = [
        Output(target, columns=columns, defuse=selection.defuse, stdout=stdout)
        for target in targets
    ]
    outputs_by_class: dict[str, list[Output]] = {}
    with ExitStack() as stack:
        for output in outputs:
            stack.enter_context(output)
        row_count = 0
        async for row in _rows(ledger, selection):
            row_count += 1
            item_class = row.item_class or MAPPING
            if (takers := outputs_by_class.get(item_class)) is None:
                takers = [output for output in outputs if output.target.takes(item_class)]
                outputs_by_class[item_class] = takers
                for output in takers:
                    output.classes.append(item_class)
            if takers:
                item = fields_of(row, selection)
                fields.note(row, item)
                for output in takers:
                    output.write(item)
                count += 1
            if row_count % _BATCH_SIZE == 0:
                # Let the event loop handle signals, because a ledger in memory never waits.
                await asyncio.sleep(0)
        fields.check()
        for output in outputs:
            _finish(output, outputs_by_class)
    if failures := [output.failure for output in outputs if output.failure]:
        raise UsageError("; ".join(failures))
    return count


def _finish(output: Output, classes: Collection[str]) -> None:
    """Complete an output; discard it if no item has its class, although items have *classes*."""
    if classes and not output.classes:
        output.discard(_no_class(output.target, classes))
    output.finish()
    if output.is_table and len(output.classes) > 1:
        _advise_class(output)


class _FieldCheck:
    """Finds the fields that the user has selected and that no exported item has."""

    def __init__(self, selection: ItemSelection) -> None:
        self._unseen = set(selection.fields or ())
        self._names: dict[str, None] = {}
        self._count = 0

    def note(self, row: ItemRow, item: Mapping[str, Any]) -> None:
        """Note the fields of an exported item; *item* has only the fields of the selection."""
        if not self._unseen:
            return
        self._unseen -= item.keys()
        self._count += 1
        if self._count <= _BATCH_SIZE:  # bounds the memory for names that pages make up
            self._names.update(dict.fromkeys(row.item))

    def check(self) -> None:
        """Raise `UsageError` if items were exported, and none of them has one of the fields."""
        if self._unseen and self._count:
            name = min(self._unseen)
            raise UsageError(
                f"no exported item has the field {name!r}: {_alternatives(name, self._names)}"
            )


async def _check_callback(ledger: Ledger, selection: ItemSelection) -> None:
    """Raise `UsageError` if the ledger has tasks, but none with the callback of *selection*."""
    if selection.callback is not None:
        names = [str(group.value) for group in await ledger.groups.by(Dimension.CALLBACK)]
        if names and selection.callback not in names:
            alternatives = _alternatives(selection.callback, names)
            raise UsageError(f"no task has the callback {selection.callback!r}: {alternatives}")


def _no_class(target: Target, classes: Collection[str]) -> str:
    name = target.item_class or ""
    return (
        f"{target.name} is not written, because no exported item has the class {name!r}: "
        f"{_alternatives(name, classes)}"
    )


def _alternatives(name: str, names: Collection[str]) -> str:
    """Return the end of an error: the name that resembles *name*, and all *names* that exist."""
    # Names of fields may be crawled text.
    shown_names = [printable(known_name, limit=_MAX_NAME_LENGTH) for known_name in names]
    close_names = difflib.get_close_matches(name, shown_names, n=1)
    hint = f"did you mean {close_names[0]}? " if close_names else ""
    rest = ", ..." if len(shown_names) > _MAX_NAMES else ""
    return f"{hint}there are {', '.join(shown_names[:_MAX_NAMES])}{rest}"


def _advise_class(output: Output) -> None:
    names = [printable(name) for name in sorted(output.classes)]
    location = f"-:{output.target.format}" if output.target.is_stdout else output.target.location
    logger.warning(
        "%s mixes the columns of %s: -o %s:%s writes only the items of one class",
        output.target.name,
        ", ".join(names),
        location,
        names[0],
        extra={"event": "mixed_classes", "classes": len(names)},
    )


def check(targets: Sequence[Target]) -> None:
    """Raise `UsageError` if a target cannot be written, or if two of *targets* are the same."""
    for target in targets:
        forms.writer_class(target.format)
        target.check()
    names = [target.location for target in targets]
    if duplicate := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"-o {duplicate} occurs twice: remove one")


async def _rows(ledger: Ledger, selection: ItemSelection) -> AsyncIterator[ItemRow]:
    fetched_since = selection.fetched_since
    if selection.versions:
        rows = ledger.queries.versions()
    else:
        # The query may return tasks without new items, because a visit of an unchanged page changes
        # only the task's status. The query misses no new items, because each fetch changes the
        # task's status.
        task_filter = TaskFilter(changed_since=fetched_since, callback=selection.callback)
        rows = ledger.queries.items(None if task_filter == TaskFilter() else task_filter)
    async for row in rows:
        if fetched_since is None or row.fetched_at >= fetched_since:
            yield row


def fields_of(row: ItemRow, selection: ItemSelection) -> Mapping[str, Any]:
    """Return the fields of an item that the export writes."""
    item = row.item
    if selection.fields is not None:
        item = {name: item[name] for name in selection.fields if name in item}
    if selection.with_meta:
        item = {**item, "_url": row.url, "_fetched_at": row.fetched_at}
    return item


async def follow(
    ledger: Ledger,
    target: Target,
    selection: ItemSelection,
    *,
    stdout: BinaryIO,
    poll_interval_s: float = _POLL_INTERVAL_S,
) -> int:
    """Write items to *stdout* as JSON Lines until the ledger is drained; return the item count.

    Only the class of *target* counts. If a page is fetched again, its items are written again. If
    the outcome of a page reaches the ledger more than a minute late, the page's items may be
    missing. Raises `UsageError` at the end if no item has the class or one of the fields.
    """
    await _check_callback(ledger, selection)
    lines = forms.JsonLines(stdout)
    count = 0
    fields = _FieldCheck(selection)
    classes: dict[str, bool] = {}  #: whether *target* takes the items of a class
    async with aclosing(_new_rows(ledger, selection, stdout.flush, poll_interval_s)) as rows:
        async for row in rows:
            item_class = row.item_class or MAPPING
            if item_class not in classes:
                classes[item_class] = target.takes(item_class)
            if classes[item_class]:
                item = fields_of(row, selection)
                fields.note(row, item)
                lines.write(item)
                count += 1
    if classes and not any(classes.values()):
        raise UsageError(_no_class(target, classes))
    fields.check()
    return count


async def _new_rows(
    ledger: Ledger, selection: ItemSelection, on_poll: Callable[[], None], interval: float
) -> AsyncGenerator[ItemRow, None]:
    """Yield items, and call *on_poll* after each poll of the ledger."""
    finished = TaskFilter(
        statuses=(Status.FINISHED,),
        changed_since=selection.fetched_since,
        callback=selection.callback,
    )
    start = ledger.now() - _MAX_DELAY
    async for row in ledger.queries.items(replace(finished, changed_before=start)):
        yield row
    seen_visits: dict[tuple[bytes, int], datetime] = {}  #: last minute's visits
    drained = False
    while True:
        now = ledger.now()
        poll_start = max(start, now - _MAX_DELAY, selection.fetched_since or start)
        task_filter = replace(finished, changed_since=poll_start)
        # Write the items in the order in which their tasks changed.
        for finished_record in [record async for record in ledger.queries.walk(task_filter)][::-1]:
            visit = (finished_record.task.id, finished_record.task.settled)
            if visit in seen_visits:
                continue
            seen_visits[visit] = finished_record.task.update_time
            for row in await _items(ledger, finished_record):
                yield row
        seen_visits = {
            visit: visited_at
            for visit, visited_at in seen_visits.items()
            if visited_at >= poll_start
        }
        on_poll()
        if drained:
            return
        # If no task is due, poll once more, so that the last poll finds all recorded items.
        drained = await ledger.queries.next_due() is None
        if not drained:
            await asyncio.sleep(interval)


async def _items(ledger: Ledger, record: Record) -> list[ItemRow]:
    full_record = await ledger.tasks.get(record.task.id)
    if full_record is None:
        return []
    url = full_record.response.final_url if full_record.response else full_record.task.url
    return [
        ItemRow(item=item, url=url, fetched_at=full_record.task.update_time)
        for item in full_record.items
    ]
