"""`/metrics` of the dashboard: numbers of each shown crawl, from its ledger."""

from collections.abc import Mapping
from typing import Any

from crawlcw.dashboard.crawls import Crawls
from crawlcw.errors import LedgerError, LedgerUnavailableError, UsageError
from crawlcw.server.access import RefusedError
from crawlcw.server.metrics import text_of
from crawlcw.telemetry import metrics
from crawlcw.telemetry.metrics import Measures, Snapshot, Values


async def scrape(crawls: Crawls, accept: str) -> tuple[bytes, str]:
    """Return the text and its content type, with the numbers that the page shows.

    Raises `RefusedError` without prometheus-client, and `LedgerUnavailableError`.
    """
    found = {name: await _told_of(crawls, name) for name in await crawls.names()}
    return text_of(Snapshot(totals=Measures(), crawls=found), accept=accept)


async def _told_of(crawls: Crawls, name: str) -> dict[str, Values]:
    try:
        overview = await crawls.overview(name)
        return _numbers(await overview.get())
    except LedgerUnavailableError:
        # It is unavailable for all: an error makes Prometheus set `up` to 0.
        raise
    except (LedgerError, UsageError, RefusedError):
        # A ledger of another schema, or one dropped just now, must not hide the others.
        return {metrics.LEDGER_READ.name: {"": 0}}


def _numbers(now: Mapping[str, Any]) -> dict[str, Values]:
    at_work = [worker for worker in now["workers"] if not worker["silent"]]
    found: dict[str, Values] = {
        metrics.LEDGER_READ.name: {"": 1},
        metrics.LEDGER_WORKERS.name: {"": len(at_work)},
        metrics.LEDGER_RATE.name: {"": now["rate"]},
        metrics.LEDGER_IN_FLIGHT.name: {"": sum(worker["processing"] for worker in at_work)},
        metrics.LEDGER_PAUSED.name: {"": int(now["paused"] is not None)},
    }
    if now["counted"] is not None:
        # Left out before the first count: 0 would be wrong.
        found[metrics.LEDGER_TASKS.name] = now["counts"]
    return found
