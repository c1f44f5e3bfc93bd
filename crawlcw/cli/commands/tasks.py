"""`crawlcw tasks` and `show`: a list of tasks, and the history of one."""

from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from textwrap import indent
from typing import TYPE_CHECKING, Any, NoReturn

import click

from crawlcw.cli import loading, options, scrapy_references
from crawlcw.cli.ledger_option import Subject, ledger_command
from crawlcw.cli.selection import Selection, ids_of, selection_options
from crawlcw.cli.terminal import tables
from crawlcw.cli.terminal.tables import cells, padded
from crawlcw.dashboard.task_views import pages_above, pages_ahead
from crawlcw.errors import SpiderError, UsageError
from crawlcw.feeds import escaping
from crawlcw.ledger.documents import error_document, part_document, trace_document
from crawlcw.ledger.protocol import Ledger
from crawlcw.model import values
from crawlcw.model.sanitize import printable, printable_block
from crawlcw.model.task import BlobRef, Record, Status, Task
from crawlcw.model.transitions import retries

if TYPE_CHECKING:
    from crawlcw.crawl.link_checks import Refusal

_LONGEST_KEY = 500
#: Number of rows that are aligned and printed together. All rows together could fill the memory.
_ALIGNED_ROWS = 100
#: Column of the terminal at which a task's key begins, after its time and status.
_KEY_COLUMN = 34
#: Maximum width of the key's column. If a key is longer, only its own row is not aligned.
_MAX_KEY_WIDTH = 70


@ledger_command("tasks", argument="name")
@click.option(
    "--key", metavar="KEY", help="Show only the task with this key; in a crawl, KEY is a URL."
)
@selection_options(statuses=tuple(Status), host_names=("--host", "--stage"))
@click.option(
    "--given-up", is_flag=True, help="Show only given-up tasks, which `retry-failed` tries again."
)
@options.number_option("--limit", minimum=0, default=50, about="Limit of the list; 0: all.")
@click.option("--json", "as_json", is_flag=True, help="All fields, one JSON object a line.")
@click.option("--items", is_flag=True, help="With --json, also show the items of each task.")
async def tasks(
    subject: Subject,
    *,
    key: str | None,
    selection: Selection,
    limit: int,
    as_json: bool,
    items: bool,
    given_up: bool,
) -> None:
    """List tasks of NAME, a use case or a spider, with the last changed task first.

    Each row has a task's time, status, URL (or key), callback, depth, last error and worker. A
    narrow terminal shows the URL on its own line. `crawlcw show NAME URL` shows the history of one
    task.
    """
    if items and not as_json:
        raise UsageError("--items goes with --json")
    async with subject.opened() as ledger:
        task_filter = selection.filter(ledger)
        if given_up:
            task_filter = task_filter.with_statuses((Status.IGNORED,))
        if key is not None:
            task_filter = replace(task_filter, ids=await ids_of(ledger, key))
        number, rows = 0, list[_Row]()
        async with aclosing(ledger.queries.walk(task_filter)) as records:
            async for record in records:
                if given_up and not retries(record.task.status, record.task.reason):
                    continue
                if as_json:
                    click.echo(await _task_json(ledger, record, items))
                else:
                    rows.append(_row(record))
                if len(rows) == _ALIGNED_ROWS:
                    _print_rows(rows)
                    rows = []
                number += 1
                if number == limit:
                    break
        _print_rows(rows)
        if key is not None and not number:
            raise UsageError(f"{subject.name} has no task {key!r} that matches the other options")
        if not number:
            click.echo(f"no task of {subject.name} matches these options", err=True)


async def _task_json(ledger: Ledger, record: Record, items: bool) -> str:
    """Return a task as a JSON object; if *items* is true, the object also has the task's items."""
    fields = _fields(record)
    if items:
        full_record = await ledger.tasks.get(record.task.id) or record
        fields["items"] = list(full_record.items)
    return escaping.visible(values.to_json(fields))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """The texts in the columns of a task's row, escaped for the terminal."""

    time: str
    status: str
    key: str
    origin: str  #: the request of a page, or the stage of a use case's task
    note: str  #: the task's reason and last error, or its worker, or an empty text


def _row(record: Record) -> _Row:
    task = record.task
    notes = [f"by {task.lock.partition(':')[0]}"] if task.lock else []
    if task.reason:
        message = f": {record.errors[-1].message}" if record.errors else ""
        notes.insert(0, f"{task.reason}{message}")
    return _Row(
        time=f"{task.update_time:%Y-%m-%dT%H:%M:%SZ}",
        status=task.status.name.lower(),
        key=printable(task.url, limit=_LONGEST_KEY),
        origin=printable(task.host if task.carried else _request(task)),
        note=printable(" ".join(notes)),
    )


