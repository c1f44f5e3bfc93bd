"""Whole crawls by several processes with faults, and the checks of their results.

After every scenario the doctor finds no violation, the items are byte for byte those
of a crawl without faults, and no page was fetched more often than the faults explain.
"""

import asyncio
import json
import signal
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from crawlcw import doctor
from crawlcw.ledger.protocol import Worker
from crawlcw.ledger_opening import open_for_inspection, open_ledger
from tests.support.crawl_process import Process, Store, begin_together, wait_until
from tests.support.docs import Site


class Crew:
    """Processes that crawl one site into one ledger; a test may end and replace each."""

    def __init__(self, store: Store, site: Site, log: Path, **settings: Any) -> None:
        self.store = store
        self.site = site
        self._log = log
        self._settings = settings
        self._ended = ExitStack()
        self.workers: list[Process] = []
        #: Tasks that processes held at the moment of their faults.
        self.held_at_faults = 0

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.close()

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def start(self, *, environment: Mapping[str, str] | None = None, **settings: Any) -> Process:
        """Start one more process; *settings* replace those of the crew.

        Both may be any keywords of `Process`.
        """
        worker = self._started(on_cue=False, environment=environment, **settings)
        self.workers.append(worker)
        return worker

    def spare(self, **settings: Any) -> Process:
        """Start a process that waits for `join`, so that its start takes no time then."""
        return self._started(on_cue=True, **settings)

    def join(self, *spares: Process) -> None:
        """Let spare processes join, all at once."""
        begin_together(spares)
        self.workers += spares

    def _started(self, **settings: Any) -> Process:
        chosen = self._settings | settings
        return self._ended.enter_context(
            Process(self.store, [self.site.start], self._log, **chosen)
        )

    def kill(self, worker: Process) -> int:
        """Kill a process now; return the number of tasks that it held."""
        held = self.freeze(worker)
        worker.kill()
        self.workers.remove(worker)
        return held

    def freeze(self, worker: Process) -> int:
        """Stop a process now; return the number of tasks that it holds."""
        worker.send(signal.SIGSTOP)
        held = len(self.store.held_by(worker.pid))
        self.held_at_faults += held
        return held

    def freeze_at_work(self, worker: Process) -> set[str]:
        """Stop a process that holds tasks, outside of a transaction; return their paths."""
        held: set[str] = set()

        def is_frozen() -> bool:
            assert worker.is_running(), worker.log
            worker.send(signal.SIGSTOP)
            if self.store.is_writable():
                held.update(row.path for row in self.store.held_by(worker.pid))
                if held:
                    return True
            worker.send(signal.SIGCONT)
            return False

        wait_until(is_frozen)
        self.held_at_faults += len(held)
        return held

    def ended(self, worker: Process) -> tuple[int, dict[str, Any]]:
        """Wait until a process has ended by itself or by a stop; return exit code and report."""
        code, report = worker.end()
        self.held_at_faults += len(self.store.held_by(worker.pid))
        self.workers.remove(worker)
        return code, report

    def drained(self, *, within: float = 90.0) -> list[dict[str, Any]]:
        """Wait until every process has drained the ledger and ended; return their reports."""
        return [worker.drained(within=within) for worker in self.workers]


def workers_of(url: str, spider: str = "docs") -> list[Worker]:
    """Return the workers that have joined a crawl and not left it."""

    async def joined() -> list[Worker]:
        ledger = await open_ledger(url, spider, create=False)
        try:
            return await ledger.workers.all()
        finally:
            await ledger.close()

    return asyncio.run(joined())


def items_of(url: str, spider: str = "docs") -> bytes:
    """Return every recorded item as one canonical line each, sorted."""

    async def lines() -> list[str]:
        ledger = await open_ledger(url, spider, create=False)
        try:
            return [json.dumps(row.item, sort_keys=True) async for row in ledger.queries.items()]
        finally:
            await ledger.close()

    return "\n".join(sorted(asyncio.run(lines()))).encode()


def without(items: bytes, paths: tuple[str, ...]) -> bytes:
    """Return the items without those of the pages at *paths*."""
    lines = items.split(b"\n")
    return b"\n".join(line for line in lines if json.loads(line)["path"] not in paths)


def examined(url: str, spider: str = "docs") -> doctor.Report:
    """Return the report of `crawlcw doctor`."""

    async def examine() -> doctor.Report:
        ledger = await open_for_inspection(url, spider)
        try:
            return await doctor.examine(ledger)
        finally:
            await ledger.close()

    return asyncio.run(examine())


def assert_as_without_faults(
    store: Store, expected_items: bytes, *, max_retry: int = 3, max_lost: int = 5
) -> None:
    """Assert that a finished crawl has the results of one without faults, and a sound ledger."""
    report = examined(store.url, store.spider)
    assert report.is_clean, report.findings
    assert all(
        (row.lock is None and row.retry <= max_retry and row.lost <= max_lost)
        for row in store.rows()
    )
    items = items_of(store.url, store.spider)
    assert items.count(b"\n") == expected_items.count(b"\n")
    assert items == expected_items


def fetched_again(site: Site) -> int:
    """Return the number of fetches beyond one for each URL."""
    hits = site.hits()
    return hits.total() - len(hits)


def crawled_without_faults(site: Site, folder: Path) -> bytes:
    """Return the items of a crawl of *site* by one process without faults."""
    store = Store(f"sqlite:///{folder}/expected_items.db")
    with Crew(store, site, folder / "expected_items.log") as crew:
        crew.start()
        crew.drained()
    return items_of(store.url)
