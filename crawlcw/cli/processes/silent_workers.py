"""Which workers are ended because nothing is heard of them: their event loops stand still."""

import logging
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import timedelta

from crawlcw.cli.processes.worker_process import WorkerProcess
from crawlcw.model.durations import format_duration
from crawlcw.model.stalls import Silence

logger = logging.getLogger(__name__)

LOOK_EVERY = 0.5
#: A worker that is stuck ends by itself, with a dump of its stacks, if it can.
_LONGER = timedelta(seconds=15)
#: One that was told to stop is asked again by signals when it has been silent for so
#: long, and ended when it still is.
_SILENT = 2.0
_STILL_SILENT = 8.0
#: At the second signal it gives back what it holds from another thread; a third would end that.
_ASKED = 2


class SilentWorkers:
    """The workers of one supervisor, and how long each has been silent."""

    def __init__(
        self,
        *,
        callback_timeout: timedelta,
        grace: timedelta,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Kill what is silent for longer than *callback_timeout* (0: never) allows."""
        self._longest = (callback_timeout + min(_LONGER, 2 * callback_timeout)).total_seconds()
        self._grace = grace.total_seconds()
        self._clock = clock
        self._silences: dict[WorkerProcess, tuple[int, Silence]] = {}
        self._asked: Counter[int] = Counter()  #: by process id, how often
        self._ends_from: float | None = None  #: when one that is silent may be ended

    def told(self, *, at_once: bool) -> None:
        """Note that all workers were told to stop."""
        until = self._clock() + (0.0 if at_once else self._grace)
        self._ends_from = until if self._ends_from is None else min(until, self._ends_from)

    def look(self, workers: Iterable[WorkerProcess]) -> None:
        """End those that are silent for too long; is to be called every `LOOK_EVERY` seconds."""
        now = self._clock()
        before, self._silences = self._silences, {}
        for worker in workers:
            heard, silence = before.get(worker, (0, Silence(now=now, look_every=LOOK_EVERY)))
            seconds = silence.look(now, heard=worker.heard != heard or not worker.heard)
            self._silences[worker] = worker.heard, silence
            self._judge(worker, seconds, now)

    def _judge(self, worker: WorkerProcess, silent: float, now: float) -> None:
        stops = self._ends_from is not None and now >= self._ends_from
        if (self._longest and silent >= self._longest) or (stops and silent >= _STILL_SILENT):
            logger.error(
                "process %d has said nothing for %s, so it is killed: its event loop stands still",
                worker.pid,
                format_duration(timedelta(seconds=round(silent))),
                extra={"event": "worker_silent", "pid": worker.pid},
            )
            worker.kill()
        elif stops and silent >= _SILENT and self._asked[worker.pid] < _ASKED:
            self._asked[worker.pid] += 1
            worker.end(signal.SIGTERM)
