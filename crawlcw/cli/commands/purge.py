"""`crawlcw purge`: delete tasks with their items."""

from collections.abc import Sequence
from dataclasses import replace

import click

from crawlcw.cli import confirming, ledger_option, loading, loop
from crawlcw.cli.held_tasks import held_number, to_be_changed
from crawlcw.cli.numbers import counted
from crawlcw.cli.selection import (
    UNHELD,
    Selection,
    check_chosen,
    chosen_tasks,
    dry_run_option,
    from_now,
    selection_options,
    tell_count,
)
from crawlcw.cli.terminal import logs
from crawlcw.engine.workers import reap_dead_workers
from crawlcw.model.task import Status


@click.command("purge")
@click.argument("name")
@click.argument("keys", nargs=-1, metavar="[KEY...]")
@ledger_option.ledger_option
@selection_options()
@dry_run_option
@confirming.yes_option
@logs.log_option
def command(
    *,
    name: str,
    keys: tuple[str, ...],
    ledger_url: str,
    selection: Selection,
    dry_run: bool,
    as_json: bool,
    yes: bool,
) -> None:
    """Delete tasks of NAME, a use case or a spider, with their items, for good.

    KEY is a task's key, or its URL in a crawl. The options choose the tasks that
    match all of them. Tasks held by a worker stay. A deleted page is unknown: the
    next link adds it again, and the next run adds start URLs again. `crawlcw drop`
    deletes everything.
    """
    check_chosen(keys, selection, alone="")
    spider = loading.name_of(name)
    count, at_work = loop.run(_count(spider, ledger_url, keys, selection))
    if not dry_run:
        question = f"Delete {counted(count, 'task')} of {spider} with their items, for good?"
        confirming.confirm(question, yes=yes)
        count, at_work = loop.run(_purge(spider, ledger_url, keys, selection))
    said = f"{counted(count, 'task')} {'would be ' if dry_run else ''}deleted"
    tell_count(count, said, dry_run=dry_run, as_json=as_json, at_work=at_work)


async def _count(
    name: str, ledger_url: str, keys: Sequence[str], selection: Selection
) -> tuple[int, int]:
    async with ledger_option.opened(ledger_url, name) as ledger:
        return await to_be_changed(ledger, chosen_tasks(ledger, keys, selection), UNHELD)


async def _purge(
    name: str, ledger_url: str, keys: Sequence[str], selection: Selection
) -> tuple[int, int]:
    async with ledger_option.opened(ledger_url, name) as ledger:
        await reap_dead_workers(ledger)
        chosen = chosen_tasks(ledger, keys, selection, until=from_now(ledger))
        count = await ledger.admin.purge(chosen.among(UNHELD))
        freed = replace(chosen.among((Status.PROCESSING,)), due_by=ledger.now())
        if freed.statuses:
            count += await ledger.admin.purge(freed)
        return count, await held_number(ledger, chosen)
