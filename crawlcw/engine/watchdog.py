"""Thread that detects callbacks that block the event loop or never return.

While the loop stalls, the watchdog thread logs the blocking callback and renews leases. If the
stall reaches a limit, the thread ends the process. If C code holds the interpreter's lock, the
thread cannot run; then a timer of CPU time ends the process.
"""

import asyncio
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from types import FrameType, MappingProxyType
from typing import Self

import anyio
from anyio import to_thread
from anyio.lowlevel import checkpoint

from crawlcw.api.user_code import Called, running_in
from crawlcw.engine.stats import Stats
from crawlcw.errors import FetchError, Reason
from crawlcw.model.clock import STALL, TICK, Silence, StallLog
from crawlcw.model.durations import format_duration
from crawlcw.model.sanitize import printable

logger = logging.getLogger(__name__)

#: Exit code of a process whose event loop was blocked for longer than `callback_timeout`.
STUCK_EXIT_CODE = 124
_POLL_INTERVAL_S = 0.25
#: Seconds after which the process ends even if the last log lines are not written yet.
_LOG_TIMEOUT_S = 2.0
#: Maximum seconds of a renewal of leases; the watchdog cannot watch the event loop meanwhile.
_RENEWAL_TIMEOUT_S = 5.0
#: Seconds by which the CPU timer exceeds the limit, so that the watchdog thread acts first.
_CPU_MARGIN_S = 5.0


