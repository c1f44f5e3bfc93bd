"""`crawlcw reset`: let certain tasks begin anew, whatever became of them."""

from collections.abc import Sequence
from datetime import timedelta

import click

from crawlcw.cli import confirming, ledger_option, loading, loop, selecting
from crawlcw.cli.terminal import logs
from crawlcw.errors import UsageError
from crawlcw.ledger.protocol import Ledger, TaskFilter
from crawlcw.model.task import Status
from crawlcw.tracking import keys as tracking_keys


@click.command("reset")
@click.argument("name")
@click.argument("keys", nargs=-1, metavar="[KEY...]")
@ledger_option.ledger_option
@click.option("--all", "everything", is_flag=True, help="All tasks.")
@click.option(
    "--status",
    "statuses",
    type=click.Choice([status.name.lower() for status in Status if status != Status.PROCESSING]),
    multiple=True,
    help="All tasks of this status. May be repeated.",
)
@click.option("--host", metavar="H", help="All tasks of this host (host or host:port), or stage.")
@click.option("--sessions", is_flag=True, help="The sessions of a spider: log in anew.")
@click.option("--stage", metavar="S", help="Begin in this stage of a use case.")
@confirming.yes_option
@logs.level_option
def command(
    *,
    name: str,
    keys: tuple[str, ...],
    ledger_url: str,
    everything: bool,
    statuses: tuple[str, ...],
    host: str | None,
    sessions: bool,
    stage: str | None,
    yes: bool,
    log_level: str | None,
) -> None:
    """Make tasks of NAME, a use case or a spider, todo as if never tried, finished ones too.

    KEY is a task's key, or its URL in a crawl. --status and --host choose many,
    both together those that match both. Tasks that a worker holds just now are
    left alone. A task of a use case stays in its stage, unless --stage says
    otherwise; its data stays.
    """
    logs.set_up(log_level or "warning")
    if stage is not None:
        tracking_keys.stage(stage)
    chosen = [bool(keys), everything, bool(statuses or host)]
    if sessions:
        if any(chosen) or stage is not None:
            raise UsageError("--sessions is about no tasks: give it alone")
        confirming.confirm(f"Forget all sessions of {loading.name_of(name)}?", yes=yes)
        count = loop.run(_forget_sessions(loading.name_of(name), ledger_url))
        click.echo(f"{count:,} session{'' if count == 1 else 's'} forgotten")
        return
    if sum(chosen) != 1:
        raise UsageError("say which tasks: either KEYs, or --status and --host, or --all")
    if not keys:
        confirming.confirm(_question(loading.name_of(name), statuses, host), yes=yes)
    count = loop.run(_reset(loading.name_of(name), ledger_url, keys, statuses, host, stage))
    of = f" of {len(set(keys)):,}" if keys else ""
    click.echo(f"{count:,}{of} todo again")


def _question(name: str, statuses: Sequence[str], host: str | None) -> str:
    which = f" {' and '.join(statuses)}" if statuses else ""
    where = f" of {host}" if host else ""
    return f"Make all{which} tasks{where} of {name} todo again?"


async def _forget_sessions(name: str, ledger_url: str) -> int:
    async with ledger_option.opened(ledger_url, name) as ledger:
        return await ledger.sessions.forget()


async def _reset(
    name: str,
    ledger_url: str,
    keys: Sequence[str],
    statuses: Sequence[str],
    host: str | None,
    stage: str | None,
) -> int:
    async with ledger_option.opened(ledger_url, name) as ledger:
        if stage is not None and not ledger.kind.tracked:
            raise UsageError(f"{name} is a spider, whose tasks have no stages: leave out --stage")
        chosen = _chosen(ledger, keys, statuses, host)
        return await ledger.admin.reopen(chosen, stage=stage, anew=True)


def _chosen(
    ledger: Ledger, keys: Sequence[str], statuses: Sequence[str], host: str | None
) -> TaskFilter:
    return TaskFilter(
        ids={selecting.task_of(ledger, key) for key in keys} if keys else None,
        statuses=[Status[status.upper()] for status in statuses] or tuple(Status),
        host=host,
        until=ledger.now() + timedelta(milliseconds=1),
    )
