"""List the items of a crawl, one batch of tasks at a time, with the task of each item."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from crawlcw.dashboard.task_views import fields, items_of, link_to
from crawlcw.ledger.protocol import Ledger, TaskFilter
from crawlcw.model.task import Status, Task
from crawlcw.server.requests import Cursor, RequestModel, integer_of_digits
from crawlcw.tracking import views

_MAX_TASKS = 100  #: maximum number of tasks in one batch of the list
_MAX_ITEMS = 100  #: number of items after which a batch of the list ends


class ListItems(RequestModel):
    """A request for the items of up to `limit` finished tasks, sorted by latest change."""

    limit: Annotated[int, Field(ge=1, le=_MAX_TASKS), BeforeValidator(integer_of_digits)] = 50
    cursor: Cursor | None = None


async def list_items(ledger: Ledger, query: ListItems) -> dict[str, Any]:
    """Return tasks with their items, and the cursor of the next page (null at the last page).

    Reads `limit` tasks, or fewer tasks if they have many items, and skips tasks without items.
    """
    cursor = views.parse_cursor(query.cursor) if query.cursor is not None else None
    page = await ledger.queries.page(
        TaskFilter(statuses=(Status.FINISHED,)),
        limit=query.limit,
        scan_limit=query.limit,
        cursor=cursor,
    )
    tasks: list[dict[str, Any]] = []
    next_position: Task | None = None
    for listed_record in page.records:
        if sum(len(task["items"]) for task in tasks) >= _MAX_ITEMS:
            break
        next_position = listed_record.task
        # Read each task's record, because the records of a listing lack the items.
        record = await ledger.tasks.get(next_position.id)
        if record is not None and record.items:
            tasks.append(
                {**link_to(record.task), **fields(record.task, "update_time"), **items_of(record)}
            )
    else:
        return {"tasks": tasks, "next_cursor": page.cursor and views.cursor_text(page.cursor)}
    return {"tasks": tasks, "next_cursor": next_position and views.cursor_text(next_position)}
