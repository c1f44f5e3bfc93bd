"""Virtual time, and processes in it that can be killed and paused.

A coroutine of the product runs here unchanged if it waits for `Signal`s only. Time
jumps from one event to the next, without sleeps. The times of the events determine
the run, so the same seed gives the same run.
"""

import heapq
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class Cancelled(BaseException):
    """Thrown into a thread to end it, as asyncio does."""


class Timeline:
    """The events to come, in the order of their times."""

    def __init__(self) -> None:
        self.now = 0.0  #: seconds
        self.running: Process | None = None
        self._events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._number = 0

    def at(self, time: float, act: Callable[..., object], *given: Any) -> None:
        """Call *act* at a time that is not past."""
        self._number += 1
        heapq.heappush(self._events, (time, self._number, act, given))

    def after(self, seconds: float, act: Callable[..., object], *given: Any) -> None:
        """Call *act* in *seconds* seconds."""
        self.at(self.now + seconds, act, *given)

    def run(self, *, until: float) -> bool:
        """Run all events up to a time; return whether none is left."""
        events = self._events
        while events and events[0][0] <= until:
            self.now, _, act, given = heapq.heappop(events)
            act(*given)
        return not events


class Signal:
    """An event for one thread, set once, with a value or an error."""

    __slots__ = ("_error", "_value", "come", "waiting")

    def __init__(self) -> None:
        self.come = False
        self.waiting: Thread | None = None
        self._value: Any = None
        self._error: Exception | None = None

    def __await__(self) -> Generator["Signal", None, Any]:
        if not self.come:
            yield self
        if self._error is not None:
            raise self._error
        return self._value

    def send(self, value: Any = None) -> None:
        """Set the event, unless it is set."""
        if not self.come:
            self.come, self._value = True, value
            self._wake()

    def fail(self, error: Exception) -> None:
        """Set the event with an error, unless it is set."""
        if not self.come:
            self.come, self._error = True, error
            self._wake()

    def _wake(self) -> None:
        if self.waiting is not None:
            self.waiting.wake()


class Thread:
    """One coroutine of a process."""

    def __init__(self, process: "Process", coroutine: Coroutine[Any, Any, Any]) -> None:
        self.outcome = Signal()
        self.watched = False  #: whether a caller waits for the outcome, errors included
        self._process = process
        self._coroutine = coroutine
        self._awaited: Signal | None = None
        self._due = self._cancelled = False

    def wake(self) -> None:
        """Continue the thread at once, or when its process is resumed."""
        if not self._due and not self._process.dead:
            self._due = True
            self._process.timeline.after(0.0, self.step)

    def cancel(self) -> None:
        """Cancel the thread where it waits."""
        if not self.outcome.come:
            self._cancelled = True
            self.wake()

    def close(self) -> None:
        """End the thread without running its code, as in a killed process."""
        self._coroutine.close()

    def step(self) -> None:
        process = self._process
        if process.dead:
            return
        if process.paused:
            process.postponed.append(self)
            return
        self._due = False
        if self._awaited is not None:
            self._awaited.waiting = None
        process.timeline.running = process
        try:
            if self._cancelled:
                self._cancelled = False
                awaited = self._coroutine.throw(Cancelled())
            else:
                awaited = self._coroutine.send(None)
        except StopIteration as end:
            self._end()
            self.outcome.send(end.value)
        except Cancelled:
            self._end()
            self.outcome.send()
        except Exception as error:
            self._end()
            if not self.watched:
                raise
            self.outcome.fail(error)
        else:
            self._awaited = awaited
            awaited.waiting = self

    def _end(self) -> None:
        self._process.threads.pop(self, None)


class Process:
    """Threads that live and die together."""

    def __init__(self, timeline: Timeline, name: str) -> None:
        self.timeline = timeline
        self.name = name
        self.dead = self.paused = False
        self.threads: dict[Thread, None] = {}  #: a dict, for its fixed order
        self.postponed: list[Thread] = []

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> Thread:
        """Run a coroutine as a thread of this process."""
        thread = Thread(self, coroutine)
        if self.dead:
            thread.close()
        else:
            self.threads[thread] = None
            thread.wake()
        return thread

    async def sleep(self, seconds: float) -> None:
        """Wait for virtual seconds."""
        passed = Signal()
        self.timeline.after(seconds, passed.send)
        await passed

    def kill(self) -> None:
        """End the process as SIGKILL does."""
        if not self.dead:
            self.dead = True
            # A `finally` of theirs may start new threads, which must not run.
            for thread in list(self.threads):
                thread.close()
            self.threads.clear()

    def pause(self) -> None:
        """Stop the process as SIGSTOP does; time goes on."""
        self.paused = True

    def resume(self) -> None:
        """Continue the process with its outdated state."""
        self.paused = False
        postponed, self.postponed = self.postponed, []
        for thread in postponed:
            self.timeline.after(0.0, thread.step)


class Event:
    """The event of asyncio and anyio."""

    def __init__(self) -> None:
        self._waiting: list[Signal] = []
        self._set = False

    def set(self) -> None:
        self._set = True
        for signal in self._waiting:
            signal.send()

    def clear(self) -> None:
        self._set = False

    async def wait(self, process: Process | None = None, seconds: float = 0.0) -> None:
        """Wait until it is set, or for virtual seconds of a process."""
        if not self._set:
            signal = Signal()
            self._waiting.append(signal)
            if process is not None:
                process.timeline.after(seconds, signal.send)
            await signal
            self._waiting.remove(signal)


class Concurrency:
    """The parts of asyncio and anyio that the product uses, on a timeline."""

    Event = Event
    CancelledError = Cancelled

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline

    def create_task(self, coroutine: Coroutine[Any, Any, Any]) -> Signal:
        assert self._timeline.running is not None
        thread = self._timeline.running.spawn(coroutine)
        thread.watched = True
        return thread.outcome

    async def gather(self, *coroutines: Coroutine[Any, Any, Any]) -> list[Any]:
        outcomes = [self.create_task(coroutine) for coroutine in coroutines]
        return [await outcome for outcome in outcomes]

    @contextmanager
    def move_on_after(self, _seconds: float) -> Iterator[SimpleNamespace]:
        """Wait without a limit, because no work of the model takes as long as one."""
        yield SimpleNamespace(cancelled_caught=False)

    async def checkpoint(self) -> None:
        passed = Signal()
        self._timeline.after(0.0, passed.send)
        await passed


@contextmanager
def virtual(timeline: Timeline, *modules: ModuleType) -> Iterator[None]:
    """Make *modules* use the timeline instead of asyncio and anyio."""
    concurrency = Concurrency(timeline)
    stands_for = {
        "asyncio": concurrency,
        "anyio": concurrency,
        "checkpoint": concurrency.checkpoint,
    }
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            for name, replacement in stands_for.items():
                if hasattr(module, name):
                    patch.setattr(module, name, replacement)
        yield
