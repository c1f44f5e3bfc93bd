"""`crawlcw copy`: copy a spider's or a use case's data to another ledger."""

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import click

from crawlcw.cli import dropping, kept_bodies, ledger_option, loading, loop, options
from crawlcw.cli.numbers import counted
from crawlcw.cli.terminal import logs
from crawlcw.errors import UsageError
from crawlcw.ledger.copying import UNFINISHED, CopiedLedger, Digest, Part, copy
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger_opening import open_to_copy
from crawlcw.model.task import Status

logger = logging.getLogger(__name__)


@click.command("copy")
@click.argument("name")
@ledger_option.url_option("--from", "source_url", about="Ledger to copy.")
@ledger_option.url_option("--to", "target_url", about="Target ledger, without tasks of NAME.")
@options.json_option
@logs.level_option
def command(
    *, name: str, source_url: str, target_url: str, as_json: bool, log_level: str | None
) -> None:
    """Copy all data of NAME, a spider or a use case, to another ledger.

    Copies tasks, items, hosts and notes between SQLite, MongoDB and PostgreSQL, or between two
    ledgers of one kind; then reads them back and compares. Refused while workers
    are at work on NAME, and if the target has tasks of it. The rest of an
    interrupted copy is deleted first. Files of `keep_bodies` or `save_to` stay in
    place, for both ledgers.
    """
    logs.set_up(log_level or "info")
    if source_url == target_url:
        raise UsageError("--from and --to name the same ledger")
    name = loading.name_of(name)
    copied = loop.run(_copy(name, source_url, target_url))
    tasks, hosts = copied[Part.TASKS], copied[Part.HOSTS].number
    if as_json:
        told = {"name": name, "tasks": tasks.number, "items": tasks.items, "hosts": hosts}
        click.echo(json.dumps(told))
    else:
        click.echo(
            f"{counted(tasks.number, 'task')} of {name} with {counted(tasks.items, 'item')} and "
            f"{counted(hosts, 'host')} were copied and verified"
        )
    if (left := kept_bodies.left(name, ledger_option.own_settings())) is not None:
        click.echo(f"{left}; both ledgers refer to them", err=True)


async def _copy(name: str, source_url: str, target_url: str) -> dict[Part, Digest]:
    async with ledger_option.opened(source_url, name) as source:
        if (await source.notes.state()).get(UNFINISHED):
            raise UsageError("the ledger to copy is itself an interrupted copy")
        await dropping.check_idle(source, name)
        kind = source.kind
        async with _target(target_url, name, kind) as target:
            if not (await target.notes.state()).get(UNFINISHED):
                if await target.queries.has(tuple(Status)):
                    raise UsageError(
                        f"the target ledger already has tasks of {name}: `crawlcw drop {name} "
                        "--ledger URL` deletes them"
                    )
                return await copy(source, target, told=_tell)
            await target.admin.drop()
        async with _target(target_url, name, kind) as target:
            return await copy(source, target, told=_tell)


@asynccontextmanager
async def _target(url: str, name: str, kind: LedgerKind) -> AsyncIterator[CopiedLedger]:
    ledger = await open_to_copy(url, name, kind=kind)
    try:
        yield ledger
    finally:
        await ledger.close()


def _tell(part: Part, number: int) -> None:
    logger.info("%s %s copied", f"{number:,}", part, extra={"event": "copying"})
