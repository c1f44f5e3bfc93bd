"""`crawlcw ignore`: withdraw waiting tasks."""

import click

from crawlcw.cli import confirming, ledger_option, loading, loop
from crawlcw.cli.held_tasks import held_number, to_be_changed
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
from crawlcw.errors import Reason
from crawlcw.model.transitions import WITHDRAW


@click.command("ignore")
@click.argument("name")
@click.argument("keys", nargs=-1, metavar="[KEY...]")
@ledger_option.ledger_option
@click.option("--all", "everything", is_flag=True, help="All waiting tasks.")
@selection_options(statuses=WITHDRAW.from_statuses)
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
    dry_run: bool,
    as_json: bool,
    yes: bool,
) -> None:
    """Withdraw waiting tasks of NAME, a use case or a spider.

    KEY is a task's key, or its URL in a crawl. The options choose the tasks that
    match all of them. Tasks that are done, or held by a worker, stay. `crawlcw reset`
    brings withdrawn tasks back.
    """
    check_chosen(keys, selection, everything=everything)
    spider = loading.name_of(name)
    if not keys and not dry_run:
        confirming.confirm(f"Withdraw all waiting tasks of {spider}{selection.which}?", yes=yes)
    count, at_work = loop.run(_ignore(spider, ledger_url, keys, selection, dry_run=dry_run))
    tell_changed(count, at_work, keys, "withdrawn", dry_run=dry_run, as_json=as_json)


async def _ignore(
    name: str, ledger_url: str, keys: tuple[str, ...], selection: Selection, *, dry_run: bool
) -> tuple[int, int]:
    async with ledger_option.opened(ledger_url, name) as ledger:
        chosen = chosen_tasks(ledger, keys, selection)
        if dry_run:
            return await to_be_changed(ledger, chosen, WITHDRAW.from_statuses)
        await reap_dead_workers(ledger)
        now = from_now(ledger)
        count = await ledger.admin.withdraw(chosen, reason=Reason.WITHDRAWN)
        return count, await held_number(ledger, chosen, until=now)