class Watchdog:
    """Thread that watches the event loop until the watchdog's `async with` block ends.

    A watchdog measures stalls only while its `async with` block runs.
    """

    def __init__(
        self,
        stats: Stats,
        *,
        limit: timedelta,
        renew_every: timedelta = timedelta(0),
        renew: Callable[[], Awaitable[None]] = checkpoint,
        deadlines: Mapping[Reason, float] = MappingProxyType({}),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """End the process if user code blocks the loop for longer than *limit*; 0 means no limit.

        While the loop stalls, the watchdog thread calls *renew* every *renew_every* seconds, in
        another loop. *deadlines* maps the failure reason of each timeout to the timeout's length.
        """
        self.stalls = StallLog(now=float("inf"))
        self.limit = limit.total_seconds()
        self._stats = stats
        self.renew_every = renew_every.total_seconds()
        #: The user's code that the event loop has run since the last call of `_tick`.
        self.last_user_call: Called | None = None
        self._renew = renew
        self._deadlines = deadlines
        self._clock = clock
        self._renewed_at = clock()
        self._logged_callbacks: set[str] = set()
        #: Maximum CPU seconds between two calls of `_tick`; 0 means no limit.
        self._cpu_limit_s = 0.0
        self._tick_handle: asyncio.TimerHandle
        self._stop_event = threading.Event()
        self._thread: threading.Thread
        self._loop_thread = 0
        self._max_lag = 0.0

    def stall_since(self, started_at: float) -> float:
        """Return how many seconds the loop has stalled since *started_at*."""
        return self.stalls.seconds_since(started_at, now=self._clock())

    def explains(self, error: FetchError, started_at: float) -> bool:
        """Return whether a request sent at *started_at* failed only because the loop stalled."""
        limit_by_reason = self._deadlines
        if error.deadline is not None:
            limit_by_reason = {**limit_by_reason, error.reason: error.deadline}
        explained_by_stall = self.stalls.explains(
            error.underlying, started_at, now=self._clock(), limits=limit_by_reason
        )
        self._stats.forgiven += explained_by_stall
        return explained_by_stall

    def lag(self) -> float:
        """Return the event loop's longest lag in seconds since the last call of this method."""
        longest_lag, self._max_lag = self._max_lag, 0.0
        return max(longest_lag, self.stalls.lag(self._clock()))

    def blocking_code(self) -> str:
        """Return the name of the user's callback that blocks the event loop, and the page's URL."""
        user_call = running_in(self._loop_frame())
        return "" if user_call is None else f"{user_call.name} of {user_call.subject}"

    async def __aenter__(self) -> Self:
        """Start to watch."""
        self._loop_thread = threading.get_ident()
        self.stalls = StallLog(now=self._clock())
        # A process has only one timer of CPU time, so do not set it if other code uses it.
        if signal.getsignal(signal.SIGVTALRM) is signal.SIG_DFL:
            self._cpu_limit_s = self.limit + min(_CPU_MARGIN_S, self.limit)
            # `chain` calls the default handler afterwards, which ends the process.
            faulthandler.register(signal.SIGVTALRM, file=2, chain=True)
        self._tick()
        self._stop_event.clear()
        self._thread = threading.Thread(target=self._run, name="crawlcw watchdog", daemon=True)
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop watching."""
        self._tick_handle.cancel()
        self._stop_event.set()
        with anyio.CancelScope(shield=True):
            # Do not wait for a long renewal; the thread is a daemon, so it does not delay the exit.
            await to_thread.run_sync(self._thread.join, _LOG_TIMEOUT_S)
        if self._cpu_limit_s:
            self._cpu_limit_s = 0.0
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    def _tick(self) -> None:
        now = self._clock()
        lag = self.stalls.ticked(now)
        self._stats.loop_lag.observe(lag)
        self._max_lag = max(self._max_lag, lag)
        if lag >= STALL:
            self._stats.stalls += 1
            self._stats.longest_stall = max(self._stats.longest_stall, round(lag, 3))
            # Log the stall here too, because the watchdog thread may not have run during the stall.
            self._log_stall(self.last_user_call, lag)
        self.last_user_call = None
        if self._cpu_limit_s:
            signal.setitimer(signal.ITIMER_VIRTUAL, self._cpu_limit_s)
        self._tick_handle = asyncio.get_running_loop().call_later(TICK, self._tick)

    def _run(self) -> None:
        try:
            # Use asyncio's own loop, because uvloop could share state with the main loop.
            with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
                self._watch(runner)
        except Exception:
            logger.exception("a bug in crawlcw", extra={"event": "internal"})

    def _watch(self, runner: asyncio.Runner) -> None:
        silence = Silence(now=self._clock(), interval=_POLL_INTERVAL_S)
        while not self._stop_event.wait(_POLL_INTERVAL_S):
            now = self._clock()
            lag = self.stalls.lag(now)
            silent_s = silence.record(now, has_sign=lag < _POLL_INTERVAL_S)
            # If leases are short, renew them early, because a renewal must first connect.
            if lag < min(STALL, self.renew_every / 2):
                continue
            if now - self._renewed_at >= self.renew_every:
                self._renewed_at = now
                runner.run(self._renew_in_thread())
            if lag < STALL:
                continue
            frame = self._loop_frame()
            user_call = running_in(frame)
            self._log_stall(user_call, lag)
            # Restart the CPU timer: this thread runs, so no C code holds the interpreter's lock.
            if self._cpu_limit_s:
                signal.setitimer(signal.ITIMER_VIRTUAL, self._cpu_limit_s)
            if user_call is not None and self.limit and silent_s >= self.limit:
                self._end_process(user_call, frame)

    def _loop_frame(self) -> FrameType | None:
        return sys._current_frames().get(self._loop_thread)  # noqa: SLF001  # documented by Python

    def _log_stall(self, user_call: Called | None, lag: float) -> None:
        name = user_call.name if user_call is not None else ""
        if name in self._logged_callbacks:
            return
        self._logged_callbacks.add(name)
        logger.log(
            logging.DEBUG if user_call is None else logging.WARNING,
            "the event loop stalled for %.1f s%s: nothing else can run during a stall",
            lag,
            "" if user_call is None else printable(f", in {user_call.name} of {user_call.subject}"),
            extra={"event": "loop_stalled", "callback": name},
        )

    async def _renew_in_thread(self) -> None:
        try:
            with anyio.fail_after(_RENEWAL_TIMEOUT_S):
                await self._renew()
        except Exception as error:
            logger.debug(
                "cannot renew leases during a stall: %s",
                printable(error),
                extra={"event": "not_renewed"},
            )

    def _end_process(self, user_call: Called, frame: FrameType | None) -> None:
        # End the process even if the log blocks, because the blocking code may hold the log's lock.
        threading.Timer(_LOG_TIMEOUT_S, os._exit, [STUCK_EXIT_CODE]).start()
        logger.error(
            "%s has blocked the event loop for more than %s on %s: this process ends "
            "(callback_timeout)",
            printable(user_call.name),
            format_duration(timedelta(seconds=self.limit)),
            printable(user_call.subject),
            extra={
                "event": "callback_stuck",
                "url": user_call.subject,
                "callback": user_call.name,
                "traceback": "".join(traceback.format_stack(frame)),
            },
        )
        faulthandler.dump_traceback(file=2)
        os._exit(STUCK_EXIT_CODE)
