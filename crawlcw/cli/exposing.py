"""Expose the metrics of a crawl or a worker to Prometheus, for `--metrics-port`."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import ParamSpec, TypeVar

import click

from crawlcw.cli.extras import require
from crawlcw.cli.numbers import WholeNumber
from crawlcw.ledger.protocol import Ledger
from crawlcw.telemetry import metrics
from crawlcw.telemetry.metrics import Measures, Snapshot, TaskCounts, Values, sum_measures

P = ParamSpec("P")
R = TypeVar("R")

_OF_WORKERS = (metrics.IN_FLIGHT, metrics.TASKS_LEASED, metrics.HOSTS_RESTING, metrics.MEMORY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The address that the metrics server listens on."""

    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """The measures and crashes of all workers of a crawl."""

    all: Sequence[Measures]  #: measures of all worker processes, including ended processes
    running: Mapping[str, Measures]  #: measures of each running worker, by the worker's number
    crashes: int | None = None  #: number of crashes, or None if there is no supervisor
    is_idle: bool | None = None  #: whether no worker makes progress; None if this is unknown


def options(command: Callable[P, R]) -> Callable[P, R]:
    """Add `--metrics-port` and `--metrics-host` to a command."""
    port = click.option(
        "--metrics-port",
        type=WholeNumber(0, 65535),
        metavar="PORT",
        help="Serve metrics for Prometheus at http://HOST:PORT/metrics during the run.",
    )
    host = click.option(
        "--metrics-host",
        default="127.0.0.1",
        show_default=True,
        metavar="HOST",
        help="Address to listen on for metrics, without access control.",
    )
    return port(host(command))


def address_of(*, host: str, port: int | None) -> Address | None:
    """Return the metrics server's address, or None if *port* is None.

    Raises `UsageError` if prometheus-client, which the extra `metrics` installs, is missing.
    """
    if port is None:
        return None
    with require("prometheus-client", by="metrics need", extra="metrics"):
        import prometheus_client  # noqa: F401  # checks that it is installed
    return Address(host=host, port=port)


@asynccontextmanager
async def exposed(
    name: str, ledger: Ledger, take_measures: Callable[[], Workers], address: Address | None
) -> AsyncIterator[None]:
    """Serve the metrics of a spider or use case within the block, unless *address* is None.

    Each request for the metrics calls *take_measures*. Raises `UsageError` if the server cannot
    listen at *address*.
    """
    if address is None:
        yield
        return
    from crawlcw.server.metrics import (  # aiohttp's server is slow to load
        metrics_text,
        serving_metrics,
    )

    tasks = TaskCounts(ledger.queries.counts)

    async def scrape(accept: str) -> tuple[bytes, str]:
        return metrics_text(_snapshot(name, take_measures(), await tasks.latest()), accept=accept)

    async with serving_metrics(scrape, host=address.host, port=address.port):
        yield


def _snapshot(name: str, workers: Workers, tasks: Values | None) -> Snapshot:
    totals = sum_measures(workers.all)
    if workers.crashes is not None:
        crashes = {metrics.CRASHES.name: {"": workers.crashes}}
        totals = replace(totals, counters={**totals.counters, **crashes})
    gauges: dict[str, Values] = {
        metric.name: {
            number: measures.gauges[metric.name]
            for number, measures in workers.running.items()
            if metric.name in measures.gauges
        }
        for metric in _OF_WORKERS
    }
    gauges |= {metrics.WORKERS.name: {"": len(workers.running)}, metrics.INFO.name: {name: 1}}
    if workers.is_idle is not None:
        gauges[metrics.IDLE.name] = {"": workers.is_idle}
    if tasks is not None:
        gauges[metrics.TASKS.name] = tasks
    return Snapshot(totals=totals, gauges=gauges)
