"""Declare a use case, which has a name, stages with handlers, and settings.

The ledger records the settings of a use case, and all processes that work on its tasks follow the
recorded settings. `Tracker.open` records only the settings that its caller passes.
"""

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from enum import StrEnum
from functools import cached_property
from typing import Any, Self, TypeVar, overload

from crawlcw.api.settings_fields import Count, Duration, Size
from crawlcw.errors import SettingsError, UsageError
from crawlcw.model.retry import KEPT_ERRORS, RetryPolicy
from crawlcw.tracking import keys

_F = TypeVar("_F", bound=Callable[..., Any])
#: If a task is added without a stage, the ledger stores this name as the task's stage.
NO_STAGE = "todo"
_SHORTEST_LEASE = timedelta(milliseconds=100)


class Executor(StrEnum):
    """Whether a handler runs in the event loop, in a thread, or in a process."""

    LOOP = "loop"  #: a `LOOP` handler is a coroutine function
    THREAD = "thread"  #: a `THREAD` handler gets a `SyncExecution`
    PROCESS = "process"  #: a `PROCESS` handler gets the task's key, data and context


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """The function that does the work of one stage and returns the stage's result."""

    function: Callable[..., Any]
    executor: Executor


class UseCase:
    """A use case, which declares tasks of one kind for `crawlcw work module:object`."""

    def __init__(self, name: str, *, chain: Sequence[str] = (), **policy: Any) -> None:
        """When a stage in *chain* is done, the task goes to the next stage in *chain*.

        *policy* has settings of `Policy`. Raises `UsageError` and `SettingsError`.
        """
        self.name = keys.use_case(name)
        self.chain = tuple(keys.stage(stage) for stage in chain)
        if len(set(self.chain)) < len(self.chain):
            raise UsageError(f"the chain {', '.join(self.chain)} contains a stage twice")
        self.policy: Mapping[str, Any] = check_settings(policy)
        self.handlers: dict[str, Handler] = {}

    @property
    def first_stage(self) -> str:
        """The stage of a task that is added without a stage."""
        if self.chain:
            return self.chain[0]
        return next(iter(self.handlers), NO_STAGE)

    def resolve_stage(self, stage: str) -> str:
        """Return *stage*, or the use case's first stage if *stage* is `NO_STAGE`."""
        return self.first_stage if stage == NO_STAGE else stage

    def stored_stages(self, stages: Iterable[str]) -> tuple[str, ...]:
        """Return *stages*; if the first stage is among them, append `NO_STAGE`, its other name."""
        names = dict.fromkeys(stages)
        return (
            (*names, NO_STAGE) if self.first_stage in names and NO_STAGE not in names else (*names,)
        )

    def next_stage(self, stage: str) -> str | None:
        """Return the stage that follows *stage* in the chain, or None."""
        stage = self.resolve_stage(stage)
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
        """Decorate a function as the handler of a stage.

        *name* is by default the function's name. A coroutine function runs in the event loop. A
        function that is not a coroutine function runs in a thread, or in a separate process if
        *process* is true.
        """

        def register(function: _F) -> _F:
            self.add_handler(name or function.__name__, function, process=process)
            return function

        return register if function is None else register(function)

    def add_handler(
        self, stage: str, function: Callable[..., Any], *, process: bool = False
    ) -> None:
        """Register *function* as the handler of *stage*; raises `UsageError`."""
        stage = keys.stage(stage)
        if not callable(function):
            raise UsageError(f"the handler of stage {stage} is not callable: write a function")
        if self.chain and stage not in self.chain:
            raise UsageError(
                f"stage {stage} is not in the chain of {self.name}: {', '.join(self.chain)}"
            )
        if stage in self.handlers:
            raise UsageError(
                f"stage {stage} of {self.name} already has a handler: choose another name"
            )
        is_asynchronous = inspect.iscoroutinefunction(function)
        if process and is_asynchronous:
            raise UsageError(f"stage {stage}: a coroutine function cannot run in a process")
        executor = (
            Executor.PROCESS if process else Executor.LOOP if is_asynchronous else Executor.THREAD
        )
        self.handlers[stage] = Handler(function=function, executor=executor)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Settings for the leases and the retries of a use case's tasks.

    Raises `SettingsError` for an invalid value.
    """

    max_retry: Count = Count(
        3, "failed attempts at a stage after which crawlcw gives up a task", minimum=1
    )
    max_lost: Count = Count(
        5, "workers lost on a quarantined task after which crawlcw gives it up", minimum=1
    )
    lease: Duration = Duration(
        "60s",
        "time after which another worker takes over the task of a dead worker",
        minimum=_SHORTEST_LEASE,
    )
    backoff_base: Duration = Duration(
        "5s", "longest wait after the first failed attempt; each further failure doubles it"
    )
    backoff_max: Duration = Duration("1h", "longest wait after any failed attempt")
    kept_errors: Count = Count(KEPT_ERRORS, "number of last errors that a task stores")
    inline_limit: Size = Size(
        "256KiB", "size above which a value is a blob, outside of its task's document"
    )

    @classmethod
    def of(cls, stored_values: Mapping[str, Any]) -> Self:
        """Return a policy with *stored_values*; each setting that is absent has its default."""
        return replace(cls(), **check_settings(stored_values))

    @cached_property
    def retries(self) -> RetryPolicy:
        """The settings about retries, in the form that `transitions` needs."""
        return RetryPolicy(
            max_retry=self.max_retry,
            base=self.backoff_base,
            ceiling=self.backoff_max,
            kept_errors=self.kept_errors,
        )


def check_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in *values* that are not None; raises `SettingsError`."""
    setting_names = {field.name for field in fields(Policy)}
    settings = {name: value for name, value in values.items() if value is not None}
    for name in settings:
        if name not in setting_names:
            close_names = difflib.get_close_matches(name, setting_names, n=1)
            hint = (
                f"did you mean {close_names[0]}?"
                if close_names
                else f"there are {', '.join(sorted(setting_names))}"
            )
            raise SettingsError(f"a use case has no setting {name!r}: {hint}")
    replace(Policy(), **settings)
    return settings


def stored_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in *values* as a ledger records them, with durations in seconds."""
    settings = check_settings(values)
    policy = replace(Policy(), **settings)
    setting_values = {name: getattr(policy, name) for name in settings}
    return {
        name: value.total_seconds() if isinstance(value, timedelta) else value
        for name, value in setting_values.items()
    }
