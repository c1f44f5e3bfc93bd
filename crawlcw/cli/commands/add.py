"""`crawlcw add`: put tasks into a use case, from any script, while workers run."""

import queue
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import BinaryIO

import click
from anyio import to_thread

from crawlcw.cli import ledger_option, loop, reading_tasks
from crawlcw.cli.terminal import logs
from crawlcw.ledger.protocol import Added
from crawlcw.model.sanitize import printable
from crawlcw.tracking import NewTask, Tracker, keys
from crawlcw.tracking.tracker import CHUNK


class _End(Enum):
    WELL = "well"


_Read = queue.Queue[NewTask | Exception | _End]


@click.command("add")
@click.argument("use_case")
@click.argument("source", type=click.File("rb"))
@ledger_option.ledger_option
@click.option(
    "--format",
    "style",
    type=click.Choice(reading_tasks.FORMATS),
    help="By default what the file's name says (.jsonl, .csv), else lines.",
)
@click.option(
    "--key", default="key", show_default=True, help="The column or field that is the key."
)
@click.option(
    "--priority", default=0, show_default=True, help="The priority of tasks that name none."
)
@click.option("--stage", help="The stage of tasks that name none; by default the first one.")
@logs.level_option
def command(
    *,
    use_case: str,
    source: BinaryIO,
    ledger_url: str,
    style: str | None,
    key: str,
    priority: int,
    stage: str | None,
    log_level: str | None,
) -> None:
    """Add tasks to USE_CASE; SOURCE is a file, or - for standard input.

    A plain line is a key. A line of JSON is a key, or an object with `key` and,
    if need be, `data`, `priority` and `stage`; without `data`, all its other
    fields are the data. The other columns of a row of CSV are so, too. A task
    that is known already is not changed.
    """
    logs.set_up(log_level or "warning")
    style = style or _style(source.name)
    tasks = reading_tasks.read(source, style, key=key, priority=keys.priority(priority))
    added = loop.run(_add(keys.use_case(use_case), ledger_url, tasks, stage))
    rejected = f", {len(added.rejected):,} cannot be stored" if added.rejected else ""
    click.echo(f"{added.new:,} added, {added.known:,} known already{rejected}")
    for task, why in added.rejected[:10]:
        click.echo(f"crawlcw: {printable(task.url)}: {printable(why)}", err=True)


async def _add(name: str, ledger_url: str, tasks: Iterator[NewTask], stage: str | None) -> Added:
    if stage is not None:
        keys.stage(stage)
    total = Added()
    async with Tracker.open(ledger_url, name) as tracker:
        async for chunk in _as_they_come(tasks):
            added = await tracker.add_many(
                task if task.stage else replace(task, stage=stage) for task in chunk
            )
            total = Added(
                new=total.new + added.new,
                known=total.known + added.known,
                rejected=total.rejected + added.rejected,
            )
    return total


async def _as_they_come(tasks: Iterator[NewTask]) -> AsyncIterator[list[NewTask]]:
    """Yield what is there, as soon as something is: the writer may be slow."""
    read: _Read = queue.Queue(2 * CHUNK)

    def read_on() -> None:
        try:
            for task in tasks:
                read.put(task)
            read.put(_End.WELL)
        except Exception as error:
            read.put(error)

    # Nobody can interrupt a thread that waits for standard input.
    threading.Thread(target=read_on, daemon=True).start()
    while True:
        chunk, end = await to_thread.run_sync(_some, read, abandon_on_cancel=True)
        if chunk:
            yield chunk
        if isinstance(end, Exception):
            raise end
        if end is _End.WELL:
            return


def _some(read: _Read) -> tuple[list[NewTask], Exception | _End | None]:
    """Return what is there, waiting for the first; and how the input ended, if it did."""
    chunk: list[NewTask] = []
    found = read.get()
    with suppress(queue.Empty):
        while isinstance(found, NewTask):
            chunk.append(found)
            if len(chunk) == CHUNK:
                return chunk, None
            found = read.get_nowait()
        return chunk, found
    return chunk, None


def _style(name: str) -> str:
    return {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}.get(Path(name).suffix, "lines")
