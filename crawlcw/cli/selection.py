"""Define the options that select tasks, and translate the options to a filter of tasks."""

import difflib
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, TypeVar
from urllib.parse import quote

import click

from crawlcw.cli.options import duration_option
from crawlcw.dashboard.key_filters import filters_of
from crawlcw.errors import FetchError, Reason, UsageError
from crawlcw.ledger.protocol import Count, Ledger, TaskFilter
from crawlcw.model import urls
from crawlcw.model.durations import format_duration
from crawlcw.model.sanitize import printable
from crawlcw.model.task import Status

R = TypeVar("R")

#: The statuses of tasks that no worker has leased.
UNLEASED = tuple(status for status in Status if status is not Status.PROCESSING)
#: Characters of a URL that `_prefix` does not quote: all visible ASCII, even `%`.
_ASCII = "".join(map(chr, range(33, 127)))
_JSON = "Print one JSON object for programs, with the number of tasks."
_DRY_RUN = "Change nothing: only count the tasks."


async def ids_of(ledger: Ledger, *keys: str) -> list[bytes]:
    """Return the ids of the tasks with these keys (in a crawl, URLs); raises `UsageError`.

    The ids of one key begin with the task that changed last. For a key without a task, the result
    has the id that such a task would have.
    """
    ids: dict[bytes, None] = {}
    for key in keys:
        try:
            filters = filters_of(ledger, key)
        except FetchError as error:
            # The error shows the URL without its password.
            raise UsageError(f"not a URL: {error.message}") from None
        for task_filter in filters:
            key_ids = [record.task.id async for record in ledger.queries.walk(task_filter)]
            if key_ids:
                break
        ids.update(dict.fromkeys(key_ids or filters[0].ids or ()))
    return [*ids]


def host_of(text: str) -> str:
    """Return the normalized host of a host name, `host:port` or URL."""
    try:
        return urls.locate(text if "://" in text else f"http://{text}/").host
    except FetchError:
        raise UsageError(f"{text!r} is not a host: write host or host:port") from None


