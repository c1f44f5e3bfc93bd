"""Read tasks from a file or standard input: plain lines, JSON Lines or CSV."""

import csv
import json
from collections.abc import Iterator
from typing import IO, Any

from crawlcw.errors import UsageError
from crawlcw.tracking import NewTask, keys

FORMATS = ("lines", "jsonl", "csv")
#: Maximum number of characters in a CSV field. The ledger has the same limit for a value.
_LARGEST_FIELD = 64 << 20


def read(source: IO[bytes], file_format: str, *, key: str, priority: int) -> Iterator[NewTask]:
    """Yield the tasks in *source*; *key* is the name of the column or field with the task's key.

    *priority* is the default. Raises `UsageError` with the number of the invalid line.
    """
    lines = _decoded(source)
    match file_format:
        case "lines":
            return _lines(lines, priority)
        case "jsonl":
            return _json_lines(lines, key, priority)
        case _:
            return _rows(lines, key, priority)


def _decoded(source: IO[bytes]) -> Iterator[str]:
    for number, line in enumerate(source, 1):
        try:
            # Files from Windows may begin with a byte order mark.
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(f"line {number} is not UTF-8: {error.reason}") from None


def _lines(lines: Iterator[str], priority: int) -> Iterator[NewTask]:
    for number, line in enumerate(lines, 1):
        if text := line.strip():
            yield _checked_task(NewTask(text, priority=priority), number)


def _json_lines(lines: Iterator[str], key: str, priority: int) -> Iterator[NewTask]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"line {number} is not JSON: {error}") from None
        if isinstance(value, str):
            yield _checked_task(NewTask(value, priority=priority), number)
        elif isinstance(value, dict) and isinstance(value.get(key), str):
            yield _task(value, key, priority, number)
        else:
            raise UsageError(
                f"line {number} is neither a text nor an object with the text {key!r}: "
                "--key names another field"
            )


def _rows(lines: Iterator[str], key: str, priority: int) -> Iterator[NewTask]:
    # Raise the CSV limit, because for a too large task the ledger has a better message than `csv`.
    # The limit holds for the whole process, but the process reads only this one file.
    csv.field_size_limit(max(csv.field_size_limit(), _LARGEST_FIELD))
    rows = csv.DictReader(lines)
    try:
        names = rows.fieldnames or ()
        if key not in names:
            raise UsageError(
                f"the first line has no column {key!r} (it has: {', '.join(names) or 'none'}): "
                "--key names another one"
            )
        for row in rows:
            if None in row or None in row.values():
                raise UsageError(f"line {rows.line_num} has not as many fields as the first line")
            yield _task(dict(row), key, priority, rows.line_num)
    except csv.Error as error:
        raise UsageError(f"line {rows.line_num} is not CSV: {error}") from None


def _task(fields: dict[str, Any], key: str, priority: int, line: int) -> NewTask:
    """Return the task of a JSON object. Without `data`, all fields that are left are the data."""
    task_key = fields.pop(key)
    data = fields.pop("data", None)
    task_priority = _priority(fields.pop("priority", priority), priority, line)
    stage = fields.pop("stage", None) or None
    if data is None:
        data = fields
    elif fields:
        raise UsageError(
            f"line {line} has `data` and also {', '.join(sorted(fields))}: put all into `data`"
        )
    if not isinstance(data, dict):
        raise UsageError(f"line {line}: `data` is not an object")
    return _checked_task(NewTask(task_key, data, priority=task_priority, stage=stage), line)


def _priority(value: Any, default: int, line: int) -> int:
    """Return the priority that a number or a text states, or *default* for an empty text."""
    if value == "":
        return default
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            pass
    elif isinstance(value, int) and not isinstance(value, bool):
        return value
    raise UsageError(f"line {line}: the priority {value!r} is not an integer")


def _checked_task(task: NewTask, line: int) -> NewTask:
    """Return *task* if it is valid, or raise `UsageError` with the line's number."""
    try:
        keys.key(task.key)
        keys.priority(task.priority)
        if task.stage is not None:
            keys.stage(task.stage)
    except UsageError as error:
        raise UsageError(f"line {line}: {error}") from None
    return task