def _print_rows(rows: list[_Row]) -> None:
    """Print the rows of tasks in columns.

    On a narrow terminal the key and a long note get their own lines. Keys are never cut, so that
    the user can copy a key. In a pipe each task is one line.
    """
    key_width = min(max((cells(row.key) for row in rows), default=0), _MAX_KEY_WIDTH)
    origin_width = max((cells(row.origin) for row in rows), default=0)
    note_width = max((cells(row.note) for row in rows), default=0)
    columns = tables.terminal_width()
    note_column = _KEY_COLUMN + origin_width + 2
    for row in rows:
        start = f"{row.time}  {tables.coloured(f'{row.status:<10}', row.status)}"
        key, origin = padded(row.key, key_width), padded(row.origin, origin_width)
        if columns is None or columns >= note_column + key_width + 2 + note_width:
            click.echo(f"{start}  {key}  {origin}  {row.note}".rstrip())
        elif columns >= note_column + cells(row.note):
            click.echo(f"{start}  {origin}  {row.note}".rstrip() + f"\n  {row.key}")
        else:
            click.echo(
                f"{start}  {row.origin}\n  {row.key}\n  {tables.wrapped(row.note, indent=2)}"
            )


def _request(task: Task) -> str:
    """Return a text with the HTTP method, body size, callback and depth of a task."""
    method = "" if task.method == "GET" else f"{task.method} "
    body = f"{len(task.body):,} bytes " if task.body else ""
    return f"{method}{body}{task.callback}() depth {task.depth}"


@ledger_command("show", argument="name")
@click.argument("key", metavar="URL")
@options.json_option
async def show(subject: Subject, *, key: str, as_json: bool) -> None:
    """Show the history of one URL of NAME: its discovery, attempts and items.

    NAME is a spider or a use case. For a use case, URL is the key of a task. If the ledger does not
    have the URL, the exit code is 2, and the command says whether a crawl would follow a link to
    the URL. A crawl refuses a link if it is out of scope, if robots.txt forbids it, if its host is
    given up, or if it looks like a trap (an endless series of URLs). A crawl may also have dropped
    a link that it would follow now.
    """
    async with subject.opened() as ledger:
        ids = await ids_of(ledger, key)
        record = await ledger.tasks.get(ids[0])
        if record is None:
            await _explain_unknown(subject.reference, key, ledger, as_json=as_json)
        parent_urls = [task.url async for task in pages_above(ledger, record.task)]
        next_records = [next_record async for next_record in pages_ahead(ledger, record)]
    if as_json:
        fields = _fields(record) | {"items": list(record.items)}
        if not record.task.carried:
            fields["linked_from"] = parent_urls
            fields["leads_to"] = [
                {"url": next_record.task.url, "status": next_record.task.status.name.lower()}
                | ({"reason": next_record.task.reason} if next_record.task.reason else {})
                for next_record in next_records
            ]
        click.echo(escaping.visible(values.to_json(fields)))
        return
    for line in _lines(record, parent_urls, next_records):
        click.echo(line)
    if len(ids) > 1:
        others = options.command_line("tasks", subject.name, "--key", key)
        click.echo(f"crawlcw: {len(ids):,} tasks have this URL: {others} lists them", err=True)


def _lines(record: Record, parent_urls: list[str], next_records: list[Record]) -> Iterator[str]:
    task = record.task
    reason_note = f" ({task.reason})" if task.reason else ""
    yield printable(task.url, limit=2000)
    yield f"  {task.status.name.lower()}{reason_note} since {_time_text(task.update_time)}"
    yield f"  known since {_time_text(task.create_time)}, priority {task.priority}"
    if task.due is not None:
        yield f"  due {_time_text(task.due)}"
    if task.lock:
        yield printable(f"  leased by {task.lock.partition(':')[0]}")
    if task.carried:
        yield printable(f"  stage {task.host}")
    else:
        body = f", a body of {len(task.body):,} bytes" if task.body else ""
        yield printable(f"  {task.method}{body}, for {task.callback}(), depth {task.depth}")
    for url in parent_urls:
        yield printable(f"  linked from {url}", limit=2000)
    for next_record in next_records:
        yield printable(
            f"  leads to {next_record.task.url}: {_status_text(next_record)}", limit=2000
        )
    context = task.shown_context
    if context and not isinstance(context, BlobRef):
        yield printable(f"  context {values.to_json(context)}", limit=2000)
    yield from _attempts(record)
    for item in record.items:
        yield f"  item {escaping.visible(values.to_json(item))}"


