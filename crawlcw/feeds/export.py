"""Export the recorded items to one or more targets, in one pass and constant memory."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, BinaryIO

from crawlcw.errors import UsageError
from crawlcw.feeds import destinations, forms
from crawlcw.feeds.target import Target
from crawlcw.ledger.protocol import ItemRow, Ledger, TaskFilter

#: Number of items after which other tasks of the loop run.
_TURN = 1_000


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
    columns = wanted.fields if wanted.fields is None else [*wanted.fields, *_meta_names(wanted)]
    with ExitStack() as stack:
        writing: list[tuple[Target, forms.JsonLines]] = []
        for target in targets:
            stream = stack.enter_context(destinations.opened(target, stdout=stdout))
            form = forms.form_of(target.format, stream, columns=columns, defuse=wanted.defuse)
            writing.append((target, stack.enter_context(closing(form))))
        async for row in _rows(ledger, wanted):
            item = fields_of(row, wanted)
            for target, form in writing:
                with destinations.naming(target):
                    form.write(item)
            count += 1
            if count % _TURN == 0:
                # A ledger in memory never suspends: signals would have to wait.
                await asyncio.sleep(0)
        for target, form in writing:
            with destinations.naming(target):
                form.finish()
    return count


def check(targets: Sequence[Target]) -> None:
    """Raise `UsageError` if one of *targets* cannot be written, or two are the same."""
    for target in targets:
        forms.check(target.format)
        destinations.check(target)
    names = [target.place for target in targets]
    if doubled := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"-o {doubled} is given twice")


async def _rows(ledger: Ledger, wanted: Wanted) -> AsyncIterator[ItemRow]:
    since = wanted.since
    if wanted.versions:
        rows = ledger.queries.versions()
    else:
        # A superset: a fetch changes the status of its task. But an unchanged page that was
        # visited again has a newer status than its items.
        rows = ledger.queries.items(None if since is None else TaskFilter(since=since))
    async for row in rows:
        if since is None or row.fetched_at >= since:
            yield row


def fields_of(row: ItemRow, wanted: Wanted) -> Mapping[str, Any]:
    """Return the fields of an item to write."""
    item = row.item
    if wanted.fields is not None:
        item = {name: item[name] for name in wanted.fields if name in item}
    if wanted.with_meta:
        item = {**item, "_url": row.url, "_fetched_at": row.fetched_at}
    return item


def _meta_names(wanted: Wanted) -> Sequence[str]:
    return ("_url", "_fetched_at") if wanted.with_meta else ()
