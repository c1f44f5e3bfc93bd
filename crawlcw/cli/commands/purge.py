"""`crawlcw purge`: delete tasks with their items."""

from dataclasses import replace

import click

from crawlcw.cli import confirming, loop
from crawlcw.cli.held_tasks import held_number, to_be_changed
from crawlcw.cli.numbers import counted
from crawlcw.cli.selection import (
    UNHELD,
    Choice,
    choice_options,
    dry_run_option,
    from_now,
    tell_count,
)
from crawlcw.cli.terminal import logs
from crawlcw.engine.workers import reap_dead_workers
from crawlcw.ledger.protocol import Count
from crawlcw.model.task import Status


@click.command("purge")
@choice_options()
@dry_run_option
@confirming.yes_option
@logs.log_option
def command(*, choice: Choice, dry_run: bool, as_json: bool, yes: bool) -> None:
    """Delete tasks of NAME, a use case or a spider, with their items, for good.

    KEY is a task's key, or its URL in a crawl. The options choose the tasks that
    match all of them. Tasks held by a worker stay. A deleted page is unknown: the
    next link adds it again, and the next run adds start URLs again. `crawlcw drop`
    deletes everything.
    """
    choice.check()
    count, at_work = loop.run(_count(choice))
    if not dry_run:
        question = f"Delete {counted(count, 'task')} of {choice.name} with their items, for good?"
        confirming.confirm(question, yes=yes)
        count, at_work = loop.run(_purge(choice))
    said = f"{counted(count, 'task')} {'would be ' if dry_run else ''}deleted"
    tell_count(count, said, dry_run=dry_run, as_json=as_json, at_work=at_work)


async def _count(choice: Choice) -> tuple[Count, int]:
    async with choice.opened() as ledger:
        return await to_be_changed(ledger, choice.filter(ledger), UNHELD)


async def _purge(choice: Choice) -> tuple[Count, int]:
    async with choice.opened() as ledger:
        await reap_dead_workers(ledger)
        chosen = choice.filter(ledger, until=from_now(ledger))
        count = await ledger.admin.purge(chosen.among(UNHELD))
        freed = replace(chosen.among((Status.PROCESSING,)), due_by=ledger.now())
        if freed.statuses:
            count += await ledger.admin.purge(freed)
        return Count(number=count), await held_number(ledger, chosen)