def _status_text(record: Record) -> str:
    """Return a text about the status of a redirect's target page."""
    task = record.task
    if record.leads_to is not None:
        return "a redirect too"
    status = task.status.name.lower()
    return f"{status} ({task.reason})" if task.reason else status


def _attempts(record: Record) -> Iterator[str]:
    for error in record.errors:
        time_text = _time_text(error.time)
        yield printable(
            f"  attempt {error.attempt}, {time_text}: {error.kind}: {error.message}", limit=700
        )
        if error.traceback:
            # Indent the traceback, because the exception's text could imitate a line of crawlcw.
            yield indent(printable_block(error.traceback), "    ", lambda _: True)
    response = record.response
    if response is not None:
        cut_note = f", cut: {response.truncated}" if response.truncated else ""
        kind = response.content_type or "no content type"
        yield printable(
            f"  answered {response.status}, {response.bytes:,} bytes{cut_note}, {kind}, "
            f"{response.elapsed:.3f} s"
        )
        if response.final_url != record.task.url and record.leads_to is None:
            yield printable(f"  it was at {response.final_url}", limit=2000)
        if response.file is not None:
            yield printable(f"  saved to {response.file}", limit=2000)
    if (body := record.task.stored) is not None:
        yield printable(f"  its body is in {body.file}, {body.length:,} bytes at {body.offset:,}")
    for claim in record.trace:
        fields = {k: v for k, v in trace_document(claim).items() if v is not None}
        yield printable(f"  claim {values.to_json(values.clean(fields))}", limit=700)


def _time_text(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S}Z"


async def _explain_unknown(name: str, key: str, ledger: Ledger, *, as_json: bool) -> NoReturn:
    """Raise a `UsageError` that says why a URL is unknown; if *as_json*, first print JSON."""
    refusal, explanation = (
        (None, "no task has this key")
        if ledger.kind.tracked
        else await _explanation(name, key, ledger)
    )
    if as_json:
        reason = None if refusal is None else str(refusal.reason)
        result = {"url": key, "recorded": False, "refused": reason, "why": explanation}
        click.echo(escaping.visible(values.to_json(result)))
    raise UsageError(f"{key!r} is not recorded: {explanation}")


async def _explanation(name: str, key: str, ledger: Ledger) -> "tuple[Refusal | None, str]":
    """Return the crawl's refusal of links to *key* (or None), and why *key* is unknown."""
    from crawlcw.crawl.link_checks import LinkChecks  # `tasks` does not need the crawler

    if scrapy_references.target_of(name) is not None:
        return None, "no parsed page has requested it"
    try:
        spider = loading.make(loading.find(name), ())
    except SpiderError:
        return None, "no parsed page links to it (the spider's code is not here to say more)"
    checks = LinkChecks(spider, options.settings_of(spider), await ledger.notes.state())
    refusal = await checks.refusal_now(key, ledger)
    if refusal is not None:
        return refusal, f"a link to it is not followed, {refusal.reason}: {refusal.why}"
    depth_note = ""
    if checks.max_depth is not None:
        depth_note = f" (up to depth {checks.max_depth:,}; deeper ones are kept as refused-depth)"
    return None, f"no parsed page links to it, but a link would be followed{depth_note}"


def _fields(record: Record) -> dict[str, Any]:
    """Return the fields of a task as values that JSON can represent."""
    task = record.task
    tracked_fields = task.carried
    fields: dict[str, Any] = {
        "id": task.id.hex(),
        "key" if tracked_fields else "url": task.url,
        "stage" if tracked_fields else "host": task.host,
        "status": task.status.name.lower(),
        "reason": task.reason,
        "priority": task.priority,
        "retry": task.retry,
        "lost": task.lost,
        "due": task.due,
        "lock": task.lock,
        "update_time": task.update_time,
        "create_time": task.create_time,
        "context": _printable_value(task.shown_context),
        "errors": [error_document(error) for error in record.errors],
    }
    if tracked_fields:
        fields["data"] = _printable_value(tracked_fields.data)
        fields["results"] = {
            stage: _printable_value(result) for stage, result in tracked_fields.results.items()
        }
        fields["trace"] = [trace_document(trace) for trace in record.trace]
        return fields
    fields |= {
        "method": task.method,
        "body_bytes": len(task.body or b""),
        "callback": task.callback,
        "errback": task.errback,
        "depth": task.depth,
        "hops": task.hops,
        "parent": None if task.parent is None else task.parent.hex(),
    }
    if record.response:
        fields["response"] = part_document(record.response)
    if task.stored is not None:
        fields["stored"] = asdict(task.stored)
    return fields


def _printable_value(value: Any) -> Any:
    return {"blob": value.id, "size": value.size} if isinstance(value, BlobRef) else value
