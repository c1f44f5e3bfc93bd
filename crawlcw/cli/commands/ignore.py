"""`crawlcw ignore`: withdraw waiting tasks."""

import click

from crawlcw.cli import confirming, loop
from crawlcw.cli.held_tasks import held_number, to_be_changed
from crawlcw.cli.selection import Choice, choice_options, dry_run_option, from_now, tell_changed
from crawlcw.cli.terminal import logs
from crawlcw.engine.workers import reap_dead_workers
from crawlcw.errors import Reason
from crawlcw.ledger.protocol import Count
from crawlcw.model.transitions import WITHDRAW


@click.command("ignore")
@choice_options(statuses=WITHDRAW.from_statuses, everything="All waiting tasks.")
@dry_run_option
@confirming.yes_option
@logs.log_option
def command(*, choice: Choice, dry_run: bool, as_json: bool, yes: bool) -> None:
    """Withdraw waiting tasks of NAME, a use case or a spider.

    KEY is a task's key, or its URL in a crawl. The options choose the tasks that
    match all of them. Tasks that are done, or held by a worker, stay. `crawlcw reset`
    brings withdrawn tasks back.
    """
    choice.check()
    if not choice.keys and not dry_run:
        which = f"{choice.name}{choice.selection.which}"
        confirming.confirm(f"Withdraw all waiting tasks of {which}?", yes=yes)
    count, at_work = loop.run(_ignore(choice, dry_run=dry_run))
    tell_changed(count, at_work, choice.keys, "withdrawn", dry_run=dry_run, as_json=as_json)


async def _ignore(choice: Choice, *, dry_run: bool) -> tuple[Count, int]:
    async with choice.opened() as ledger:
        chosen = choice.filter(ledger)
        if dry_run:
            return await to_be_changed(ledger, chosen, WITHDRAW.from_statuses)
        await reap_dead_workers(ledger)
        now = from_now(ledger)
        count = await ledger.admin.withdraw(chosen, reason=Reason.WITHDRAWN)
        return Count(number=count), await held_number(ledger, chosen, until=now)
