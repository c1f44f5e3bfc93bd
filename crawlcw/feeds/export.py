"""Export the recorded items to one or more targets, in one pass and constant memory.

`follow` writes them while a crawl records them: the existing ones, then each new one.
"""

import asyncio
import difflib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, aclosing, closing
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, BinaryIO

from crawlcw.errors import UsageError
from crawlcw.feeds import forms
from crawlcw.feeds.target import Target, naming, opened
from crawlcw.ledger.protocol import ItemRow, Ledger, TaskFilter
from crawlcw.model.sanitize import printable
from crawlcw.model.task import Record, Status

logger = logging.getLogger(__name__)

#: Number of items after which other tasks of the loop run.
_TURN = 1_000
#: Seconds between two polls of the ledger.
_EVERY = 1.0
#: How far back each poll looks, because an outcome may be written later than its time.
_LATE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Selection of items and fields."""

    fields: Sequence[str] | None = None  #: only these, in this order; None: all
    with_meta: bool = False  #: `_url` and `_fetched_at` of the page as well
    since: datetime | None = None  #: only items of pages fetched at this time or later
    versions: bool = False  #: items of all kept visits, not only of the last one
    defuse: bool = True  #: escape CSV cells that look like formulas

    def newer_than(self, since: datetime) -> "Wanted":
        """Return the same selection, limited to pages fetched at *since* or later."""
        return replace(self, since=since)


async def export(
    ledger: Ledger, targets: Collection[Target], wanted: Wanted, *, stdout: BinaryIO
) -> int:
    """Write the items to all *targets*, each completely or not at all; return their number.

    `-` is *stdout*. Raises `UsageError` if a target cannot be written.
    """
    count = 0
    unseen_fields, names = set(wanted.fields or ()), set[str]()
    columns = wanted.fields
    if columns is not None and wanted.with_meta:
        columns = [*columns, "_url", "_fetched_at"]
    with ExitStack() as stack:
        outputs: list[tuple[Target, forms.JsonLines]] = []
        for target in targets:
            stream = stack.enter_context(opened(target, stdout=stdout))
            form = forms.form_of(target.format, stream, columns=columns, defuse=wanted.defuse)
            outputs.append((target, stack.enter_context(closing(form))))
        async for row in _rows(ledger, wanted):
            item = fields_of(row, wanted)
            if unseen_fields:
                unseen_fields -= item.keys()
                names.update(row.item if count < _TURN else ())
            for target, form in outputs:
                with naming(target):
                    form.write(item)
            count += 1
            if count % _TURN == 0:
                # A ledger in memory never suspends, so without this signals would have to wait.
                await asyncio.sleep(0)
        for target, form in outputs:
            with naming(target):
                form.finish()
    for name in sorted(unseen_fields if count else ()):
        close_names = difflib.get_close_matches(name, names, n=1)
        hint = f": did you mean {close_names[0]}?" if close_names else ""
        message = f"no exported item has the field {name!r}{hint}"
        logger.warning("%s", printable(message), extra={"event": "no_such_field", "field": name})
    return count


def check(targets: Sequence[Target]) -> None:
    """Raise `UsageError` if one of *targets* cannot be written, or two are the same."""
    for target in targets:
        forms.check(target.format)
        target.check()
    names = [target.place for target in targets]
    if duplicate := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"-o {duplicate} occurs twice: remove one")


async def _rows(ledger: Ledger, selection: Wanted) -> AsyncIterator[ItemRow]:
    fetched_since = selection.since
    if selection.versions:
        rows = ledger.queries.versions()
    else:
        # A superset: a fetch changes the status of its task. But an unchanged page that was
        # visited again has a newer status than its items.
        rows = ledger.queries.items(
            None if fetched_since is None else TaskFilter(changed_since=fetched_since)
        )
    async for row in rows:
        if fetched_since is None or row.fetched_at >= fetched_since:
            yield row


def fields_of(row: ItemRow, wanted: Wanted) -> Mapping[str, Any]:
    """Return the fields of an item to write."""
    item = row.item
    if wanted.fields is not None:
        item = {name: item[name] for name in wanted.fields if name in item}
    if wanted.with_meta:
        item = {**item, "_url": row.url, "_fetched_at": row.fetched_at}
    return item


async def follow(ledger: Ledger, wanted: Wanted, *, stdout: BinaryIO, every: float = _EVERY) -> int:
    """Write all items to *stdout* as JSON Lines, until the ledger is drained; return their number.

    Items of a page that is fetched again are written again. An outcome that is written
    more than a minute after its time may be missed.
    """
    lines = forms.JsonLines(stdout)
    count = 0
    async with aclosing(_new_rows(ledger, wanted, stdout.flush, every)) as rows:
        async for row in rows:
            lines.write(fields_of(row, wanted))
            count += 1
    return count


async def _new_rows(
    ledger: Ledger, selection: Wanted, on_poll: Callable[[], None], interval: float
) -> AsyncGenerator[ItemRow, None]:
    """Yield items; *on_poll* is called after each poll."""
    finished = TaskFilter(statuses=(Status.FINISHED,), changed_since=selection.since)
    start = ledger.now() - _LATE
    async for row in ledger.queries.items(replace(finished, changed_before=start)):
        yield row
    seen_visits: dict[tuple[bytes, int], datetime] = {}  #: visits of the last minute
    drained = False
    while True:
        now = ledger.now()
        poll_start = max(start, now - _LATE, selection.since or start)
        task_filter = replace(finished, changed_since=poll_start)
        # The oldest first.
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
        # Checked before the last poll, which then finds all items recorded by now.
        drained = await ledger.queries.next_due() is None
        if not drained:
            await asyncio.sleep(interval)


async def _items(ledger: Ledger, record: Record) -> list[ItemRow]:
    full_record = await ledger.tasks.get(record.task.id)
    if full_record is None:
        return []
    url = full_record.response.final_url if full_record.response else full_record.task.url
    return [
        ItemRow(item=dict(item), url=url, fetched_at=full_record.task.update_time)
        for item in full_record.items
    ]
