"""Declaration of a use case: its name, its stages and their handlers."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar, overload

from crawlcw.errors import UsageError
from crawlcw.tracking import keys
from crawlcw.tracking.policy import checked

_F = TypeVar("_F", bound=Callable[..., Any])
#: Name in the ledger for the first stage, of tasks that were added without a stage.
NO_STAGE = "todo"


class Runs(StrEnum):
    """Place where a handler runs."""

    LOOP = "loop"  #: a coroutine function, in the event loop
    THREAD = "thread"  #: a function, which gets a `SyncExecution`
    PROCESS = "process"  #: a function in a separate process, which gets key, data and context


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """The function for one stage, which returns its result."""

    function: Callable[..., Any]
    runs: Runs


class UseCase:
    """Tasks of one kind, declared: `crawlcw work module:object` takes one."""

    def __init__(self, name: str, *, chain: Sequence[str] = (), **policy: Any) -> None:
        """*chain* are stages in their order: after one is done, the next is due.

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
        """Return the stage of a task with the ledger's *stage*: the first one for `NO_STAGE`."""
        return self.first if stage == NO_STAGE else stage

    def places(self, stages: Iterable[str]) -> tuple[str, ...]:
        """Return the ledger's names of *stages*: the first one includes `NO_STAGE`."""
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
        """Decorate a function as the handler of a stage, by default the one with its name.

        A coroutine function runs in the event loop, a function in a thread, and with
        *process* in a separate process.
        """

        def declared(function: _F) -> _F:
            self.handle(name or function.__name__, function, process=process)
            return function

        return declared if function is None else declared(function)

    def handle(self, stage: str, function: Callable[..., Any], *, process: bool = False) -> None:
        """Register *function* as the handler of *stage*; raises `UsageError`."""
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
