"""The settings of a use case. They are in its ledger, and every process on it follows them.

What `Tracker.open` is given is written down; the rest is as it is found there.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from functools import cached_property
from typing import Any, Self

from crawlcw.api.settings_fields import Count, Duration, Size
from crawlcw.errors import SettingsError
from crawlcw.model.retry import KEPT_ERRORS, RetryPolicy

_SHORTEST_LEASE = timedelta(milliseconds=100)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How the tasks of a use case are leased and tried again.

    Raises `SettingsError` where a value makes no sense.
    """

    max_retry: Count = Count(3, "failed attempts at a stage until a task is given up", minimum=1)
    max_lost: Count = Count(5, "workers lost on a task alone until it is given up", minimum=1)
    lease: Duration = Duration(
        "60s", "until the task of a dead worker goes to another one", minimum=_SHORTEST_LEASE
    )
    backoff_base: Duration = Duration("5s", "the longest wait after the first failure, doubling")
    backoff_max: Duration = Duration("1h", "the longest wait after any failure")
    kept_errors: Count = Count(KEPT_ERRORS, "errors that a task remembers, the last ones")
    inline_limit: Size = Size("256KiB", "a larger value is kept beside its task's document")

    @classmethod
    def of(cls, written: Mapping[str, Any]) -> Self:
        """Return the policy that a ledger has written down, with the defaults for the rest."""
        return replace(cls(), **checked(written))

    @cached_property
    def retries(self) -> RetryPolicy:
        """What `transitions` asks."""
        return RetryPolicy(
            max_retry=self.max_retry,
            base=self.backoff_base,
            ceiling=self.backoff_max,
            kept_errors=self.kept_errors,
        )


def checked(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of *values* that are given (not None); raises `SettingsError`."""
    known = {field.name for field in fields(Policy)}
    given = {name: value for name, value in values.items() if value is not None}
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"
            raise SettingsError(f"a use case has no setting {name!r}: {hint}")
    replace(Policy(), **given)
    return given


def written(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of *values* as a ledger writes them down: durations in seconds."""
    given = checked(values)
    policy = replace(Policy(), **given)
    found = {name: getattr(policy, name) for name in given}
    return {
        name: value.total_seconds() if isinstance(value, timedelta) else value
        for name, value in found.items()
    }
