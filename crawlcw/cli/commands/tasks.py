"""`crawlcw tasks`: which tasks there are of a status, a time, a reason; and all about one."""

import sys
from collections.abc import AsyncIterator
from dataclasses import replace

import click

from crawlcw.cli import ledger_option, loading, loop, selecting, task_objects
from crawlcw.cli.selection import Selection, selection_options
from crawlcw.cli.terminal import logs
from crawlcw.errors import UsageError
from crawlcw.feeds import inert
from crawlcw.ledger.protocol import Cursor, Ledger, TaskFilter
from crawlcw.model import values
from crawlcw.model.sanitize import printable
from crawlcw.model.task import Record, Status

_PAGE = 200
_LONGEST_KEY = 70

_EXAMPLES = """\
\b
Examples:
    crawlcw tasks books --status ignored --reason timeout --since 1h
    crawlcw tasks books --url-prefix https://books.example/new/ --json --limit 0
"""


@click.command("tasks", epilog=_EXAMPLES)
@click.argument("name")
@ledger_option.ledger_option
@click.option("--key", metavar="KEY", help="This task alone: its key, or its URL in a crawl.")
@selection_options(statuses=tuple(Status), host_names=("--host", "--stage"))
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    help="How many at most; 0: all.",
)
@click.option("--json", "as_json", is_flag=True, help="All about each, one JSON object a line.")
@logs.level_option
def command(
    *,
    name: str,
    ledger_url: str,
    key: str | None,
    selection: Selection,
    limit: int,
    as_json: bool,
    log_level: str | None,
) -> None:
    """List tasks of NAME, a use case or a spider: the last changed first."""
    logs.set_up(log_level or "warning")
    spider = loading.name_of(name)
    loop.run(_list(spider, ledger_url, selection, key=key, limit=limit, as_json=as_json))


async def _list(
    name: str,
    ledger_url: str,
    selection: Selection,
    *,
    key: str | None,
    limit: int,
    as_json: bool,
) -> None:
    async with ledger_option.opened(ledger_url, name) as ledger:
        chosen = selection.filter(ledger)
        if key is not None:
            chosen = replace(chosen, ids=(selecting.task_of(ledger, key),))
        shown = 0
        async for record in _found(ledger, chosen, limit=limit):
            line = values.to_json(task_objects.whole(record)) if as_json else _line(record)
            click.echo(inert.visible(line + "\n") if as_json else line, nl=not as_json)
            shown += 1
        if key is not None and not shown:
            raise UsageError(f"{name} has no task {key!r} that matches the other options")


async def _found(ledger: Ledger, chosen: TaskFilter, *, limit: int) -> AsyncIterator[Record]:
    after: Cursor | None = None
    left = limit or sys.maxsize
    while left:
        records = await ledger.queries.find(chosen, limit=min(left, _PAGE), after=after)
        for record in records:
            yield record
        if len(records) < min(left, _PAGE):
            return
        left -= len(records)
        last = records[-1].task
        after = Cursor(update_time=last.update_time, id=last.id)


def _line(record: Record) -> str:
    task = record.task
    why = f" {task.reason}" if task.reason else ""
    said = f": {record.errors[-1].message}" if why and record.errors else ""
    holder = f" by {task.lock.partition(':')[0]}" if task.lock else ""
    return printable(
        f"{task.update_time:%Y-%m-%dT%H:%M:%SZ} {task.status.name.lower():<10} {task.host:<16} "
        f"{printable(task.url, limit=_LONGEST_KEY)}{why}{said}{holder}"
    )
