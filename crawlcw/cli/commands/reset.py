"""`crawlcw reset`: start tasks again, whatever their status."""

from collections.abc import Sequence

import click

from crawlcw.cli import confirming, ledger_option, loading, loop
from crawlcw.cli.held_tasks import held_number, to_be_changed
from crawlcw.cli.numbers import counted
from crawlcw.cli.selection import (
    Selection,
    check_chosen,
    chosen_tasks,
    dry_run_option,
    from_now,
    selection_options,
    tell_changed,
)
from crawlcw.cli.terminal import logs
from crawlcw.engine.workers import reap_dead_workers
from crawlcw.errors import UsageError
from crawlcw.model.transitions import REOPEN
from crawlcw.tracking import keys as tracking_keys


@click.command("reset")
@click.argument("name")
@click.argument("keys", nargs=-1, metavar="[KEY...]")
@ledger_option.ledger_option
@click.option("--all", "everything", is_flag=True, help="All tasks.")
@selection_options()
@click.option("--sessions", is_flag=True, help="Forget the sessions of a spider: log in again.")
@click.option("--state", is_flag=True, help="Forget the `self.state` of a spider.")
@click.option("--stage", metavar="S", help="Start again in this stage of a use case.")
@dry_run_option
@confirming.yes_option
@logs.log_option
def command(
    *,
    name: str,
    keys: tuple[str, ...],
    ledger_url: str,
    everything: bool,
    selection: Selection,
    sessions: bool,
    state: bool,
    stage: str | None,
    dry_run: bool,
    as_json: bool,
    yes: bool,
) -> None:
    """Set tasks of NAME, a use case or a spider, to todo as if never tried, even finished ones.

    KEY is a task's key, or its URL in a crawl. The options choose the tasks that
    match all of them. Tasks held by a worker stay. A task of a use case keeps its
    stage, unless --stage names another one, and its data. For use cases, --host means
    the stage.
    """
    if stage is not None:
        tracking_keys.stage(stage)
    if sessions or state:
        if keys or everything or selection or dry_run or stage is not None:
            option = "--sessions" if sessions else "--state"
            raise UsageError(f"{option} does not select tasks: give it alone")
        _forget(loading.name_of(name), ledger_url, sessions=sessions, state=state, yes=yes)
        return
    check_chosen(keys, selection, everything=everything)
    spider = loading.name_of(name)
    if not keys and not dry_run:
        confirming.confirm(f"Make all tasks of {spider}{selection.which} todo again?", yes=yes)
    count, at_work = loop.run(_reset(spider, ledger_url, keys, selection, stage, dry_run=dry_run))
    tell_changed(count, at_work, keys, "todo again", dry_run=dry_run, as_json=as_json)


def _forget(name: str, ledger_url: str, *, sessions: bool, state: bool, yes: bool) -> None:
    if sessions:
        confirming.confirm(f"Forget all sessions of {name}?", yes=yes)
        count = loop.run(_forget_sessions(name, ledger_url))
        click.echo(f"{counted(count, 'session')} forgotten")
    if state:
        confirming.confirm(f"Forget the state of {name}?", yes=yes)
        was_there = loop.run(_forget_state(name, ledger_url))
        click.echo("the state is forgotten" if was_there else "there was no state")


async def _forget_sessions(name: str, ledger_url: str) -> int:
    async with ledger_option.opened(ledger_url, name) as ledger:
        return await ledger.sessions.forget()


async def _forget_state(name: str, ledger_url: str) -> bool:
    async with ledger_option.opened(ledger_url, name) as ledger:
        return await ledger.spider_state.forget()


async def _reset(
    name: str,
    ledger_url: str,
    keys: Sequence[str],
    selection: Selection,
    stage: str | None,
    *,
    dry_run: bool,
) -> tuple[int, int]:
    async with ledger_option.opened(ledger_url, name) as ledger:
        if stage is not None and not ledger.kind.tracked:
            raise UsageError(f"{name} is a spider: its tasks have no stages: leave out --stage")
        if not dry_run:
            await reap_dead_workers(ledger)
        until = None if dry_run else from_now(ledger)
        chosen = chosen_tasks(ledger, keys, selection, until=until)
        if dry_run:
            return await to_be_changed(ledger, chosen, REOPEN.from_statuses)
        count = await ledger.admin.reopen(chosen, stage=stage, anew=True)
        return count, await held_number(ledger, chosen)
