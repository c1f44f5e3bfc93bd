"""`crawlcw purge`: delete tasks with their items."""

from dataclasses import replace

import click

from crawlcw.cli import confirming, loop
from crawlcw.cli.changing import Choice, choice_options
from crawlcw.cli.numbers import counted
from crawlcw.cli.selection import UNHELD
from crawlcw.ledger.protocol import Ledger, TaskFilter
from crawlcw.model.task import Status


@click.command("purge")
@choice_options()
def command(*, choice: Choice) -> None:
    """Delete tasks of NAME, a use case or a spider, with their items, for good.

    KEY is a task's key, or its URL in a crawl. The options choose the tasks that
    match all of them. Tasks held by a worker stay. A deleted page is unknown: the
    next link adds it again, and the next run adds start URLs again. `crawlcw drop`
    deletes everything.
    """
    choice.check()
    count, at_work = loop.run(choice.count(UNHELD))
    if not choice.dry_run:
        question = f"Delete {counted(count, 'task')} of {choice.name} with their items, for good?"
        confirming.confirm(question, yes=choice.yes)
        count, at_work = loop.run(choice.change(_purge))
    said = f"{counted(count, 'task')} {'would be ' if choice.dry_run else ''}deleted"
    choice.tell(count, at_work, said)


async def _purge(ledger: Ledger, chosen: TaskFilter) -> int:
    number = await ledger.admin.purge(chosen.among(UNHELD))
    orphaned = replace(chosen.among((Status.PROCESSING,)), due_by=ledger.now())
    return number + (await ledger.admin.purge(orphaned) if orphaned.statuses else 0)
