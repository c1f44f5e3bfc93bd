"""`crawlcw ignore`: withdraw waiting tasks."""

import click

from crawlcw.cli.changing import Choice, choice_options
from crawlcw.errors import Reason
from crawlcw.ledger.protocol import Ledger, TaskFilter
from crawlcw.model.transitions import WITHDRAW


@click.command("ignore")
@choice_options(statuses=WITHDRAW.from_statuses, everything="All waiting tasks.")
def command(*, choice: Choice) -> None:
    """Withdraw waiting tasks of NAME, a use case or a spider.

    KEY is a task's key, or its URL in a crawl. The options choose the tasks that
    match all of them. Tasks that are done, or held by a worker, stay. `crawlcw reset`
    brings withdrawn tasks back.
    """
    choice.check()
    choice.confirm("Withdraw all waiting tasks of {}?")
    choice.run(_withdraw, WITHDRAW.from_statuses, "withdrawn")


async def _withdraw(ledger: Ledger, chosen: TaskFilter) -> int:
    return await ledger.admin.withdraw(chosen, reason=Reason.WITHDRAWN)
