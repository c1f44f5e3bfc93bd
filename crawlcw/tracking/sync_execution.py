"""An execution for code that is not asynchronous: every call waits until it is done."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Protocol

from crawlcw.tracking.execution import Execution


class Call(Protocol):
    """Runs a coroutine function in the event loop's thread, from another one."""

    def __call__(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Return the coroutine's result, or raise its exception."""


class SyncExecution:
    """What `Execution` is, in a thread."""

    def __init__(self, execution: Execution, *, call: Call) -> None:
        self._execution = execution
        self._call = call

    @property
    def key(self) -> str:
        """See `Execution.key`."""
        return self._execution.key

    @property
    def stage(self) -> str:
        """See `Execution.stage`."""
        return self._execution.stage

    @property
    def attempt(self) -> int:
        """See `Execution.attempt`."""
        return self._execution.attempt

    @property
    def fence(self) -> int:
        """See `Execution.fence`."""
        return self._execution.fence

    @property
    def data(self) -> dict[str, Any]:
        """See `Execution.data`."""
        return self._execution.data

    @property
    def results(self) -> Mapping[str, Any]:
        """See `Execution.results`."""
        return self._execution.results

    @property
    def context(self) -> Mapping[str, Any]:
        """See `Execution.context`."""
        return self._execution.context

    @property
    def result(self) -> Any:
        """See `Execution.result`."""
        return self._execution.result

    @result.setter
    def result(self, result: Any) -> None:
        self._execution.result = result

    def checkpoint(self) -> None:
        """See `Execution.checkpoint`."""
        self._call(self._execution.checkpoint)

    def advance(
        self,
        stage: str,
        *,
        context: Mapping[str, Any] | None = None,
        delay: timedelta = timedelta(0),
    ) -> None:
        """See `Execution.advance`."""
        self._call(self._execution.advance, stage, context=context, delay=delay)

    def fail(self, error: BaseException | str, *, again: bool = True) -> None:
        """See `Execution.fail`."""
        self._call(self._execution.fail, error, again=again)

    def ignore(self, why: str) -> None:
        """See `Execution.ignore`."""
        self._call(self._execution.ignore, why)

    def release(self) -> None:
        """See `Execution.release`."""
        self._call(self._execution.release)
