"""`stats --watch`: poll a ledger, and show it as a live table or as lines."""

import json
import sys
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import anyio
import click

from crawlcw.cli.ledger_option import Subject
from crawlcw.dashboard.observer import CrawlState, Observer
from crawlcw.errors import LedgerUnavailableError

if TYPE_CHECKING:
    from rich.console import Console


#: Seconds that the live table waits for slow counts; after that it is drawn without new counts.
_MAX_WAIT = 0.5


async def watch(subject: Subject, *, every: timedelta, as_json: bool) -> None:
    """Show the ledger of *subject* until cancelled; raises `LedgerError`.

    A terminal that can move its cursor gets a live table; elsewhere each poll prints a line.
    """
    from rich.console import Console  # slow to import, and not needed for `--help`

    console = Console(markup=False, emoji=False, highlight=False)
    async with (
        subject.opened() as ledger,
        Observer(ledger, subject.name) as observer,
    ):
        if as_json or not sys.stdout.isatty() or console.is_dumb_terminal:
            await _print_states(observer, every=every, as_json=as_json)
        else:
            await _draw_states(observer, console, every=every)


async def _print_states(observer: Observer, *, every: timedelta, as_json: bool) -> None:
    from crawlcw.cli.terminal import overview

    while True:
        state = await observer.poll()
        click.echo(json.dumps(overview.fields(state)) if as_json else overview.line(state))
        await anyio.sleep(every.total_seconds())


async def _draw_states(observer: Observer, console: "Console", *, every: timedelta) -> None:
    from rich.live import Live

    from crawlcw.cli.terminal import overview

    state: CrawlState | None = None
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            try:
                state = await observer.poll(count_timeout=_MAX_WAIT)
            except LedgerUnavailableError as error:
                if state is None:
                    raise
                # Poll again, because the ledger may come back. The crawl also waits for the ledger.
                state = replace(state, error=f"the ledger does not answer: {error}")
            live.update(overview.display(state, height=console.height), refresh=True)
            await anyio.sleep(every.total_seconds())
