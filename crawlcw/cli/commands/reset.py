"""`crawlcw reset`: start tasks again, whatever their status."""

import click

from crawlcw.cli import confirming, loop
from crawlcw.cli.held_tasks import held_number, to_be_changed
from crawlcw.cli.numbers import counted
from crawlcw.cli.selection import Choice, choice_options, dry_run_option, from_now, tell_changed
from crawlcw.cli.terminal import logs
from crawlcw.engine.workers import reap_dead_workers
from crawlcw.errors import UsageError
from crawlcw.ledger.protocol import Count
from crawlcw.model.transitions import REOPEN
from crawlcw.tracking import keys as tracking_keys


@click.command("reset")
@choice_options(everything="All tasks.")
@click.option("--sessions", is_flag=True, help="Forget the sessions of a spider: log in again.")
@click.option("--state", is_flag=True, help="Forget the `self.state` of a spider.")
@click.option("--stage", metavar="S", help="Start again in this stage of a use case.")
@dry_run_option
@confirming.yes_option
@logs.log_option
def command(
    *,
    choice: Choice,
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
        if choice.is_given or dry_run or stage is not None:
            option = "--sessions" if sessions else "--state"
            raise UsageError(f"{option} does not select tasks: give it alone")
        _forget(choice, sessions=sessions, state=state, yes=yes)
        return
    choice.check()
    if not choice.keys and not dry_run:
        which = f"{choice.name}{choice.selection.which}"
        confirming.confirm(f"Make all tasks of {which} todo again?", yes=yes)
    count, at_work = loop.run(_reset(choice, stage, dry_run=dry_run))
    tell_changed(count, at_work, choice.keys, "todo again", dry_run=dry_run, as_json=as_json)


def _forget(choice: Choice, *, sessions: bool, state: bool, yes: bool) -> None:
    if sessions:
        confirming.confirm(f"Forget all sessions of {choice.name}?", yes=yes)
        count = loop.run(_forget_sessions(choice))
        click.echo(f"{counted(count, 'session')} forgotten")
    if state:
        confirming.confirm(f"Forget the state of {choice.name}?", yes=yes)
        was_there = loop.run(_forget_state(choice))
        click.echo("the state is forgotten" if was_there else "there was no state")


async def _forget_sessions(choice: Choice) -> int:
    async with choice.opened() as ledger:
        return await ledger.sessions.forget()


async def _forget_state(choice: Choice) -> bool:
    async with choice.opened() as ledger:
        return await ledger.spider_state.forget()


async def _reset(choice: Choice, stage: str | None, *, dry_run: bool) -> tuple[Count, int]:
    async with choice.opened() as ledger:
        if stage is not None and not ledger.kind.tracked:
            raise UsageError(
                f"{choice.name} is a spider: its tasks have no stages: leave out --stage"
            )
        if not dry_run:
            await reap_dead_workers(ledger)
        chosen = choice.filter(ledger, until=None if dry_run else from_now(ledger))
        if dry_run:
            return await to_be_changed(ledger, chosen, REOPEN.from_statuses)
        count = await ledger.admin.reopen(chosen, stage=stage, anew=True)
        return Count(number=count), await held_number(ledger, chosen)
