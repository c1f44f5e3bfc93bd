"""What may be asked of the dashboard: each query and each body, declared once."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from crawlcw.errors import Reason
from crawlcw.server.bodies import Asked, Cursor, Moment, StatusName

#: How many tasks a page of a search has, and how many may be chosen one by one.
MOST_SHOWN = 200
MOST_CHOSEN = 1_000


def _list(given: object) -> object:
    return given.split(",") if isinstance(given, str) else given


def _digits(given: object) -> object:
    return int(given) if isinstance(given, str) and given.isascii() and given.isdecimal() else given


Text = Annotated[str, Field(max_length=4_096, pattern=r"^[^\x00-\x1f\x7f]*$")]
TaskName = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
OneReason = Annotated[Reason, Field(strict=False)]


class Nothing(Asked):
    """A question that has no words."""


class History(Asked):
    """How the crawl was as time went by."""

    span: Literal["quarter", "hour", "day", "week"] = "hour"


class Selection(Asked):
    """Which tasks: those that match all that is given; since and until bound their last change."""

    status: Annotated[list[StatusName], BeforeValidator(_list), Field(max_length=5)] | None = None
    reason: OneReason | None = None
    host: Text | None = None
    prefix: Text | None = None
    since: Moment | None = None
    until: Moment | None = None


class FindTasks(Selection):
    """A search, the last changed first."""

    text: Text = ""
    limit: Annotated[int, Field(ge=1, le=MOST_SHOWN), BeforeValidator(_digits)] = 50
    after: Cursor | None = None


class Steer(Asked):
    """What the crawls that run are to do."""

    order: Literal["pause", "resume"]


class Act(Asked):
    """What is to be done with tasks: with some of them, or with all of a selection."""

    action: Literal["retry", "ignore", "reset"]
    tasks: Annotated[list[TaskName], Field(min_length=1, max_length=MOST_CHOSEN)] | None = None
    selection: Selection | None = None
    dry_run: bool = False
