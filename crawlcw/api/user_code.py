"""Call the user's code, isolate its errors, and record which function runs.

`SystemExit`, `KeyboardInterrupt`, `GeneratorExit` and `CancelledError` from a callback are errors
like any other. The crawl gets a `CancelledError` only if the crawl itself has cancelled the call.
If user code cancels the asyncio task that runs it, only the call of this code fails.
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, TypeVar

import anyio

from crawlcw.api.scrapy_words import selector_hint
from crawlcw.errors import LedgerGoneError, LedgerUnavailableError, Reason, SpiderError, StopCrawl
from crawlcw.model.sanitize import describe_error, format_traceback, printable, text_of, where
from crawlcw.model.transitions import Failed

F = TypeVar("F", bound=Callable[..., object])


class EscapedError(Exception):
    """User code raised an error that would end the process, or the asyncio task of its caller."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)  # makes the error picklable
        self.error = error


_AN_INSTANT = 0.01
_CODE_OF_CALLERS: set[CodeType] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """A call of a user's function."""

    name: str  #: of the function
    subject: str  #: the URL of the page, or the key of the task


def calls_user_code(function: F) -> F:
    """Mark *function*, which calls user code and has a local variable `called` about the call."""
    _CODE_OF_CALLERS.add(function.__code__)
    return function


def running_in(frame: FrameType | None) -> Called | None:
    """Return the call of user code that runs in a thread; *frame* is its innermost frame."""
    while frame is not None:
        if frame.f_code in _CODE_OF_CALLERS:
            called = frame.f_locals.get("called")
            return called if isinstance(called, Called) else None
        frame = frame.f_back
    return None


