"""What may be asked of the server: each body and each query, declared once.

The declarations check what comes in, and the OpenAPI document is made of them.
"""

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
)

from crawlcw.errors import Reason
from crawlcw.tracking.keys import LARGEST_PRIORITY, LONGEST_KEY

MOST_TASKS = 1_000
LONGEST_WAIT = 30.0
_TEN_YEARS = 315_360_000.0
_LARGEST_FENCE = (1 << 53) - 1  # what every language's numbers hold
_DIGITS = re.compile(r"-?[0-9]{1,18}")
_MOMENT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})",
    re.IGNORECASE,
)


def _whole(given: object) -> object:
    # JSON has one kind of number, and 3.0 is a whole one.
    return int(given) if isinstance(given, float) and given.is_integer() else given


def _digits(given: object) -> object:
    return int(given) if isinstance(given, str) and _DIGITS.fullmatch(given) else given


def _moment(given: object) -> object:
    if not isinstance(given, str) or not _MOMENT.fullmatch(given):
        return given
    try:
        return datetime.fromisoformat(given.upper()).astimezone(UTC)
    except OverflowError:
        raise ValueError("it is too far away") from None


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
    # 24 bytes in base64 that begin with a time, see `views.cursor`.
    str,
    Field(pattern=r"^AA[A-C][A-Za-z0-9_-]{29}$", description="What an earlier answer gave."),
]
StatusName = Literal["todo", "failed", "processing", "finished", "ignored"]


class Asked(BaseModel):
    """What every request has in common: nothing is guessed, and nothing is left over."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class NewTask(Asked):
    """A task to be added. One that is known is not changed."""

    key: Key
    data: dict[str, Any] = {}
    priority: Priority = 0
    stage: Stage | None = None
    context: dict[str, Any] | None = None
    delay: Seconds = 0.0


class NewTasks(Asked):
    """Many tasks to be added."""

    tasks: Annotated[list[NewTask], Field(max_length=MOST_TASKS)]


#: What tells shapes apart where there are several.
TAGS = frozenset({"one", "many", "finished", "advanced", "failed", "ignored", "released"})


def _kind(given: object) -> str:
    return "many" if isinstance(given, NewTasks) or "tasks" in _members(given) else "one"


def _members(given: object) -> dict[str, Any]:
    return given if isinstance(given, dict) else {}


CreateTask = Annotated[
    Annotated[NewTask, Tag("one")] | Annotated[NewTasks, Tag("many")], Discriminator(_kind)
]


class HoldTask(Asked):
    """A worker asks for its share."""

    worker: Word
    limit: Annotated[int, Field(ge=0, le=MOST_TASKS), BeforeValidator(_whole)] = 1
    stages: Annotated[list[Stage], Field(min_length=1, max_length=100)] | None = Field(
        default=None, description="Tasks of these stages only are added to what it has."
    )
    wait: Annotated[float, Field(ge=0, le=LONGEST_WAIT)] = Field(
        default=0.0, description="So many seconds to wait for a task where there is none."
    )
    request: Word | None = Field(
        default=None,
        description="A word of the worker's own: sent again with it, the request returns what "
        "it returned the first time, as far as that is still held.",
    )


class _Ending(Asked):
    worker: Word
    key: Key
    fence: Fence


class Finished(_Ending):
    """The stage is done, and the task with it."""

    status: Literal["finished"]
    result: Any = None
    data: dict[str, Any] | None = None


class Advanced(_Ending):
    """The stage is done, and the next one is to be."""

    status: Literal["advanced"]
    stage: Stage
    result: Any = None
    data: dict[str, Any] | None = None
    context: dict[str, Any] | None = None
    delay: Seconds = 0.0


class Failed(_Ending):
    """An attempt is spent."""

    status: Literal["failed"]
    error: str
    again: bool = Field(default=True, description="False: this was the last attempt.")


class Ignored(_Ending):
    """The task turned out to be unwanted."""

    status: Literal["ignored"]
    error: str


class Released(_Ending):
    """The task goes back as it was."""

    status: Literal["released"]


SetTask = Annotated[
    Finished | Advanced | Failed | Ignored | Released, Field(discriminator="status")
]


class RenewTask(Asked):
    """A worker lives, and keeps what it holds; without `keys` all of it."""

    worker: Word
    keys: Annotated[list[Key], Field(max_length=MOST_TASKS)] | None = None


class FindTasks(Asked):
    """Which tasks are asked for; since and until bound the last change of their status."""

    status: StatusName | None = None
    reason: Annotated[Reason, Field(strict=False)] | None = None
    stage: Stage | None = None
    since: Moment | None = None
    until: Moment | None = None
    limit: Annotated[int, Field(ge=1, le=MOST_TASKS), BeforeValidator(_digits)] = 100
    after: Cursor | None = None


class Nothing(Asked):
    """A question that has no words."""
