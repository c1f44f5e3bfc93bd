"""`--metrics-port`: what a crawl measures, at an address that Prometheus scrapes."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import ParamSpec, Protocol, TypeVar

import click

from crawlcw.api.spider import Spider
from crawlcw.errors import UsageError
from crawlcw.ledger.protocol import Ledger
from crawlcw.model.standstill import Standstill
from crawlcw.telemetry import metrics
from crawlcw.telemetry.measures import Measures, Values, together
from crawlcw.telemetry.task_counts import TaskCounts

P = ParamSpec("P")
R = TypeVar("R")

_OF_WORKERS = (metrics.IN_FLIGHT, metrics.TASKS_HELD, metrics.HOSTS_RESTING, metrics.MEMORY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where to listen."""

    host: str
    port: int


class Measured(Protocol):
    """A crawl that runs, in this process or in others, and is measured."""

    @property
    def spider(self) -> Spider:
        """Whose crawl it is."""

    @property
    def ledger(self) -> Ledger:
        """Where it is recorded."""

    @property
    def standstill(self) -> Standstill | None:
        """Why nothing moves in it; None while something does."""

    def measured(self) -> "Workers":
        """Return what its workers have measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """What the workers of a crawl have measured."""

    all: Sequence[Measures]  #: of each process there was
    running: Mapping[str, Measures]  #: of those that run, by the numbers of their slots
    crashes: int = 0


def options(command: Callable[P, R]) -> Callable[P, R]:
    """Add `--metrics-port` and `--metrics-host` to a command."""
    port = click.option(
        "--metrics-port",
        type=click.IntRange(0, 65535),
        metavar="PORT",
        help="Serve metrics for Prometheus at http://HOST:PORT/metrics while the crawl runs.",
    )
    host = click.option(
        "--metrics-host",
        default="127.0.0.1",
        show_default=True,
        metavar="HOST",
        help="Where to listen for that; no token is asked for.",
    )
    return port(host(command))


def check_installed() -> None:
    """Raise `UsageError` where prometheus-client, which is of the extra `metrics`, is missing."""
    try:
        import prometheus_client  # noqa: F401  # only whether it is there
    except ModuleNotFoundError:
        raise UsageError(
            "metrics need prometheus-client: install it with `pip install 'crawlcw[metrics]'`"
        ) from None


@asynccontextmanager
async def exposed(crawl: Measured, at: Address | None) -> AsyncIterator[None]:
    """Serve the metrics of *crawl* within the block; nothing happens where *at* is None.

    Raises `UsageError` where the address cannot be listened at.
    """
    if at is None:
        yield
        return
    from crawlcw.server.metrics import serving_metrics  # aiohttp's server: few need it
    from crawlcw.telemetry.exposition import Snapshot
    from crawlcw.telemetry.exposition import exposed as text_of

    tasks = TaskCounts(crawl.ledger.queries.counts)

    async def scrape(accept: str) -> tuple[bytes, str]:
        totals, gauges = _snapshot(crawl, await tasks.latest())
        return text_of(Snapshot(totals=totals, gauges=gauges), accept=accept)

    async with serving_metrics(scrape, host=at.host, port=at.port):
        yield


def _snapshot(crawl: Measured, tasks: Values | None) -> tuple[Measures, dict[str, Values]]:
    workers = crawl.measured()
    summed = together(workers.all)
    totals = Measures(
        counters={**summed.counters, metrics.CRASHES.name: {"": workers.crashes}},
        histograms=summed.histograms,
        gauges={
            metrics.WORKERS.name: len(workers.running),
            metrics.STANDSTILL.name: int(crawl.standstill is not None),
        },
    )
    gauges: dict[str, Values] = {
        metric.name: {
            number: each.gauges[metric.name]
            for number, each in workers.running.items()
            if metric.name in each.gauges
        }
        for metric in _OF_WORKERS
    }
    gauges[metrics.INFO.name] = {crawl.spider.name: 1}
    if tasks is not None:
        gauges[metrics.TASKS.name] = tasks
    return totals, gauges
