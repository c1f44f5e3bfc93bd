"""Workers on a ledger: the name and heartbeat of this process, and neighbours that are dead.

After a `kill -9` the dead process's leases would block its tasks until they run
out. On the machine it ran on, each process can see that it is gone.
"""

import asyncio
import logging
import os
import re
import resource
import secrets
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from hashlib import blake2b
from pathlib import Path

import anyio

from crawlcw.engine.stats import Stats
from crawlcw.errors import LedgerError, LedgerUnavailableError
from crawlcw.ledger.protocol import Ledger, Worker
from crawlcw.model.rates import Point, Vitals, minute_of
from crawlcw.model.sanitize import printable
from crawlcw.model.transitions import Event

logger = logging.getLogger(__name__)

#: Longer than any lease: what it held has run out by then.
_LONGEST_SILENCE = timedelta(days=1)
#: Seconds between two heartbeats.
_LONGEST_PAUSE = 5.0
#: A worker that has been silent for as many beats is not counted on.
_MISSED_BEATS = 3
_RATE_OVER = 60.0
_STATM = Path("/proc/self/statm")


def this_worker(*, now: datetime) -> Worker:
    """Return this process as a worker, with a name that no other one has."""
    pid = os.getpid()
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:40]
    return Worker(
        name=f"{host}-{pid}-{secrets.token_hex(4)}",
        machine=_machine(),
        pid=pid,
        birth=_birth(pid) or "",
        started=now,
        host=socket.gethostname(),
    )


def is_dead(worker: Worker) -> bool:
    """Return whether *worker* certainly is dead: it ran on this machine and its process is gone."""
    return worker.machine == _machine() and _birth(worker.pid) != worker.birth


def is_gone(worker: Worker, *, now: datetime) -> bool:
    """Return whether *worker*, of any machine, has been silent too long to be counted on."""
    return worker.heartbeat is not None and now - worker.heartbeat > _LONGEST_SILENCE


def _machine() -> str:
    """Return a name for this machine since its last boot, as this process numbers processes."""
    parts = [socket.gethostname()]
    try:
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        # Two containers on one machine number their processes apart.
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    except OSError:
        pass  # no Linux: the host name has to do
    return blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()


def _birth(pid: int) -> str | None:
    """Return when process *pid* was started, in some unit; "" if unknown; None if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "" if not Path("/proc/self").exists() and _exists(pid) else None
    # Behind the name, which is in parentheses and may hold anything: field 22
    # is the start time, field 3 the state; a zombie is dead.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


async def reap_dead_workers(ledger: Ledger) -> int:
    """End the leases of workers that are no more; return how many leases of tasks.

    Of other machines' workers nobody knows that but by a very long silence;
    their leases have run out before.
    """
    ended = 0
    for worker in await dead_workers(ledger):
        ended += await ledger.workers.leave(worker.name)
        logger.info(
            "took back the leases of %s, which is dead",
            printable(worker.name),
            extra={"event": "worker_dead", "worker": worker.name},
        )
    return ended


async def dead_workers(ledger: Ledger) -> list[Worker]:
    """Return the workers that are on the list of those at work and are no more."""
    now = ledger.now()
    listed = await ledger.workers.all()
    return [each for each in listed if is_dead(each) or is_gone(each, now=now)]


def resident_memory() -> int:
    """Return how many bytes of this process are in memory."""
    try:
        pages = int(_STATM.read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        # No Linux: the most that it ever was has to do.
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
    return pages * resource.getpagesize()


class Heartbeat:
    """A worker, as the others see it."""

    def __init__(
        self,
        ledger: Ledger,
        worker: str,
        stats: Stats,
        *,
        lease: Callable[[], timedelta],
        in_flight: Callable[[], int] = lambda: 0,
        lag: Callable[[], float] = lambda: 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """*worker* is its name, *stats* what it counts; *lease* returns how long its leases are.

        *in_flight* returns how many tasks are held; *lag* by how many seconds the event loop
        was late since it was asked last.
        """
        self._ledger = ledger
        self._worker = worker
        self._stats = stats
        self._lease = lease
        self._in_flight = in_flight
        self._lag = lag
        self._clock = clock
        self._samples = deque([(clock(), stats.pages)])
        self._shown = Vitals()
        self._started = ledger.now()
        #: In which minute a point was left, or the worker started.
        self._recorded = minute_of(self._started)
        self._longest_lag = 0.0  #: since then, in seconds
        self._hungry = False
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Beat until cancelled: every few seconds, and at once when hunger comes or goes."""
        while True:
            with anyio.move_on_after(min(_LONGEST_PAUSE, self._lease().total_seconds() / 3)):
                await self._changed.wait()
            self._changed.clear()
            try:
                await self.beat()
            except LedgerUnavailableError as error:
                logger.debug("no heartbeat: %s", printable(error), extra={"event": "no_heartbeat"})
            else:
                await self.record()

    async def beat(self, over: Ledger | None = None) -> None:
        """Write it down once; raises `LedgerError`.

        It goes *over* another connection while the loop stands still, which wants no hosts then.
        """
        hungry = self._hungry and over is None
        self._shown = self.vitals()
        self._longest_lag = max(self._longest_lag, self._shown.lag)
        await (over or self._ledger).workers.beat(
            self._worker, self._stats.counted(), hungry=hungry, vitals=self._shown
        )

    def vitals(self) -> Vitals:
        """Return how this process is just now; for any thread."""
        stats = self._stats
        return Vitals(
            finished=stats.pages,
            failed=stats.outcomes[Event.FAIL],
            ignored=stats.given_up + stats.unwanted,
            items=stats.items,
            bytes=stats.bytes,
            rate=round(self._rate(), 3),
            in_flight=self._in_flight(),
            memory=resident_memory(),
            lag=round(self._lag(), 4),
        )

    def _rate(self) -> float:
        """Return how many tasks were finished a second in the last minute, or since the start."""
        now, samples = self._clock(), self._samples
        samples.append((now, self._stats.pages))
        while len(samples) > 2 and now - samples[1][0] >= _RATE_OVER:
            samples.popleft()
        began, first = samples[0]
        return (self._stats.pages - first) / (now - began) if now > began else 0.0

    async def record(self, *, last: bool = False) -> None:
        """Leave a point of what was shown last, unless there is one of this minute.

        One more is left as the *last* one, for the worker leaves.
        """
        now = self._ledger.now()
        if not last and minute_of(now) <= self._recorded:
            return
        point = Point(
            worker=self._worker,
            started=self._started,
            time=now,
            vitals=replace(self._shown, lag=self._longest_lag),
            last=last,
        )
        try:
            await self._ledger.rates.record(point)
        except LedgerError as error:
            # It costs no page: what this one counts is in the next one.
            logger.debug("no point of the rates: %s", printable(error), extra={"event": "no_point"})
        else:
            self._recorded, self._longest_lag = minute_of(now), 0.0

    def starving(self, hungry: bool) -> None:
        """Note whether this worker's fetchers have no host to ask, though there is work."""
        if hungry != self._hungry:
            self._hungry = hungry
            self._changed.set()

    async def neighbours(self) -> tuple[int, int]:
        """Return how many workers are at work, and how many others of them are hungry."""
        now = self._ledger.now()
        silent = timedelta(seconds=_MISSED_BEATS * _LONGEST_PAUSE)
        workers = [
            worker
            for worker in await self._ledger.workers.all()
            if worker.heartbeat is not None and now - worker.heartbeat < silent
        ]
        return len(workers), sum(each.hungry and each.name != self._worker for each in workers)
