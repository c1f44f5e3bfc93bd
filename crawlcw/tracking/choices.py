"""Check the arguments that choose tasks, and translate them to a filter."""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any

from crawlcw.errors import Reason, UsageError
from crawlcw.ledger.protocol import TaskFilter
from crawlcw.model.task import Status, key_id
from crawlcw.tracking import keys
from crawlcw.tracking.use_case import UseCase

#: A status or several, each itself or by its name: `Status.FAILED`, `"failed"`.
Statuses = Status | str | Collection[Status | str]
#: Limit of a returned page; `walk` yields any number of tasks.
LARGEST_PAGE = 1_000_000


def chosen(
    *,
    status: Statuses | None = None,
    reason: Reason | str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    ids: Collection[bytes] | None = None,
) -> TaskFilter:
    """Return the filter for the arguments; raises `UsageError`."""
    return TaskFilter(
        statuses=statuses(status),
        reason=None if reason is None else _reason(reason),
        since=None if since is None else _moment("since", since),
        until=None if until is None else _moment("until", until),
        ids=ids,
    )


def places(use_case: UseCase, stage: str | None) -> Sequence[str | None]:
    """Return the ledger's host fields of tasks in *stage*; None, for any, without a stage.

    Raises `UsageError`.
    """
    return (None,) if stage is None else use_case.places([keys.stage(stage)])


def statuses(given: Statuses | None) -> tuple[Status, ...]:
    """Return the given statuses, all for None; raises `UsageError`."""
    if given is None:
        return tuple(Status)
    if isinstance(given, Status | str):
        return (_status(given),)
    if not isinstance(given, Collection):
        raise _no_status(given)
    return tuple(_status(each) for each in given)


def ids(chosen_keys: Collection[str], *, everything: bool, filters: dict[str, Any]) -> Any:
    """Return the ids of the keys, or None for all tasks that match the filters.

    An empty list of keys does not mean all tasks: it may be a computed one. Raises
    `UsageError`.
    """
    if chosen_keys and everything:
        raise UsageError("either some keys or all=True")
    if chosen_keys:
        return tuple(key_id(keys.key(each)) for each in chosen_keys)
    if not everything and all(each is None for each in filters.values()):
        named = "".join(f"{name}=, " for name in filters)
        raise UsageError(f"say which tasks: some keys, {named}or all=True for every one")
    return None


def limit(given: object) -> int:
    """Return the limit of tasks; raises `UsageError`."""
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= LARGEST_PAGE:
        raise UsageError(
            f"limit is at least 1 and at most {LARGEST_PAGE:,}, not {given!r}: `walk` yields "
            "any number of tasks"
        )
    return given


def _status(given: object) -> Status:
    if isinstance(given, Status):
        return given
    if isinstance(given, str) and given.upper() in Status.__members__:
        return Status[given.upper()]
    raise _no_status(given)


def _no_status(given: object) -> UsageError:
    names = ", ".join(each.name for each in Status)
    return UsageError(f"{given!r} is no status: write Status. and one of {names}")


def _reason(given: object) -> Reason:
    try:
        return Reason(given)  # type: ignore[arg-type]  # whatever it is, it is looked up
    except ValueError:
        raise UsageError(f"{given!r} is no reason: write one of `crawlcw.errors.Reason`") from None


def _moment(name: str, given: object) -> datetime:
    if not isinstance(given, datetime) or given.tzinfo is None:
        raise UsageError(
            f"{name} is a datetime with a time zone, not {given!r}: datetime.now(UTC), for one"
        )
    try:
        return given.astimezone(UTC)
    except OverflowError:
        raise UsageError(f"{name} is too far away: {given!r}") from None
