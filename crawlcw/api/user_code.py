"""Call the user's code: isolate its errors, and record which function runs.

`SystemExit`, `KeyboardInterrupt`, `GeneratorExit` and `CancelledError` from a callback are
errors like any other. Only a cancellation by the crawl passes through, because it ends work of the
crawl. If user code cancels its own task, only that call fails.
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
    """User code raised an error that would end the process, or the asyncio task that runs it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)  # the error may come from another process
        self.error = error


_AN_INSTANT = 0.01
_CALLERS: set[CodeType] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """A call of a user's function."""

    name: str  #: of the callback or the handler
    subject: str  #: the page's URL, or the task's key


def calls_user_code(function: F) -> F:
    """Mark a function that runs user code, and describes it in its local variable `called`."""
    _CALLERS.add(function.__code__)
    return function


def running_in(frame: FrameType | None) -> Called | None:
    """Return the running call of user code; *frame* is the innermost frame of its thread."""
    while frame is not None:
        if frame.f_code in _CALLERS:
            called = frame.f_locals.get("called")
            return called if isinstance(called, Called) else None
        frame = frame.f_back
    return None


def without_escape(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of *function*; raises `EscapedError` for a bare `BaseException`.

    A thread or process of a pool must survive the error, because it may already have its
    next task.
    """
    try:
        return function(*arguments)
    except Exception:
        raise
    except BaseException as error:
        raise EscapedError(error) from None


class Cancellation:
    """Tells a cancellation from outside from a cancellation that user code raises or requests.

    Make the object before the user's code runs. Timeouts and scopes of the user's code undo their
    own cancellation before the code ends, so these do not count.

    - In a task group, a cancellation from outside comes from a scope around the task, or
      from *deadline*. Any other `task.cancel()` came from the user's code, and is undone.
    - For a task outside of groups, every `task.cancel()` counts as a cancellation from outside.
    """

    def __init__(self, *, deadline: asyncio.Timeout | None = None) -> None:
        self._task = asyncio.current_task()
        self._earlier_requests = self._task.cancelling() if self._task is not None else 0
        self._deadline = deadline

    def passes(self, error: BaseException) -> bool:
        """Return whether *error* comes from outside and must be raised again."""
        if isinstance(error, asyncio.CancelledError):
            if self._task is None or self._task.cancelling() <= self._earlier_requests:
                return False
            if self._is_outside():
                return True
            self._undo()
            return False
        # Python closes an abandoned coroutine with this error.
        return isinstance(error, GeneratorExit) and self._is_abandoned()

    async def raise_pending(self) -> None:
        """Raise a cancellation that the code has requested but that was not delivered yet.

        Await it when the code has ended: otherwise the next `await` would be cancelled.
        """
        if self._task is not None and self._task.cancelling() > self._earlier_requests:
            await asyncio.sleep(0)
            if not self._is_outside():
                self._undo()  # delivered, but the user's code caught it and continued

    async def raise_pending_after(self, error: BaseException) -> None:
        """Call `raise_pending` after the code has raised *error*, which did not pass."""
        try:
            await self.raise_pending()
        except asyncio.CancelledError as cancelled:
            if self.passes(cancelled):
                raise cancelled from error

    @asynccontextmanager
    async def contained(self) -> AsyncIterator[None]:
        """Raise `EscapedError` in place of a bare `BaseException` that does not pass."""
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
            return True  # a scope around the task is cancelled
        return anyio.get_current_task().parent_id is None

    def _undo(self) -> None:
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
    """Cancel the block after *seconds* (0: never) with a `TimeoutError` that names the call.

    *stalled* returns the seconds of stalls of the event loop since a time of its clock;
    they do not count.
    """
    if not seconds:
        yield
        return
    loop = asyncio.get_running_loop()
    started_at = loop.time()
    checking: asyncio.TimerHandle

    def check() -> None:
        nonlocal checking
        remaining = seconds - (loop.time() - started_at - stalled(started_at))
        if remaining > _AN_INSTANT:
            checking = loop.call_later(remaining, check)
        else:
            deadline.reschedule(loop.time())

    checking = loop.call_later(seconds, check)
    try:
        async with asyncio.timeout(None) as deadline:
            yield
    except TimeoutError as error:
        if not deadline.expired():
            raise
        message = f"{called.name} did not end within {seconds:g} s"
        # The frames of the cancellation show the line at which the code waited. No local
        # variable may keep them, because that would be a reference cycle.
        raise TimeoutError(message).with_traceback(
            getattr(error.__cause__, "__traceback__", None)
        ) from None
    finally:
        checking.cancel()


logger = logging.getLogger(__name__)


@contextmanager
def spider_code(label: str, *, stop: Callable[[str], None]) -> Iterator[None]:
    """Raise `SpiderError` with the cause for any error of the spider's own code.

    *label* names the code in messages. A `StopCrawl` is not an error: it calls *stop* with
    the reason.
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
    """An error of the user's code, which says nothing about the page's host."""

    error: str = ""  #: the name of the exception's type
    where: str = ""  #: the spider's own file and line

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
