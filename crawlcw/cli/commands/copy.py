"""`crawlcw copy`: copy a spider's or a use case's data to another ledger."""

import json
import logging

import click

from crawlcw.cli import dropping, loading, loop, options
from crawlcw.cli.ledger_option import closing, opened, url_option
from crawlcw.cli.numbers import counted
from crawlcw.cli.terminal import logs
from crawlcw.errors import UsageError
from crawlcw.ledger.copying import UNFINISHED, Digest, Part, copy
from crawlcw.ledger_opening import open_ledger
from crawlcw.model.task import Status

logger = logging.getLogger(__name__)


@click.command("copy")
@click.argument("name")
@url_option("--from", "source_url", about="Ledger to copy.")
@url_option("--to", "target_url", about="Target ledger, without tasks of NAME.")
@options.json_option
@logs.level_option
def command(
    *, name: str, source_url: str, target_url: str, as_json: bool, log_level: str | None
) -> None:
    """Copy all data of NAME, a spider or a use case, to another ledger.

    The command copies tasks, items, hosts and notes between any of SQLite, MongoDB and PostgreSQL,
    and compares the copy with the original. The command copies nothing if workers are at work on
    NAME (`crawlcw stop NAME --wait` ends them), or if the target has tasks of NAME. If an earlier
    copy was interrupted, the command first deletes the data of that copy. Files of `keep_bodies`
    and `save_to` are not copied, so both ledgers refer to the same files.
    """
    logs.set_up(log_level or "info")
    if source_url == target_url:
        raise UsageError("--from and --to name the same ledger")
    name = loading.name_of(name)
    digests = loop.run(_copy(name, source_url, target_url))
    tasks, hosts = digests[Part.TASKS], digests[Part.HOSTS].number
    if as_json:
        numbers = {"name": name, "tasks": tasks.number, "items": tasks.items, "hosts": hosts}
        click.echo(json.dumps(numbers))
    else:
        click.echo(
            f"{counted(tasks.number, 'task')} of {name} with {counted(tasks.items, 'item')} and "
            f"{counted(hosts, 'host')} were copied and verified"
        )
    if (files_note := dropping.files_left(name, options.settings_of())) is not None:
        click.echo(f"{files_note}; both ledgers refer to them", err=True)


async def _copy(name: str, source_url: str, target_url: str) -> dict[Part, Digest]:
    async with opened(source_url, name) as source:
        if (await source.notes.state()).get(UNFINISHED):
            raise UsageError("the ledger to copy is itself an interrupted copy")
        await dropping.check_idle(source, name)
        kind = source.kind
        async with closing(open_ledger(target_url, name, kind=kind)) as target:
            if not (await target.notes.state()).get(UNFINISHED):
                if await target.queries.has(tuple(Status)):
                    raise UsageError(
                        f"the target ledger already has tasks of {name}: "
                        f"{options.command_line('drop', name, ledger=target_url)} deletes them"
                    )
                return await copy(source, target, on_progress=_log_progress)
            await target.admin.drop()
        async with closing(open_ledger(target_url, name, kind=kind)) as target:
            return await copy(source, target, on_progress=_log_progress)


def _log_progress(part: Part, number: int) -> None:
    logger.info("%s %s copied", f"{number:,}", part, extra={"event": "copying"})
