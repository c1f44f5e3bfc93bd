"""End this process at a deadline, even if the user's code still runs.

The process would live for ever if code ignores its cancellation, blocks the event loop, or leaves a
thread or a task behind. A timer's thread ends the process even if the event loop is blocked.
"""

import gc
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType
from typing import TYPE_CHECKING, Any, NoReturn

import crawlcw
from crawlcw.cli.exit_codes import INTERRUPTED

if TYPE_CHECKING:
    import asyncio

logger = logging.getLogger(__name__)

#: After the grace, the process has this number of seconds to cancel code and to release leases.
_BEYOND_GRACE = 3.0
#: Maximum number of seconds in which the timer thread releases leases and writes messages.
_LAST_WORDS = 6.0
#: Seconds that crawlcw's own work, such as a commit, may take after the deadline.
_OWN_WORK = 60.0
#: Seconds that the process waits, after a command, for threads of the user's code.
_CLEANUP_S = 10.0
_MAX_LOCATIONS = 3
#: The names of two attributes of suspended code: its frame, and the object that the code awaits.
_FRAME_ATTRIBUTES = {
    CoroutineType: ("cr_frame", "cr_await"),
    GeneratorType: ("gi_frame", "gi_yieldfrom"),
    AsyncGeneratorType: ("ag_frame", "ag_await"),
}
_CRAWLCW = str(Path(crawlcw.__file__).parent)
#: Path prefixes of source files whose code is not the user's.
_LIBRARIES = (_CRAWLCW, str(Path(os.__file__).parent), "uvloop/", "<")
_PACKAGE_FOLDERS = ("site-packages", "dist-packages")


class Deadline:
    """Ends this process at the earliest of the end times that callers have set.

    Any thread and any signal handler may set an end time.
    """

    def __init__(self) -> None:
        #: Whether this process is the `crawlcw` command; False in a program that imports crawlcw.
        self.is_enabled = False
        self.loop: asyncio.AbstractEventLoop | None = None
        self.folder = ""  #: folder of the spider's package, if it is installed
        #: Releases and reports unfinished work at the deadline, and returns the exit code.
        self.finish: Callable[[], int] = lambda: INTERRUPTED
        self.is_finished = False
        self.is_at_once = False  #: whether a second signal has arrived
        #: Called to report the outcome of the command; returns the exit code.
        self.report: Callable[[Callable[[], object]], int] = lambda _: INTERRUPTED
        self._timer: threading.Timer | None = None
        self._ends_at = math.inf
        self._has_passed = False

    def add_user_package(self, spider: type) -> None:
        """Treat the package of *spider* as the user's code, even if the package is installed."""
        package, dot, _ = spider.__module__.partition(".")
        if dot:
            self.folder = str(Path(sys.modules[package].__file__ or "").parent)

    def allow(self, grace: timedelta) -> None:
        """End the process 3 s after the grace period, unless the process ends earlier."""
        self.set(grace.total_seconds() + _BEYOND_GRACE)

    def hurry(self) -> None:
        """End the process within 3 s, because the user does not want to wait longer."""
        self.is_at_once = True
        self.set(_BEYOND_GRACE)

    def end_command(self, outcome: Callable[[], object]) -> None:
        """Record that the command has ended; *outcome* returns its result or raises its error."""
        self.finish, self.is_finished = partial(self.report, outcome), True

    def set(self, seconds: float) -> None:
        """End the process after *seconds*, unless the process ends earlier."""
        ends_at = time.monotonic() + seconds
        if not self.is_enabled or ends_at >= self._ends_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._ends_at = ends_at
        self._timer = threading.Timer(seconds, self._end_process)
        self._timer.daemon = True
        self._timer.start()

    def lift(self) -> None:
        """Remove the deadline after the crawl's end, so that the crawl's results can be written.

        This method does not return if the deadline has passed, because the timer's thread then
        writes the results.
        """
        if self._has_passed:
            threading.Event().wait()
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._ends_at = None, math.inf

    def _running_locations(self) -> list[str]:
        return running_code(self.loop, folder=self.folder)

    def _end_process(self) -> None:
        give_up_at = time.monotonic() + _OWN_WORK
        while (
            not (locations := self._running_locations())
            and not self.is_finished
            and time.monotonic() < give_up_at
        ):
            time.sleep(0.2)
            if self._timer is not threading.current_thread():
                return
        self._has_passed = True
        with suppress(RuntimeError):  # Python starts no thread while it exits
            exit_timer = threading.Timer(_LAST_WORDS, os._exit, [INTERRUPTED])
            exit_timer.daemon = True
            exit_timer.start()
        location_list = ", ".join(locations[:_MAX_LOCATIONS]) + (
            ", ..." if locations[_MAX_LOCATIONS:] else ""
        )
        logger.warning(
            "your code still runs: %s; %sthe process ends",
            location_list or "unknown",
            "" if self.is_finished else "all tasks are released, and ",
            extra={"event": "still_running", "number": len(locations)},
        )
        try:
            exit_code = self.finish()
        except Exception as error:
            exit_code = INTERRUPTED
            logger.warning(
                "could not release the leases, which will expire: %s",
                error,
                extra={"event": "not_released"},
            )
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(exit_code)


