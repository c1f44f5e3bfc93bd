"""`crawlcw reset`: start tasks again, whatever their status."""

import click

from crawlcw.cli import confirming, loop
from crawlcw.cli.changing import Choice, choice_options
from crawlcw.cli.numbers import counted
from crawlcw.errors import UsageError
from crawlcw.ledger.protocol import Ledger, TaskFilter
from crawlcw.model.transitions import REOPEN
from crawlcw.tracking import keys as tracking_keys


@click.command("reset")
@choice_options(everything="All tasks.")
@click.option("--sessions", is_flag=True, help="Forget the sessions of a spider: log in again.")
@click.option("--state", is_flag=True, help="Forget the `self.state` of a spider.")
@click.option("--stage", metavar="S", help="Start again in this stage of a use case.")
def command(*, choice: Choice, sessions: bool, state: bool, stage: str | None) -> None:
    """Set tasks of NAME, a use case or a spider, to todo as if never tried, even finished ones.

    KEY is a task's key, or its URL in a crawl. The options choose the tasks that
    match all of them. Tasks held by a worker stay. A task of a use case keeps its
    stage, unless --stage names another one, and its data. For use cases, --host means
    the stage.
    """
    if stage is not None:
        tracking_keys.stage(stage)
    if sessions or state:
        if choice.is_given or choice.dry_run or stage is not None:
            option = "--sessions" if sessions else "--state"
            raise UsageError(f"{option} does not select tasks: give it alone")
        _forget(choice, sessions=sessions, state=state)
        return
    choice.check()
    choice.confirm("Make all tasks of {} todo again?")
    if stage is not None:
        loop.run(_check_stages(choice))

    async def reopen(ledger: Ledger, chosen: TaskFilter) -> int:
        return await ledger.admin.reopen(chosen, stage=stage, anew=True)

    choice.run(reopen, REOPEN.from_statuses, "todo again")


def _forget(choice: Choice, *, sessions: bool, state: bool) -> None:
    if sessions:
        confirming.confirm(f"Forget all sessions of {choice.name}?", yes=choice.yes)
        count = loop.run(_forget_sessions(choice))
        click.echo(f"{counted(count, 'session')} forgotten")
    if state:
        confirming.confirm(f"Forget the state of {choice.name}?", yes=choice.yes)
        was_there = loop.run(_forget_state(choice))
        click.echo("the state is forgotten" if was_there else "there was no state")


async def _forget_sessions(choice: Choice) -> int:
    async with choice.opened() as ledger:
        return await ledger.sessions.forget()


async def _forget_state(choice: Choice) -> bool:
    async with choice.opened() as ledger:
        return await ledger.spider_state.forget()


async def _check_stages(choice: Choice) -> None:
    async with choice.opened() as ledger:
        if not ledger.kind.tracked:
            raise UsageError(
                f"{choice.name} is a spider: its tasks have no stages: leave out --stage"
            )