def any_reason(text: str, reasons: Collection[Reason] = tuple(Reason)) -> Reason:
    """Return the reason named *text*; raises `UsageError` if *reasons* does not have it."""
    if text in reasons:
        return Reason(text)
    matches = difflib.get_close_matches(text, reasons, n=1)
    hint = f"did you mean {matches[0]}? " if matches else ""
    raise UsageError(f"there is no reason {text!r}: {hint}there are {', '.join(sorted(reasons))}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The values of the options that select tasks. `Selection()` selects all tasks."""

    statuses: tuple[Status, ...] = ()  #: empty: any status
    reason: Reason | None = None
    host: str | None = None
    url_prefix: str | None = None
    callback: str | None = None
    changed_within: timedelta | None = None

    def __bool__(self) -> bool:
        """Return whether the user gave any option that selects tasks."""
        return self != Selection()

    @property
    def condition(self) -> str:
        """The selection as words, such as ` with host a.example`; `""` without a condition."""
        text_by_condition = {
            "status": " or ".join(status.name.lower() for status in self.statuses),
            "host": self.host,
            "URL prefix": self.url_prefix,
            "callback": self.callback,
            "reason": self.reason,
        }
        conditions = [
            f"{name} {printable(text)}" for name, text in text_by_condition.items() if text
        ]
        if self.changed_within is not None:
            conditions.append(f"changed in the last {format_duration(self.changed_within)}")
        return f" with {', '.join(conditions)}" if conditions else ""

    def filter(self, ledger: Ledger, *, changed_before: datetime | None = None) -> TaskFilter:
        """Return the filter of a ledger's tasks; raises `UsageError` for an invalid URL."""
        is_tracked = ledger.kind.tracked
        return TaskFilter(
            statuses=self.statuses or tuple(Status),
            reason=self.reason,
            # In a use case `host` is a stage and `url_prefix` the start of a key: do not normalize.
            host=self.host if is_tracked or self.host is None else host_of(self.host),
            url_prefix=self.url_prefix if is_tracked else _prefix(self.url_prefix),
            callback=self.callback,
            changed_since=None
            if self.changed_within is None
            else ledger.now() - self.changed_within,
            changed_before=changed_before,
        )


def selection_options(
    *,
    statuses: Collection[Status] = UNLEASED,
    reason: Callable[[str], Reason] = any_reason,
    host_names: Sequence[str] = ("--host",),
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Return a decorator that adds options, and passes their values as the parameter `selection`.

    The function *reason* parses a reason's name, and raises `UsageError` for an unknown name.
    """
    names = [status.name.lower() for status in statuses]
    decorators = (
        click.option(
            *host_names, "host", metavar="HOST", help="Only tasks of this host (host or host:port)."
        ),
        click.option("--url-prefix", metavar="URL", help="Only tasks whose URL has this prefix."),
        click.option("--callback", metavar="NAME", help="Only tasks for this callback."),
        click.option(
            "--reason",
            metavar="REASON",
            help="Only tasks that failed or are ignored for this reason.",
        ),
        duration_option(
            "--since", "changed_within", about="Only tasks that changed in the last 30m, 12h, 7d."
        ),
        click.option(
            "--status",
            "statuses",
            type=click.Choice(names),
            multiple=True,
            help="Only tasks of this status. May be repeated.",
        ),
    )

    def add(command: Callable[..., R]) -> Callable[..., R]:
        @wraps(command)
        def wrapper(*args: Any, **option_values: Any) -> R:
            reason_name = option_values.pop("reason")
            selection = Selection(
                statuses=tuple(Status[name.upper()] for name in option_values.pop("statuses")),
                reason=None if reason_name is None else reason(reason_name),
                **{
                    name: option_values.pop(name)
                    for name in ("host", "url_prefix", "callback", "changed_within")
                },
            )
            return command(*args, selection=selection, **option_values)

        for option in reversed(decorators):
            option(wrapper)
        return wrapper

    return add


def dry_run_option(command: Callable[..., R]) -> Callable[..., R]:
    """Add `--dry-run` and `--json` to a command."""
    command = click.option("--json", "as_json", is_flag=True, help=_JSON)(command)
    return click.option("--dry-run", is_flag=True, help=_DRY_RUN)(command)


def print_count(
    count: Count, message: str, *, dry_run: bool, as_json: bool, at_work: int | None = None
) -> None:
    """Print *message*, or a JSON object with the number of tasks that a command changed.

    The JSON object has `at_least: true` if there may be more tasks. *at_work* is the number of
    tasks that do not change because workers have leased them. If *at_work* is None, no such number
    is printed.
    """
    numbers = {"tasks": count.number, "dry_run": dry_run}
    if not count.is_exact:
        numbers["at_least"] = True
    if at_work is not None:
        numbers["at_work"] = at_work
    if at_work:
        pronoun = "it" if at_work == 1 else "them"
        message += f"; {at_work:,} did not change: workers are at work on {pronoun}"
    click.echo(json.dumps(numbers) if as_json else message)


def from_now(ledger: Ledger) -> datetime:
    """Return a time just after now; a command skips tasks whose status changes after this time."""
    return ledger.now() + timedelta(milliseconds=1)


def _prefix(text: str | None) -> str | None:
    """Return the URL prefix *text* with its origin normalized, so that it matches task URLs."""
    if text is None:
        return None
    scheme, _, rest = text.partition("://")
    authority, slash, path = rest.partition("/")
    try:
        origin = urls.locate(f"{scheme}://{authority}/").url
    except FetchError as error:
        raise UsageError(
            f"--url-prefix {text!r} is not the beginning of a URL: write http://host/path or "
            f"https://host/path ({error.message})"
        ) from None
    if not slash and "?" in authority:
        raise UsageError(f"--url-prefix {text!r} has no path: write http://host/?...")
    # Quote the path, but do not normalize it: the prefix could lose its last characters.
    return origin + quote(path, safe=_ASCII)