def without_escape(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of *function*; raises `EscapedError` for an error that is no `Exception`.

    A worker of a pool (a thread or process) must survive the error, because the pool may already
    have given the worker its next call.
    """
    try:
        return function(*arguments)
    except Exception:
        raise
    except BaseException as error:
        raise EscapedError(error) from None


class Cancellation:
    """Tells whether the crawl or the user's code has cancelled a task.

    Make the `Cancellation` before the user's code runs. `Cancellation` ignores a cancellation by a
    timeout or scope in the user's code, because the timeout or scope undoes it.

    - In a task group, the crawl cancels a task by a cancel scope around the task, or by *deadline*.
      `Cancellation` undoes any other `task.cancel()`, which must come from the user's code.
    - Outside of task groups, every `task.cancel()` counts as a cancellation by the crawl.
    """

    def __init__(self, *, deadline: asyncio.Timeout | None = None) -> None:
        self._task = asyncio.current_task()
        self._earlier_requests = self._task.cancelling() if self._task is not None else 0
        self._deadline = deadline

    def passes(self, error: BaseException) -> bool:
        """Return whether *error* is a cancellation by the crawl, which must be raised again."""
        if isinstance(error, asyncio.CancelledError):
            if self._task is None or self._task.cancelling() <= self._earlier_requests:
                return False
            if self._is_outside():
                return True
            self._withdraw_cancellations()
            return False
        # Python closes an abandoned coroutine with a `GeneratorExit`.
        return isinstance(error, GeneratorExit) and self._is_abandoned()

    async def raise_pending(self) -> None:
        """Raise a cancellation that the user's code has requested, if it is still pending.

        Await `raise_pending` when the user's code has ended. Without this call, the cancellation
        would interrupt the next `await` of the crawl.
        """
        if self._task is not None and self._task.cancelling() > self._earlier_requests:
            await asyncio.sleep(0)
            if not self._is_outside():
                self._withdraw_cancellations()  # the user's code caught the cancellation

    async def raise_pending_after(self, error: BaseException) -> None:
        """Call `raise_pending` after *error*, but raise only a cancellation by the crawl."""
        try:
            await self.raise_pending()
        except asyncio.CancelledError as cancelled:
            if self.passes(cancelled):
                raise cancelled from error

    @asynccontextmanager
    async def contained(self) -> AsyncIterator[None]:
        """Raise `EscapedError` in place of a bare `BaseException`, unless `passes(error)`."""
        try:
            yield
            await self.raise_pending()
        except Exception as error:
            await self.raise_pending_after(error)
            raise
        except BaseException as error:
            if self.passes(error):
                raise
            await self.raise_pending_after(error)
            raise EscapedError(error) from error

    def _is_outside(self) -> bool:
        if self._deadline is not None and self._deadline.expired():
            return True
        if anyio.current_effective_deadline() == -math.inf:
            return True  # an outer scope is cancelled
        return anyio.get_current_task().parent_id is None

    def _withdraw_cancellations(self) -> None:
        while self._task is not None and self._task.cancelling() > self._earlier_requests:
            self._task.uncancel()

    def _is_abandoned(self) -> bool:
        try:
            return asyncio.current_task() is not self._task
        except RuntimeError:  # the event loop has ended
            return True


@asynccontextmanager
async def time_limit(
    called: Called, seconds: float, *, stalled: Callable[[float], float]
) -> AsyncIterator[None]:
    """Cancel the `with` block after *seconds* with a `TimeoutError` that names *called*.

    No time limit applies if *seconds* is 0. The function *stalled* maps a time of the loop's clock
    to the seconds for which the loop was blocked after it. The limit excludes these seconds.
    """
    if not seconds:
        yield
        return
    loop = asyncio.get_running_loop()
    started_at = loop.time()
    check_timer: asyncio.TimerHandle

    def check() -> None:
        nonlocal check_timer
        remaining = seconds - (loop.time() - started_at - stalled(started_at))
        if remaining > _AN_INSTANT:
            check_timer = loop.call_later(remaining, check)
        else:
            deadline.reschedule(loop.time())

    check_timer = loop.call_later(seconds, check)
    try:
        async with asyncio.timeout(None) as deadline:
            yield
    except TimeoutError as error:
        if not deadline.expired():
            raise
        message = f"{called.name} did not end within {seconds:g} s"
        # The traceback of the cancellation shows the line at which the code waited. No local
        # variable may keep the traceback, because that would be a reference cycle.
        raise TimeoutError(message).with_traceback(
            getattr(error.__cause__, "__traceback__", None)
        ) from None
    finally:
        check_timer.cancel()


logger = logging.getLogger(__name__)


@contextmanager
def spider_code(label: str, *, stop: Callable[[str], None]) -> Iterator[None]:
    """Raise `SpiderError` in place of any error that the spider's own code raises in the block.

    *label* names the code in messages. A `StopCrawl` is no error; its reason goes to *stop*.
    """
    cancellation = Cancellation()
    try:
        yield
    except StopCrawl as stop_request:
        stop(printable(text_of(stop_request)))
    except (SpiderError, LedgerGoneError, LedgerUnavailableError):
        raise
    except BaseException as error:
        if cancellation.passes(error):
            raise
        logger.debug(
            "the spider's %s raised", label, exc_info=True, extra={"event": "spider_error"}
        )
        raise SpiderError(
            f"the spider's {label} raised {printable(describe_error(error))}"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised(Failed):
    """A failure because the user's code raised an error, so the page's host has not failed."""

    error: str = ""  #: the name of the exception's type
    where: str = ""  #: file and line of the spider

    @classmethod
    def by(
        cls, error: BaseException, *, own_prefixes: tuple[str, ...], function: Callable[..., Any]
    ) -> "Raised":
        """Return the failure for *error*, raised by *function*.

        *own_prefixes* is passed to `format_traceback`.
        """
        return cls(
            reason=Reason.PARSE_ERROR,
            message=describe_error(error) + selector_hint(error),
            traceback=format_traceback(error, own_prefixes=own_prefixes),
            error=type(error).__name__,
            where=where(error, own_prefixes=own_prefixes, function=function),
        )
