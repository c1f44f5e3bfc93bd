"""`crawlcw reset`: let certain tasks begin anew, whatever became of them."""

from datetime import timedelta

import click

from crawlcw.cli import ledger_option, loading, loop, selecting
from crawlcw.cli.terminal import logs
from crawlcw.errors import UsageError
from crawlcw.ledger.protocol import TaskFilter
from crawlcw.tracking import keys as tracking_keys


@click.command("reset")
@click.argument("name")
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@ledger_option.ledger_option
@click.option("--stage", metavar="S", help="Begin in this stage of a use case.")
@logs.level_option
def command(
    *, name: str, keys: tuple[str, ...], ledger_url: str, stage: str | None, log_level: str | None
) -> None:
    """Make tasks of NAME, a use case or a spider, todo as if never tried, finished ones too.

    KEY is a task's key, or its URL in a crawl. What somebody works on just now
    is left alone. A task of a use case stays in the stage that it is in, unless
    --stage says otherwise; its data stays.
    """
    logs.set_up(log_level or "warning")
    if stage is not None:
        tracking_keys.stage(stage)
    count = loop.run(_reset(loading.name_of(name), ledger_url, keys, stage))
    click.echo(f"{count:,} of {len(set(keys)):,} todo again")


async def _reset(name: str, ledger_url: str, keys: tuple[str, ...], stage: str | None) -> int:
    async with ledger_option.opened(ledger_url, name) as ledger:
        if stage is not None and not ledger.kind.tracked:
            raise UsageError(f"{name} is a spider, whose tasks have no stages: leave out --stage")
        chosen = TaskFilter(
            ids={selecting.task_of(ledger, key) for key in keys},
            until=ledger.now() + timedelta(milliseconds=1),
        )
        return await ledger.admin.reopen(chosen, stage=stage, anew=True)
