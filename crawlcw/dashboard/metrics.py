"""Make the dashboard's `/metrics`: numbers of each shown crawl, from its ledger."""

from collections.abc import Mapping
from typing import Any

from crawlcw.dashboard.crawls import Crawls
from crawlcw.errors import LedgerError, LedgerUnavailableError, UsageError
from crawlcw.server.access import RefusedError
from crawlcw.server.metrics import metrics_text
from crawlcw.telemetry import metrics
from crawlcw.telemetry.metrics import Measures, Snapshot, Values


async def scrape(crawls: Crawls, accept: str) -> tuple[bytes, str]:
    """Return the metrics of all shown crawls as a text, and the content type of the text.

    Raises `RefusedError` if prometheus-client is not installed. Raises `LedgerUnavailableError` if
    no ledger is available.
    """
    values_by_crawl = {name: await _values_of(crawls, name) for name in await crawls.names()}
    return metrics_text(Snapshot(totals=Measures(), crawls=values_by_crawl), accept=accept)


async def _values_of(crawls: Crawls, name: str) -> dict[str, Values]:
    try:
        overview = await crawls.overview(name)
        return _gauges_of(await overview.get())
    except LedgerUnavailableError:
        # If no ledger is available, fail the request, so that Prometheus sets `up` to 0.
        raise
    except (LedgerError, UsageError, RefusedError):
        # Show the other ledgers even if this ledger was dropped or is of another version.
        return {metrics.LEDGER_READ.name: {"": 0}}


def _gauges_of(overview: Mapping[str, Any]) -> dict[str, Values]:
    live_workers = [worker for worker in overview["workers"] if not worker["silent"]]
    values: dict[str, Values] = {
        metrics.LEDGER_READ.name: {"": 1},
        metrics.LEDGER_WORKERS.name: {"": len(live_workers)},
        metrics.LEDGER_RATE.name: {"": overview["rate"]},
        metrics.LEDGER_PROCESSING.name: {"": sum(worker["processing"] for worker in live_workers)},
        metrics.LEDGER_PAUSED.name: {"": int(overview["paused"] is not None)},
    }
    if overview["counted_at"] is not None:
        # Omit the number of tasks before the first count, because 0 would be wrong.
        values[metrics.LEDGER_TASKS.name] = overview["counts"]
    return values
