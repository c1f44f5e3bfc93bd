"""Draw a crawl's progress on a terminal, and update it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from crawlcw.cli.loop import background_tasks
from crawlcw.cli.terminal.overview import counts_text
from crawlcw.cli.terminal.progress import Progress, RunningCrawl, format_eta
from crawlcw.model.durations import format_duration

_FRAME_EVERY = 0.25


@asynccontextmanager
async def draw_progress(crawl: RunningCrawl) -> AsyncIterator[None]:
    """Show the progress of *crawl* on stderr within the block."""
    progress = Progress(crawl)
    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    with Live(console=console, auto_refresh=False, transient=True) as display:
        async with background_tasks(_count(progress), _draw(progress, display)):
            yield


async def _count(progress: Progress) -> None:
    while True:
        await progress.poll()
        await asyncio.sleep(_FRAME_EVERY)


async def _draw(progress: Progress, display: Live) -> None:
    while True:
        display.update(frame(progress), refresh=True)
        await asyncio.sleep(_FRAME_EVERY)


def frame(progress: Progress) -> Group:
    """Return the content of the progress display."""
    rate_text = Text(
        f"{progress.pages_per_minute:,.0f} pages/min  items {progress.crawl.stats.items:,}  "
        f"elapsed {format_duration(progress.elapsed)}  "
        f"eta {format_eta(progress.eta)}",
        style="dim",
    )
    title = Text(progress.crawl.spider.name, style="bold")
    total = max(progress.counts.total, 1)
    bar = ProgressBar(
        total=total,
        completed=progress.done_count,
        width=40,
        # Set the colour, because rich's progress bar is red by default.
        complete_style="green",
        finished_style="green",
    )
    title_row = Table.grid(padding=(0, 2))
    title_row.add_row(title, bar, f"{progress.done_count / total:.0%} of the known pages")
    tasks = counts_text(progress.counts.for_display())
    reason = progress.idle_reason
    return Group(title_row, tasks, rate_text, *([Text(reason, style="yellow")] if reason else []))
