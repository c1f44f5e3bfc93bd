"""A use case: what its tasks are called, which stages they pass, and who works on each."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar, overload

from crawlcw.errors import UsageError
from crawlcw.tracking import keys
from crawlcw.tracking.policy import checked

_F = TypeVar("_F", bound=Callable[..., Any])
#: The stage of tasks that were added without one: the first.
NO_STAGE = "todo"


class Runs(StrEnum):
    """Where a handler runs."""

    LOOP = "loop"  #: a coroutine function, in the event loop
    THREAD = "thread"  #: a function, which gets a `SyncExecution`
    PROCESS = "process"  #: a function of its own process, which gets key, data and context


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """The function that does the work of one stage, and returns its result."""

    function: Callable[..., Any]
    runs: Runs


class UseCase:
    """Tasks of one kind, declared: `crawlcw work module:object` takes one."""

    def __init__(self, name: str, *, chain: Sequence[str] = (), **policy: Any) -> None:
        """*chain* are stages that follow each other: when one is done, the next is to do.

        *policy* are settings of `Policy`. Raises `UsageError` and `SettingsError`.
        """
        self.name = keys.use_case(name)
        self.chain = tuple(keys.stage(each) for each in chain)
        if len(set(self.chain)) < len(self.chain):
            raise UsageError(f"the chain {', '.join(self.chain)} has a stage twice")
        self.policy: Mapping[str, Any] = checked(policy)
        self.handlers: dict[str, Handler] = {}

    @property
    def first(self) -> str:
        """The stage of a new task."""
        if self.chain:
            return self.chain[0]
        return next(iter(self.handlers), NO_STAGE)

    def named(self, stage: str) -> str:
        """Return the stage that a task in *stage* is in: one without is in the first."""
        return self.first if stage == NO_STAGE else stage

    def places(self, stages: Iterable[str]) -> tuple[str, ...]:
        """Return where the ledger has the tasks of *stages*: those without one are the first's."""
        found = dict.fromkeys(stages)
        return (*found, NO_STAGE) if self.first in found and NO_STAGE not in found else (*found,)

    def after(self, stage: str) -> str | None:
        """Return the stage that follows in the chain, if any."""
        stage = self.named(stage)
        if stage not in self.chain:
            return None
        return next(iter(self.chain[self.chain.index(stage) + 1 :]), None)

    @overload
    def stage(self, function: _F) -> _F: ...
    @overload
    def stage(
        self, function: None = None, *, name: str | None = None, process: bool = False
    ) -> Callable[[_F], _F]: ...
    def stage(
        self, function: _F | None = None, *, name: str | None = None, process: bool = False
    ) -> _F | Callable[[_F], _F]:
        """Let the decorated function work on a stage, by default the one of its name.

        A coroutine function runs in the event loop, a function in a thread, and with
        *process* in a process of its own.
        """

        def declared(function: _F) -> _F:
            self.handle(name or function.__name__, function, process=process)
            return function

        return declared if function is None else declared(function)

    def handle(self, stage: str, function: Callable[..., Any], *, process: bool = False) -> None:
        """Let *function* work on *stage*; raises `UsageError`."""
        stage = keys.stage(stage)
        if not callable(function):
            raise UsageError(f"the handler of stage {stage} cannot be called")
        if self.chain and stage not in self.chain:
            raise UsageError(
                f"stage {stage} is not in the chain of {self.name}: {', '.join(self.chain)}"
            )
        if stage in self.handlers:
            raise UsageError(f"stage {stage} of {self.name} has a handler already")
        asynchronous = inspect.iscoroutinefunction(function)
        if process and asynchronous:
            raise UsageError(f"stage {stage}: a coroutine function cannot run in a process")
        runs = Runs.PROCESS if process else Runs.LOOP if asynchronous else Runs.THREAD
        self.handlers[stage] = Handler(function=function, runs=runs)
