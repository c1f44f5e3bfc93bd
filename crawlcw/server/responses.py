"""Define the response bodies of the task server as pydantic models."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from crawlcw.errors import Reason
from crawlcw.model.task import AttemptError, AttemptRecord, BlobRef, Status
from crawlcw.server.requests import StatusName
from crawlcw.tracking import TrackedTask


def _status_name(status: Status) -> str:
    return status.name.lower()


def _null_if_blob(value: Any) -> Any:
    return None if isinstance(value, BlobRef) else value


class ResponseModel(BaseModel):
    """Base of all response models; each field takes the object's attribute of the same name."""

    model_config = ConfigDict(extra="forbid", frozen=True, from_attributes=True)


class Error(ResponseModel):
    """The reason why the server refused the request."""

    error: str = Field(description="One sentence.")


class RejectedTask(ResponseModel):
    """A new task that the ledger cannot store, and the reason."""

    key: str
    error: str


class Created(ResponseModel):
    """The numbers of tasks that were new, and of tasks that existed and did not change."""

    new: int
    existing: int
    rejected: list[RejectedTask]


class ClaimedTask(ResponseModel):
    """A task that the worker leases."""

    key: str
    stage: str
    data: dict[str, Any]
    context: dict[str, Any]
    fence: int = Field(description="Number of the claim, which the worker sends to `end_task`.")
    attempt: int
    expires_at: datetime = Field(
        description="End of the lease, unless the worker renews the lease."
    )


class ClaimedTasks(ResponseModel):
    """The tasks that the worker leases now."""

    tasks: list[ClaimedTask]


class Accepted(ResponseModel):
    """The server has recorded the worker's report, now or at an earlier request."""

    accepted: Literal[True] = True


class Renewed(ResponseModel):
    """The keys of the tasks that the worker still leases."""

    keys: list[str]


class TaskView(ResponseModel):
    """All fields of a task."""

    key: str
    stage: str
    status: Annotated[StatusName, BeforeValidator(_status_name)]
    reason: Reason | None
    data: Annotated[dict[str, Any] | None, BeforeValidator(_null_if_blob)]
    results: dict[str, Annotated[Any, BeforeValidator(_null_if_blob)]]
    context: Annotated[dict[str, Any] | None, BeforeValidator(_null_if_blob)]
    large_values: list[str] = Field(
        description="Names of values that are null in a list of tasks because the values are "
        "large, such as `data` or `results.scan`. `/task/{key}` returns the values."
    )
    priority: int
    retry: int
    lost: int
    due: datetime | None
    holder: str | None
    create_time: datetime
    update_time: datetime
    errors: list[AttemptError]
    trace: list[AttemptRecord]

    @classmethod
    def of(cls, task: TrackedTask) -> Self:
        """Return the response body for a tracked task."""
        stored_values = {"data": task.data, "context": task.context}
        stored_values |= {f"results.{stage}": result for stage, result in task.results.items()}
        large_values = [name for name, value in stored_values.items() if isinstance(value, BlobRef)]
        fields = {name: getattr(task, name) for name in cls.model_fields if name != "large_values"}
        return cls(large_values=large_values, **fields)


class TaskPage(ResponseModel):
    """One page of the tasks that match a filter, sorted by their last change, newest first."""

    tasks: list[TaskView]
    next_cursor: str | None = Field(
        description="Cursor of the next page, or null after the last page."
    )


class Counts(ResponseModel):
    """Number of tasks with each status."""

    todo: int
    failed: int
    processing: int
    finished: int
    ignored: int


class Stats(ResponseModel):
    """The numbers of the use case's tasks, by status and by reason."""

    use_case: str
    total: int
    counts: Counts
    reasons: dict[str, int] = Field(description="Number of failed and ignored tasks by reason.")
    next_due: datetime | None = Field(description="Time of the next due task, null if none.")
