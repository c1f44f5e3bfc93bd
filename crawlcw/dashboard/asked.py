"""Requests to the dashboard's API: queries and bodies, as pydantic models."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from crawlcw.errors import Reason
from crawlcw.server.bodies import Asked, Cursor, Moment, StatusName, digits

#: Limits: tasks in a page of a search, and tasks chosen one by one.
MOST_SHOWN = 200
MOST_CHOSEN = 1_000


def _list(given: object) -> object:
    return given.split(",") if isinstance(given, str) else given


Text = Annotated[str, Field(max_length=4_096, pattern=r"^[^\x00-\x1f\x7f]*$")]
TaskName = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
OneReason = Annotated[Reason, Field(strict=False)]


class History(Asked):
    """A request for the data of the charts."""

    span: Literal["quarter", "hour", "day", "week"] = "hour"


class Selection(Asked):
    """A filter of tasks, which must match all fields; `since` and `until` bound the last change."""

    status: Annotated[list[StatusName], BeforeValidator(_list), Field(max_length=5)] | None = None
    reason: OneReason | None = None
    host: Text | None = None
    prefix: Text | None = None
    since: Moment | None = None
    until: Moment | None = None


class FindTasks(Selection):
    """A search for tasks, the last changed first."""

    text: Text = ""
    limit: Annotated[int, Field(ge=1, le=MOST_SHOWN), BeforeValidator(digits)] = 50
    after: Cursor | None = None


class Steer(Asked):
    """An order to the running crawls."""

    order: Literal["pause", "resume"]


class Act(Asked):
    """An action on listed tasks, or on all of a selection."""

    action: Literal["retry", "ignore", "reset"]
    tasks: Annotated[list[TaskName], Field(min_length=1, max_length=MOST_CHOSEN)] | None = None
    selection: Selection | None = None
    dry_run: bool = False
