"""Response bodies of the server, as pydantic models, and their construction from the tracker."""

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
    """Base of all response bodies: frozen, and without undeclared fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Error(Answer):
    """The reason of a refusal."""

    error: str = Field(description="One sentence.")


class RejectedTask(Answer):
    """A task that the ledger cannot hold."""

    key: str
    error: str


class Created(Answer):
    """Numbers of added tasks: new ones, and known ones, which did not change."""

    new: int
    known: int
    rejected: list[RejectedTask]

    @classmethod
    def of(cls, added: Added) -> Self:
        """Return the result of adding tasks."""
        rejected = [
            RejectedTask(key=task.url, error=printable(why)) for task, why in added.rejected
        ]
        return cls(new=added.new, known=added.known, rejected=rejected)


class HeldTask(Answer):
    """A task that the worker holds."""

    key: str
    stage: str
    data: dict[str, Any]
    context: dict[str, Any]
    fence: int = Field(description="The number of this claim; `set_task` takes it.")
    attempt: int
    until: datetime = Field(description="End of the lease, unless the worker renews it before.")

    @classmethod
    def of(cls, assigned: Assigned) -> Self:
        """Return an assigned task."""
        return cls(**{name: getattr(assigned, name) for name in cls.model_fields})


class Held(Answer):
    """The tasks that the worker holds now."""

    tasks: list[HeldTask]


class Accepted(Answer):
    """The worker's report is recorded, now or by an earlier request."""

    accepted: Literal[True] = True


class Renewed(Answer):
    """The keys of the tasks that the worker still holds."""

    held: list[str]


class AttemptErrorView(Answer):
    """The error of one attempt."""

    time: datetime
    kind: Reason
    message: str
    attempt: int
    traceback: str | None


class TraceView(Answer):
    """One claim of a task, and its end."""

    fence: int
    stage: str
    worker: str
    started_at: datetime
    ended_at: datetime
    event: str


class TaskView(Answer):
    """All fields of a task."""

    key: str
    stage: str
    status: StatusName
    reason: Reason | None
    data: dict[str, Any] | None
    results: dict[str, Any]
    context: dict[str, Any] | None
    large: list[str] = Field(
        description="Names of the values that are null here because of their size, such as `data` "
        "or `results.scan`: `/task/{key}` returns them."
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
    """One page of matching tasks, the last changed first."""

    tasks: list[TaskView]
    after: str | None = Field(description="Cursor of the next page; null: this is the last page.")

    @classmethod
    def of(cls, page: Page) -> Self:
        """Return a page of tasks."""
        return cls(tasks=[TaskView.of(task) for task in page.tasks], after=page.after)


class Counts(Answer):
    """Number of tasks with each status."""

    todo: int
    failed: int
    processing: int
    finished: int
    ignored: int


class Stats(Answer):
    """Counts of the use case's tasks."""

    use_case: str
    total: int
    counts: Counts
    reasons: dict[str, int] = Field(description="Of failed and ignored tasks.")
    next_due: datetime | None = Field(description="null: no task is left to do.")

    @classmethod
    def of(
        cls, use_case: str, counts: Counted, reasons: dict[str, int], due: datetime | None
    ) -> Self:
        """Return the counts as a body."""
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
