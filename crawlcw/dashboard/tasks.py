"""Search for tasks, change tasks, and give orders to crawls; the requests are pydantic models."""

from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Any, Literal, assert_never

from pydantic import BeforeValidator, Field

from crawlcw.crawl.control import ADJUSTABLE, Control, check_changes
from crawlcw.dashboard.key_filters import filters_of
from crawlcw.dashboard.task_views import task_row
from crawlcw.errors import FetchError, Reason, UsageError
from crawlcw.ledger.protocol import Count, Ledger, TaskFilter
from crawlcw.model.durations import iso_time
from crawlcw.model.task import Record, Status
from crawlcw.model.transitions import REOPEN, WITHDRAW
from crawlcw.server.access import RefusedError
from crawlcw.server.requests import (
    Cursor,
    OneReason,
    RequestModel,
    StatusName,
    UtcTime,
    integer_of_digits,
)
from crawlcw.tracking import views

_MAX_PAGE = 200  #: maximum number of tasks in one batch of search results
_MAX_CHOSEN = 1_000  #: maximum number of tasks that the user can select for one action
#: Maximum number of tasks that a search examines, so that a search takes less than 0.5 s.
_SCAN_LIMIT = 10_000


def _split(value: object) -> object:
    return value.split(",") if isinstance(value, str) else value


Text = Annotated[str, Field(max_length=4_096, pattern=r"^[^\x00-\x1f\x7f]*$")]
TaskId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class Selection(RequestModel):
    """A filter: a task must match all given fields; two fields limit the time of its change."""

    status: Annotated[list[StatusName], BeforeValidator(_split), Field(max_length=5)] | None = None
    reason: OneReason | None = None
    host: Text | None = None
    prefix: Text | None = None
    changed_since: UtcTime | None = None
    changed_before: UtcTime | None = None

    def task_filter(self) -> TaskFilter:
        """Return the filter for the ledger."""
        status_names = self.status
        return TaskFilter(
            statuses=tuple(
                status
                for status in Status
                if status_names is None or status.name.lower() in status_names
            ),
            reason=self.reason,
            host=self.host or None,
            url_prefix=self.prefix or None,
            changed_since=self.changed_since,
            changed_before=self.changed_before,
        )


class FindTasks(Selection):
    """A search for tasks; the results are sorted by latest change."""

    text: Text = ""
    limit: Annotated[int, Field(ge=1, le=_MAX_PAGE), BeforeValidator(integer_of_digits)] = 50
    cursor: Cursor | None = None


class Order(RequestModel):
    """An order to the running crawls; `set` changes `settings`, and null resets a setting."""

    order: Literal["pause", "resume", "set", "stop"]
    settings: Annotated[dict[str, Text | None], Field(max_length=len(ADJUSTABLE))] = {}


class Action(RequestModel):
    """An action on tasks, which are given by their ids or by a selection."""

    action: Literal["retry", "ignore", "reset"]
    tasks: Annotated[list[TaskId], Field(min_length=1, max_length=_MAX_CHOSEN)] | None = None
    selection: Selection | None = None
    dry_run: bool = False


async def search(ledger: Ledger, query: FindTasks) -> dict[str, Any]:
    """Return the matching tasks, and a cursor to continue (null if all tasks were examined).

    If the text is a complete URL or key, the task of that URL or key comes first.
    """
    task_filter = replace(query.task_filter(), containing=query.text)
    cursor = views.parse_cursor(query.cursor) if query.cursor is not None else None
    page = await ledger.queries.page(
        task_filter, limit=query.limit, scan_limit=_SCAN_LIMIT, cursor=cursor
    )
    records = list(page.records)
    if query.cursor is None and (named_task := await _task_named(ledger, query)) is not None:
        records = [
            named_task,
            *(candidate for candidate in records if candidate.task.id != named_task.task.id),
        ]
    return {
        "tasks": [task_row(record) for record in records],
        "next_cursor": None if page.cursor is None else views.cursor_text(page.cursor),
        "scanned_back_to": None if page.cursor is None else page.cursor.update_time,
        "scanned_tasks": _SCAN_LIMIT,
    }


async def act(ledger: Ledger, command: Action) -> dict[str, Any]:
    """Change tasks, or only count them if `dry_run` is true; return the number of these tasks.

    The action skips leased tasks, and tasks that change while the action runs. `at_least` means
    that the number of tasks may be larger.
    """
    match command:
        case Action(tasks=list() as names, selection=None):
            task_filter = TaskFilter(ids={bytes.fromhex(name) for name in names})
        case Action(tasks=None, selection=Selection() as selection):
            task_filter = selection.task_filter()
        case _:
            raise RefusedError(422, "body: give either `tasks` or `selection`")
    if command.dry_run:
        count = await _count(ledger, command, task_filter)
        return {"changed": count.number, **({} if count.is_exact else {"at_least": True})}
    if task_filter.changed_before is None:
        # Exclude tasks that change after this moment, so that a repeat changes no task twice.
        task_filter = replace(task_filter, changed_before=ledger.now() + timedelta(milliseconds=1))
    match command.action:
        case "retry":
            changed_count = await ledger.admin.retry_failed(task_filter)
        case "ignore":
            changed_count = await ledger.admin.withdraw(task_filter, reason=Reason.WITHDRAWN)
        case "reset":
            changed_count = await ledger.admin.reopen(task_filter, deletes_results=True)
        case _:
            assert_never(command.action)
    return {"changed": changed_count}


async def give_order(ledger: Ledger, command: Order) -> dict[str, Any]:
    """Give an order to the crawls of a ledger, like the commands `pause`, `resume`, `set`, `stop`.

    Returns the orders in force. Raises `SettingsError` for an invalid setting, and `RefusedError`
    for any other invalid order.
    """
    if ledger.kind.tracked:
        raise RefusedError(422, f"a use case has no crawl to {command.order}")
    if command.settings and command.order != "set":
        raise RefusedError(422, "body.settings: only the order `set` has settings")
    now = iso_time(ledger.now())
    match command.order:
        case "pause":
            is_paused = Control.of(await ledger.notes.control()).paused is not None
            changes: dict[str, str | None] = {} if is_paused else {"paused": now}
        case "resume":
            changes = {"paused": None}
        case "stop":
            changes = {"stopped": now}
        case "set":
            changes = {name: value or None for name, value in command.settings.items()}
            check_changes(changes)
        case _:
            assert_never(command.order)
    if changes:
        await ledger.notes.set_control(changes)
    return Control.of(await ledger.notes.control()).fields()


async def _count(ledger: Ledger, command: Action, task_filter: TaskFilter) -> Count:
    """Return the number of tasks that a change would affect."""
    if command.action == "retry":
        return await ledger.admin.count_failed(task_filter)
    change = WITHDRAW if command.action == "ignore" else REOPEN
    parts = [task_filter.applicable(task_part, now=ledger.now()) for task_part in change.parts]
    return sum([await ledger.queries.count(task_part) for task_part in parts], Count(number=0))


async def _task_named(ledger: Ledger, query: FindTasks) -> Record | None:
    """Return the task whose complete URL or key the user typed, if the task matches the filter."""
    url_or_key = query.prefix or query.text
    if not url_or_key:
        return None
    try:
        filters = filters_of(ledger, url_or_key)
    except (FetchError, UsageError):
        return None
    for key_filter in filters:
        task_filter = replace(
            query.task_filter(), ids=key_filter.ids, url=key_filter.url, url_prefix=None
        )
        page = await ledger.queries.page(task_filter, limit=1, scan_limit=_SCAN_LIMIT)
        if page.records:
            return page.records[0]
    return None
