"""`crawlcw retry-failed`: set failed tasks to todo again."""

import click

from crawlcw.cli import ledger_option, loading, loop, selecting
from crawlcw.cli.numbers import counted
from crawlcw.cli.selection import Selection, dry_run_option, selection_options, tell_count
from crawlcw.cli.terminal import logs
from crawlcw.errors import (
    FAILURE_REASONS,
    POLICY_REASONS,
    Reason,
    UsageError,
)
from crawlcw.ledger.protocol import Count
from crawlcw.model.transitions import RETRY


def _reason(text: str) -> Reason:
    if text in POLICY_REASONS:
        raise UsageError(
            f"{text} is not a failure: such tasks are unwanted, and another attempt would have "
            "the same result; change the spider or its settings"
        )
    return selecting.any_reason(text, FAILURE_REASONS)


@click.command("retry-failed")
@click.argument("spider")
@ledger_option.ledger_option
@selection_options(statuses=RETRY.from_statuses, reason=_reason)
@dry_run_option
@logs.log_option
def command(
    *,
    spider: str,
    ledger_url: str,
    selection: Selection,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Set failed tasks of SPIDER to todo again, as if never tried.

    SPIDER is as for `crawlcw run`, or the name of a use case. Failed tasks are those
    that wait for another attempt and those given up, but not unwanted ones
    (robots.txt, out of scope ...). For use cases, --host means the stage.
    """
    name = loading.name_of(spider)

    async def retry() -> tuple[Count, bool]:
        async with ledger_option.opened(ledger_url, name) as ledger:
            chosen = selection.filter(ledger)
            if dry_run:
                return await ledger.admin.count_failed(chosen), ledger.kind.tracked
            return Count(number=await ledger.admin.retry_failed(chosen)), ledger.kind.tracked

    count, tracked = loop.run(retry())
    # A use case's tasks may have other workers than `crawlcw work`.
    how = f" by `crawlcw run {spider}`" if count.number and not tracked and not dry_run else ""
    said = f"{counted(count, 'task')} {'would' if dry_run else 'will'} be tried again{how}"
    tell_count(count, said, dry_run=dry_run, as_json=as_json)
