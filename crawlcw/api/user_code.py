"""The user's own code: whatever it raises is its own error, and what of it runs can be told.

`SystemExit`, `KeyboardInterrupt`, `GeneratorExit` and `CancelledError` out of a
callback are errors like any other. Only a cancellation from outside passes, for that
ends the work that a crawl has begun; code that cancels its own task does not end more.
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
    """User code raised what would end the process, or the task that runs it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)  # it may come from another process
        self.error = error


_AN_INSTANT = 0.01
_CALLERS: set[CodeType] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """A function of the user's, and the subject of its work."""

    name: str  #: of the callback, or of the handler
    subject: str  #: the page's URL, or the task's key


def calls_user_code(function: F) -> F:
    """Mark a function that runs the user's code, and says which in its variable `called`."""
    _CALLERS.add(function.__code__)
    return function


def running_in(frame: FrameType | None) -> Called | None:
    """Return which code of the user's runs, given the innermost frame of its thread."""
    while frame is not None:
        if frame.f_code in _CALLERS:
            called = frame.f_locals.get("called")
            return called if isinstance(called, Called) else None
        frame = frame.f_back
    return None


def without_escape(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of *function*; raises `EscapedError` for a bare `BaseException`.

    A thread or process of a pool is to go on: it may have been given its next task.
    """
    try:
        return function(*arguments)
    except Exception:
        raise
    except BaseException as error:
        raise EscapedError(error) from None


class Cancellation:
    """Tells a cancellation from outside from one that user code raises, or asks for itself.

    Made before the user's code runs. Code that is cancelled by its own timeouts
    and scopes takes that back before it ends, so it does not count.

    What runs in a task group is cancelled from outside by a scope around it, or by the
    *deadline* that is given. Where a `task.cancel()` was neither, it came from the
    user's code, and is taken back. Any code may cancel a task that is in no group.
    """

    def __init__(self, *, deadline: asyncio.Timeout | None = None) -> None:
        self._task = asyncio.current_task()
        self._before = self._task.cancelling() if self._task is not None else 0
        self._deadline = deadline

    def passes(self, error: BaseException) -> bool:
        """Return whether *error* comes from outside and is to be raised on."""
        if isinstance(error, asyncio.CancelledError):
            if self._task is None or self._task.cancelling() <= self._before:
                return False
            if self._is_outside():
                return True
            self._take_back()
            return False
        # This closes a coroutine that is awaited no more.
        return isinstance(error, GeneratorExit) and self._is_abandoned()

    async def strike(self) -> None:
        """Raise the cancellation that the code has asked for and has not waited to see.

        To be awaited where the code has ended: it would strike whatever awaits next.
        """
        if self._task is not None and self._task.cancelling() > self._before:
            await asyncio.sleep(0)
            if not self._is_outside():
                self._take_back()  # it had struck, and the code has gone on

    async def after(self, error: BaseException) -> None:
        """Do what `strike` does where the code has raised *error*, and it did not pass."""
        try:
            await self.strike()
        except asyncio.CancelledError as cancelled:
            if self.passes(cancelled):
                raise cancelled from error

    @asynccontextmanager
    async def contained(self) -> AsyncIterator[None]:
        """Raise a bare `BaseException` that does not pass as an `EscapedError`."""
        try:
            yield
            await self.strike()
        except Exception as error:
            await self.after(error)
            raise
        except BaseException as error:
            if self.passes(error):
                raise
            await self.after(error)
            raise EscapedError(error) from error

    def _is_outside(self) -> bool:
        if self._deadline is not None and self._deadline.expired():
            return True
        if anyio.current_effective_deadline() == -math.inf:
            return True  # a scope around it is cancelled
        return anyio.get_current_task().parent_id is None

    def _take_back(self) -> None:
        while self._task is not None and self._task.cancelling() > self._before:
            self._task.uncancel()

    def _is_abandoned(self) -> bool:
        try:
            return asyncio.current_task() is not self._task
        except RuntimeError:  # there is no loop any more
            return True


@asynccontextmanager
async def time_limit(
    called: Called, seconds: float, *, stalled: Callable[[float], float]
) -> AsyncIterator[None]:
    """Cancel what awaits in the block after *seconds* (0: never), as a `TimeoutError` that says so.

    *stalled* returns how many seconds the loop has stood still since a reading of
    its clock: those do not count.
    """
    if not seconds:
        yield
        return
    loop = asyncio.get_running_loop()
    began = loop.time()
    checking: asyncio.TimerHandle

    def check() -> None:
        nonlocal checking
        left = seconds - (loop.time() - began - stalled(began))
        if left > _AN_INSTANT:
            checking = loop.call_later(left, check)
        else:
            deadline.reschedule(loop.time())

    checking = loop.call_later(seconds, check)
    try:
        async with asyncio.timeout(None) as deadline:
            yield
    except TimeoutError as error:
        if not deadline.expired():
            raise
        told = f"{called.name} did not end within {seconds:g} s"
        # The frames of the cancellation name the line at which the code waited.
        # No local variable keeps them: that would be a cycle.
        raise TimeoutError(told).with_traceback(
            getattr(error.__cause__, "__traceback__", None)
        ) from None
    finally:
        checking.cancel()


logger = logging.getLogger(__name__)


@contextmanager
def spider_code(what: str, *, stop: Callable[[str], None]) -> Iterator[None]:
    """Turn whatever the spider's own code raises into one clear error, its cause attached.

    *what* names the code for people. A `StopCrawl` is no error: *stop* is told why.
    """
    cancellation = Cancellation()
    try:
        yield
    except StopCrawl as told:
        stop(printable(text_of(told)))
    except (SpiderError, LedgerGoneError, LedgerUnavailableError):
        raise
    except BaseException as error:
        if cancellation.passes(error):
            raise
        logger.debug("the spider's %s raised", what, exc_info=True, extra={"event": "spider_error"})
        raise SpiderError(
            f"the spider's {what} raised {printable(describe_error(error))}"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised(Failed):
    """An error of the user's code, which says nothing of the page's host."""

    error: str = ""  #: the name of the exception's type
    where: str = ""  #: the spider's own file and line

    @classmethod
    def by(
        cls, error: BaseException, *, own: tuple[str, ...], function: Callable[..., Any]
    ) -> "Raised":
        """Return what *error*, raised by *function*, is; *own* as in `format_traceback`."""
        return cls(
            reason=Reason.PARSE_ERROR,
            message=describe_error(error) + selector_hint(error),
            traceback=format_traceback(error, own=own),
            error=type(error).__name__,
            where=where(error, own=own, function=function),
        )