#: The deadline of this process.
deadline = Deadline()


def end_process(code: int) -> NoReturn:
    """Exit with *code*, without waiting for ever for threads of the user's code."""
    deadline.finish, deadline.is_finished = lambda: code, True
    deadline.set(_CLEANUP_S)
    sys.exit(code)


def running_code(loop: "asyncio.AbstractEventLoop | None", *, folder: str = "") -> list[str]:
    """Return the running lines of the user's code; do not call this in the event loop's thread.

    Code in installed packages is not the user's code, except for files in *folder*.
    """
    import asyncio  # imported late: most commands do not need it

    from crawlcw.model.sanitize import printable

    stacks = sys._current_frames()  # noqa: SLF001  # the function's documented name
    locations = []
    for thread in threading.enumerate():
        if thread.daemon or thread is threading.current_thread():
            continue
        stack = list(_callers(stacks.get(thread.ident or 0)))
        location = _user_location(stack, folder)
        if thread is threading.main_thread():
            locations += [location] if location else []
        elif location or not _is_own(stack):
            locations.append(f"thread {thread.name}" + (f", {location}" if location else ""))
    if loop is not None:
        tasks = [task for task in asyncio.all_tasks(loop) if not task.done()]
        locations += filter(
            None, (_user_location(_awaited(task.get_coro()), folder) for task in tasks)
        )
    return [printable(location) for location in dict.fromkeys(locations)]


def _user_location(stack: list[FrameType], folder: str) -> str:
    """Return function, file and line of the user's innermost frame; `""` if no user code runs."""
    for frame in stack:
        code = frame.f_code
        if frame.f_globals.get("__name__") == "__main__":
            continue  # skip the script that starts the command
        if not code.co_filename.startswith(_LIBRARIES) and (
            (folder and code.co_filename.startswith(folder))
            or not any(name in code.co_filename for name in _PACKAGE_FOLDERS)
        ):
            return f"{code.co_qualname} ({Path(code.co_filename).name}:{frame.f_lineno})"
    return ""


def _is_own(stack: list[FrameType]) -> bool:
    """Return whether a thread without user code in its *stack* is idle or runs crawlcw's code."""
    if not stack or any(frame.f_code.co_filename.startswith(_CRAWLCW) for frame in stack):
        return True
    # `_worker` waits in C code, a thread of anyio in `Queue.get`, and the loop's last thread in
    # `Executor.shutdown`.
    names = {frame.f_code.co_name for frame in stack}
    return not names.isdisjoint(("get", "shutdown")) or stack[0].f_code.co_name == "_worker"


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames of a thread, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _awaited(awaitable: Any) -> list[FrameType]:
    """Return the frames of a suspended coroutine and of its awaited coroutines, innermost first."""
    frames: list[FrameType] = []
    while awaitable is not None:
        for frame_name, next_name in _FRAME_ATTRIBUTES.values():
            if frame := getattr(awaitable, frame_name, None):
                frames.insert(0, frame)
                awaitable = getattr(awaitable, next_name)
                break
        else:
            # The awaitable of `__anext__` has no attribute for its generator, so ask `gc`.
            candidates = [
                referent
                for referent in gc.get_referents(awaitable)
                if type(referent) in _FRAME_ATTRIBUTES
            ]
            awaitable = candidates[0] if len(candidates) == 1 else None
    return frames
