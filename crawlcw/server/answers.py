"""What the server answers: each body, declared once, and how it is made of what is known."""

from datetime import datetime
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from crawlcw.errors import Reason
from crawlcw.ledger.protocol import Added
from crawlcw.ledger.protocol import Counts as Counted
from crawlcw.model.sanitize import printable
from crawlcw.model.task import BlobRef, Status
from crawlcw.server.bodies import StatusName
from crawlcw.tracking import Assigned, Page, TrackedTask


class Answer(BaseModel):
    """What every answer has in common: it is exactly what it is declared to be."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Error(Answer):
    """Why a request is refused."""

    error: str = Field(description="One sentence.")


class RejectedTask(Answer):
    """A task that the ledger cannot hold."""

    key: str
    error: str


class Created(Answer):
    """How many tasks are new, and how many were known and are as they were."""

    new: int
    known: int
    rejected: list[RejectedTask]

    @classmethod
    def of(cls, added: Added) -> Self:
        """Return what became of tasks that were added."""
        rejected = [
            RejectedTask(key=task.url, error=printable(why)) for task, why in added.rejected
        ]
        return cls(new=added.new, known=added.known, rejected=rejected)


class HeldTask(Answer):
    """A task that the worker is to do."""

    key: str
    stage: str
    data: dict[str, Any]
    context: dict[str, Any]
    fence: int = Field(description="The number of this claim; `set_task` takes it.")
    attempt: int
    until: datetime = Field(description="When others may take it, unless it is renewed before.")

    @classmethod
    def of(cls, assigned: Assigned) -> Self:
        """Return an assigned task."""
        return cls(**{name: getattr(assigned, name) for name in cls.model_fields})


class Held(Answer):
    """What the worker is to do."""

    tasks: list[HeldTask]


class Accepted(Answer):
    """What the worker has said is recorded, now or before."""

    accepted: Literal[True] = True


class Renewed(Answer):
    """What the worker still holds of what it asked for."""

    held: list[str]


class AttemptErrorView(Answer):
    """What went wrong in one attempt."""

    time: datetime
    kind: Reason
    message: str
    attempt: int
    traceback: str | None


class TraceView(Answer):
    """One claim of a task, and how it ended."""

    fence: int
    stage: str
    worker: str
    began: datetime
    ended: datetime
    event: str


class TaskView(Answer):
    """All that is known of a task."""

    key: str
    stage: str
    status: StatusName
    reason: Reason | None
    data: dict[str, Any] | None
    results: dict[str, Any]
    context: dict[str, Any] | None
    large: list[str] = Field(
        description="What is too large for a list and is null here, such as `data` or "
        "`results.scan`: ask for the task itself."
    )
    priority: int
    retry: int
    lost: int
    due: datetime | None
    holder: str | None
    create_time: datetime
    update_time: datetime
    errors: list[AttemptErrorView]
    trace: list[TraceView]

    @classmethod
    def of(cls, task: TrackedTask) -> Self:
        """Return a tracked task."""
        carried = {"data": task.data, "context": task.context}
        carried |= {f"results.{stage}": result for stage, result in task.results.items()}
        large = [name for name, value in carried.items() if isinstance(value, BlobRef)]
        plain = ("key", "stage", "reason", "priority", "retry", "lost", "due", "holder")
        fields: dict[str, Any] = {name: getattr(task, name) for name in plain}
        return cls(
            **fields,
            status=_name(task.status),
            data=_inline(task.data),
            context=_inline(task.context),
            results={stage: _inline(result) for stage, result in task.results.items()},
            large=large,
            create_time=task.create_time,
            update_time=task.update_time,
            errors=[_copied(AttemptErrorView, each) for each in task.errors],
            trace=[_copied(TraceView, each) for each in task.trace],
        )


class Found(Answer):
    """Some of the tasks that were asked for, the last changed first."""

    tasks: list[TaskView]
    after: str | None = Field(description="What to ask for the next ones with; null: no more.")

    @classmethod
    def of(cls, page: Page) -> Self:
        """Return a page of tasks."""
        return cls(tasks=[TaskView.of(task) for task in page.tasks], after=page.after)


class Counts(Answer):
    """How many tasks there are of each status."""

    todo: int
    failed: int
    processing: int
    finished: int
    ignored: int


class Stats(Answer):
    """The use case in numbers."""

    use_case: str
    total: int
    counts: Counts
    reasons: dict[str, int] = Field(description="Of failed and ignored tasks.")
    next_due: datetime | None = Field(description="null: nothing is to be done any more.")

    @classmethod
    def of(
        cls, use_case: str, counts: Counted, reasons: dict[str, int], due: datetime | None
    ) -> Self:
        """Return what was counted."""
        return cls(
            use_case=use_case,
            total=counts.total,
            counts=Counts(**{_name(status): counts[status] for status in Status}),
            reasons=reasons,
            next_due=due,
        )


def _name(status: Status) -> Any:
    return status.name.lower()


def _inline(value: Any) -> Any:
    return None if isinstance(value, BlobRef) else value


def _copied(kind: Any, value: Any) -> Any:
    return kind(**{name: getattr(value, name) for name in kind.model_fields})
