"""`crawlcw tasks`: list tasks by status, time or reason."""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace

import click

from crawlcw.cli import ledger_option, loading, loop, options, selecting, task_objects
from crawlcw.cli.selection import Selection, selection_options
from crawlcw.cli.terminal import logs
from crawlcw.errors import UsageError
from crawlcw.feeds import escaping
from crawlcw.ledger.protocol import Ledger
from crawlcw.model import values
from crawlcw.model.sanitize import printable
from crawlcw.model.task import Record, Status, Task

#: Formats a task for output.
Shown = Callable[[Ledger, Record], Awaitable[str]]
_LONGEST_KEY = 70


@click.command("tasks")
@click.argument("name")
@ledger_option.ledger_option
@click.option("--key", metavar="KEY", help="Only this task: its key, or its URL in a crawl.")
@selection_options(statuses=tuple(Status), host_names=("--host", "--stage"))
@options.number_option("--limit", least=0, default=50, about="Limit of the list; 0: all.")
@click.option("--json", "as_json", is_flag=True, help="All fields, one JSON object a line.")
@click.option("--items", is_flag=True, help="With --json, the items of each task as well.")
@logs.log_option
def command(
    *,
    name: str,
    ledger_url: str,
    key: str | None,
    selection: Selection,
    limit: int,
    as_json: bool,
    items: bool,
) -> None:
    """List tasks of NAME, a use case or a spider, the last changed first."""
    if items and not as_json:
        raise UsageError("--items goes with --json")
    shown = _with_items if items else _object if as_json else _row
    loop.run(_list(loading.name_of(name), ledger_url, selection, shown, key=key, limit=limit))


async def _list(
    name: str,
    ledger_url: str,
    selection: Selection,
    shown: Shown,
    *,
    key: str | None,
    limit: int,
) -> None:
    async with ledger_option.opened(ledger_url, name) as ledger:
        chosen = selection.filter(ledger)
        if key is not None:
            chosen = replace(chosen, ids=(selecting.task_of(ledger, key),))
        number = 0
        async with aclosing(ledger.queries.walk(chosen)) as records:
            async for record in records:
                click.echo(await shown(ledger, record), nl=False)
                number += 1
                if number == limit:
                    break
        if key is not None and not number:
            raise UsageError(f"{name} has no task {key!r} that matches the other options")


async def _object(_: Ledger, record: Record) -> str:
    return escaping.visible(values.to_json(task_objects.whole(record)) + "\n")


async def _with_items(ledger: Ledger, record: Record) -> str:
    """Return a task with its items, which queries do not read."""
    whole = await ledger.tasks.get(record.task.id)
    items = list(record.items if whole is None else whole.items)
    found = task_objects.whole(record) | {"items": items}
    return escaping.visible(values.to_json(found) + "\n")


async def _row(_: Ledger, record: Record) -> str:
    return _line(record) + "\n"


def _line(record: Record) -> str:
    task = record.task
    made = "" if task.carried else f" {_request(task)}"
    why = f" {task.reason}" if task.reason else ""
    said = f": {record.errors[-1].message}" if why and record.errors else ""
    holder = f" by {task.lock.partition(':')[0]}" if task.lock else ""
    return printable(
        f"{task.update_time:%Y-%m-%dT%H:%M:%SZ} {task.status.name.lower():<10} {task.host:<16} "
        f"{printable(task.url, limit=_LONGEST_KEY)}{made}{why}{said}{holder}"
    )


def _request(task: Task) -> str:
    """Return a task's request and callback, in words."""
    method = "" if task.method == "GET" else f"{task.method} "
    body = f"{len(task.body):,} bytes " if task.body else ""
    return f"{method}{body}{task.callback}() depth {task.depth}"
