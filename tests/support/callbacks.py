"""Runs of callbacks without a crawl."""

from collections.abc import Callable, Container
from datetime import timedelta
from typing import Any

from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.crawl.callbacks import CallbackRun, Produced, Runner, Scope, TimeSlices, WriteLinks
from crawlcw.crawl.kept_state import KeptState
from crawlcw.crawl.parsing import Parsing
from crawlcw.engine.stats import Stats
from crawlcw.engine.watchdog import Watchdog
from crawlcw.model.task import Task
from crawlcw.model.transitions import Failed
from tests.support.ledgers import START


async def run_callback(
    method: Callable[..., Any],
    *arguments: object,
    spider: Spider,
    task: Task,
    scope: Scope,
    name: str = "parse",
    seen: Container[bytes] = frozenset(),
    within: float = 0.0,
    turns: TimeSlices | None = None,
    write: WriteLinks | None = None,
    watch: Watchdog | None = None,
) -> Produced | Failed:
    """Run *method*, which need not be one of the spider's, and return its result."""
    runner = Runner(
        spider,
        scope=scope,
        known_ids=seen,
        now=lambda: START,
        watchdog=watch or Watchdog(Stats(), limit=timedelta(seconds=within)),
        parsing=Parsing(Settings()),
        state=KeptState(spider, None),
        write=write,
        time_slices=turns or TimeSlices(),
    )
    run = CallbackRun(runner, method, name=name, task=task)
    if arguments and isinstance(arguments[0], Response):
        run.response = run.page = arguments[0]
    return await run.result(*arguments)
