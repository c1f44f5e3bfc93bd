"""Define the request bodies and queries of the task server as pydantic models.

The models validate requests. The OpenAPI document is generated from the models.
"""

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from crawlcw.errors import Reason
from crawlcw.tracking.keys import LARGEST_PRIORITY, LONGEST_KEY

MAX_TASKS = 1_000
MAX_WAIT_S = 30.0
_TEN_YEARS = 315_360_000.0
_LARGEST_FENCE = (1 << 53) - 1  # the largest JSON number that every language reads exactly
_DIGITS = re.compile(r"-?[0-9]{1,18}")
_TIMESTAMP = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})",
    re.IGNORECASE,
)


def _to_integer(value: object) -> object:
    # Accept 3.0 as an integer, because JSON does not distinguish integers from other numbers.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def integer_of_digits(value: object) -> object:
    """Return a text of digits as an integer, and any other *value* unchanged."""
    return int(value) if isinstance(value, str) and _DIGITS.fullmatch(value) else value


def _to_utc(value: object) -> object:
    if not isinstance(value, str) or not _TIMESTAMP.fullmatch(value):
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
Identifier = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,100}$")]
Fence = Annotated[int, Field(ge=1, le=_LARGEST_FENCE), BeforeValidator(_to_integer)]
Priority = Annotated[
    int, Field(ge=-LARGEST_PRIORITY, le=LARGEST_PRIORITY), BeforeValidator(_to_integer)
]
Seconds = Annotated[float, Field(ge=0, le=_TEN_YEARS)]
UtcTime = Annotated[datetime, BeforeValidator(_to_utc)]
Cursor = Annotated[
    # A cursor is the base64 form of 24 bytes. The first bytes are a time, see `views.cursor_text`.
    str,
    Field(
        pattern=r"^AA[A-C][A-Za-z0-9_-]{29}$", description="`next_cursor` of an earlier response."
    ),
]
OneReason = Annotated[Reason, Field(strict=False)]
StatusName = Literal["todo", "failed", "processing", "finished", "ignored"]


class RequestModel(BaseModel):
    """Base of all request models, which refuse undeclared fields and convert no types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class NewTask(RequestModel):
    """A task to add. The server does not change an existing task."""

    key: Key
    data: dict[str, Any] = {}
    priority: Priority = 0
    stage: Stage | None = None
    context: dict[str, Any] | None = None
    delay: Seconds = 0.0


class NewTasks(RequestModel):
    """Several tasks to add."""

    tasks: Annotated[list[NewTask], Field(max_length=MAX_TASKS)]


#: The tags by which pydantic distinguishes the forms of a request body.
UNION_TAGS = frozenset({"one", "many", "finished", "advanced", "failed", "ignored", "released"})


def _tag_of(body: object) -> str:
    return "many" if isinstance(body, NewTasks) or "tasks" in _members(body) else "one"


def _members(body: object) -> dict[str, Any]:
    return body if isinstance(body, dict) else {}


CreateTask = Annotated[
    Annotated[NewTask, Tag("one")] | Annotated[NewTasks, Tag("many")], Discriminator(_tag_of)
]


class ClaimTask(RequestModel):
    """A worker claims tasks."""

    worker: Identifier
    limit: Annotated[int, Field(ge=0, le=MAX_TASKS), BeforeValidator(_to_integer)] = 1
    stages: Annotated[list[Stage], Field(min_length=1, max_length=100)] | None = Field(
        default=None, description="Stages of which the worker claims new tasks."
    )
    wait: Annotated[float, Field(ge=0, le=MAX_WAIT_S)] = Field(
        default=0.0, description="Seconds to wait for a task if none is due."
    )
    request: Identifier | None = Field(
        default=None,
        description="An idempotency key that the worker chooses. A repeated request with the same "
        "key returns the tasks of the first response, without tasks whose leases have ended.",
    )


class Report(RequestModel):
    """A worker's report, which ends a task that the worker leases."""

    worker: Identifier
    key: Key
    fence: Fence


class Finished(Report):
    """The worker has finished the task, which may go to the next stage of its chain."""

    status: Literal["finished"]
    result: Any = None
    data: dict[str, Any] | None = None


class Advanced(Report):
    """The worker has finished the stage, and sends the task to another stage."""

    status: Literal["advanced"]
    stage: Stage
    result: Any = None
    data: dict[str, Any] | None = None
    context: dict[str, Any] | None = None
    delay: Seconds = 0.0


class Failed(Report):
    """The worker's attempt failed, and the server counts the attempt."""

    status: Literal["failed"]
    error: str
    may_retry: bool = Field(default=True, description="False if no attempt may follow.")


class Ignored(Report):
    """The worker has found that the task is unwanted, so the task ends as ignored."""

    status: Literal["ignored"]
    message: str = Field(alias="error")


class Released(Report):
    """The worker releases the task unchanged, without counting an attempt."""

    status: Literal["released"]


EndTask = Annotated[
    Finished | Advanced | Failed | Ignored | Released, Field(discriminator="status")
]


class RenewTask(RequestModel):
    """A worker renews its leases of the tasks in `keys`, or all its leases."""

    worker: Identifier
    keys: Annotated[list[Key], Field(max_length=MAX_TASKS)] | None = None


class FindTasks(RequestModel):
    """A filter of tasks by status, reason, stage, and time of the last change of status."""

    status: StatusName | None = None
    reason: OneReason | None = None
    stage: Stage | None = None
    changed_since: UtcTime | None = None
    changed_before: UtcTime | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_TASKS), BeforeValidator(integer_of_digits)] = 100
    cursor: Cursor | None = None


class NoParameters(RequestModel):
    """A request without parameters."""
