"""Request bodies and queries of the server, as pydantic models.

The models validate requests, and the OpenAPI document is generated from them.
"""

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from crawlcw.errors import Reason
from crawlcw.tracking.keys import LARGEST_PRIORITY, LONGEST_KEY

MOST_TASKS = 1_000
LONGEST_WAIT = 30.0
_TEN_YEARS = 315_360_000.0
_LARGEST_FENCE = (1 << 53) - 1  # the largest integer that a JSON number holds in all languages
_DIGITS = re.compile(r"-?[0-9]{1,18}")
_MOMENT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})",
    re.IGNORECASE,
)


def _whole(value: object) -> object:
    # JSON has a single type of number, in which 3.0 is an integer.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def digits(given: object) -> object:
    """Return the number of a text of digits, anything else unchanged."""
    return int(given) if isinstance(given, str) and _DIGITS.fullmatch(given) else given


def _moment(value: object) -> object:
    if not isinstance(value, str) or not _MOMENT.fullmatch(value):
        return value
    try:
        return datetime.fromisoformat(value.upper()).astimezone(UTC)
    except OverflowError:
        raise ValueError("the time is out of range") from None


Key = Annotated[
    str,
    Field(min_length=1, max_length=LONGEST_KEY, description="At most 1,024 bytes in UTF-8."),
]
Stage = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,100}$")]
Fence = Annotated[int, Field(ge=1, le=_LARGEST_FENCE), BeforeValidator(_whole)]
Priority = Annotated[int, Field(ge=-LARGEST_PRIORITY, le=LARGEST_PRIORITY), BeforeValidator(_whole)]
Seconds = Annotated[float, Field(ge=0, le=_TEN_YEARS)]
Moment = Annotated[datetime, BeforeValidator(_moment)]
Cursor = Annotated[
    # 24 bytes in base64 that begin with a time, see `views.written`.
    str,
    Field(pattern=r"^AA[A-C][A-Za-z0-9_-]{29}$", description="`after` of an earlier answer."),
]
OneReason = Annotated[Reason, Field(strict=False)]
StatusName = Literal["todo", "failed", "processing", "finished", "ignored"]


class Asked(BaseModel):
    """Base of all requests: strict types, and no undeclared fields."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class NewTask(Asked):
    """A task to add. A known task does not change."""

    key: Key
    data: dict[str, Any] = {}
    priority: Priority = 0
    stage: Stage | None = None
    context: dict[str, Any] | None = None
    delay: Seconds = 0.0


class NewTasks(Asked):
    """Several tasks to add."""

    tasks: Annotated[list[NewTask], Field(max_length=MOST_TASKS)]


#: Discriminators of bodies with several shapes.
TAGS = frozenset({"one", "many", "finished", "advanced", "failed", "ignored", "released"})


def _kind(body: object) -> str:
    return "many" if isinstance(body, NewTasks) or "tasks" in _members(body) else "one"


def _members(body: object) -> dict[str, Any]:
    return body if isinstance(body, dict) else {}


CreateTask = Annotated[
    Annotated[NewTask, Tag("one")] | Annotated[NewTasks, Tag("many")], Discriminator(_kind)
]


class HoldTask(Asked):
    """A worker asks for its share."""

    worker: Word
    limit: Annotated[int, Field(ge=0, le=MOST_TASKS), BeforeValidator(_whole)] = 1
    stages: Annotated[list[Stage], Field(min_length=1, max_length=100)] | None = Field(
        default=None, description="New tasks are of these stages only."
    )
    wait: Annotated[float, Field(ge=0, le=LONGEST_WAIT)] = Field(
        default=0.0, description="Seconds to wait for a task if none is due."
    )
    request: Word | None = Field(
        default=None,
        description="An idempotency key of the worker: a repeated request with it returns the "
        "tasks of the first answer that the worker still holds.",
    )


class Report(Asked):
    """How a worker ends a task that it holds."""

    worker: Word
    key: Key
    fence: Fence


class Finished(Report):
    """The last stage is done, and so is the task."""

    status: Literal["finished"]
    result: Any = None
    data: dict[str, Any] | None = None


class Advanced(Report):
    """The stage is done, and the next one is due."""

    status: Literal["advanced"]
    stage: Stage
    result: Any = None
    data: dict[str, Any] | None = None
    context: dict[str, Any] | None = None
    delay: Seconds = 0.0


class Failed(Report):
    """The attempt failed and counts."""

    status: Literal["failed"]
    error: str
    again: bool = Field(default=True, description="False: this was the last attempt.")


class Ignored(Report):
    """The task is unwanted and ends."""

    status: Literal["ignored"]
    why: str = Field(alias="error")


class Released(Report):
    """The task goes back unchanged, and the attempt does not count."""

    status: Literal["released"]


SetTask = Annotated[
    Finished | Advanced | Failed | Ignored | Released, Field(discriminator="status")
]


class RenewTask(Asked):
    """A worker renews its leases: those of `keys`, or all."""

    worker: Word
    keys: Annotated[list[Key], Field(max_length=MOST_TASKS)] | None = None


class FindTasks(Asked):
    """A filter of tasks; `since` and `until` bound the last change of their status."""

    status: StatusName | None = None
    reason: OneReason | None = None
    stage: Stage | None = None
    since: Moment | None = None
    until: Moment | None = None
    limit: Annotated[int, Field(ge=1, le=MOST_TASKS), BeforeValidator(digits)] = 100
    after: Cursor | None = None


class Nothing(Asked):
    """A request without parameters."""
