"""Read requests from a file or standard input: each line is a URL or a JSON object."""

import inspect
import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from crawlcw.api.request import Request
from crawlcw.errors import CrawlcwError, UsageError

_REQUEST_ARGUMENTS = frozenset(inspect.signature(Request).parameters) - {"unknown"}
#: The possible first characters of a line of JSON; no URL begins with one of them.
_JSON = ("{", '"')


def read(lines: Iterable[bytes], *, callback: str | None, priority: int) -> Iterator[Request]:
    """Yield the requests in *lines*; *callback* and *priority* are the default values.

    Raises `UsageError` with the number of the invalid line.
    """
    for number, line in enumerate(lines, 1):
        try:
            # Files from Windows may begin with a byte order mark.
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError as error:
            raise UsageError(f"line {number} is not UTF-8: {error.reason}") from None
        if text:
            arguments = _fields(text, number)
            yield _request({"callback": callback, "priority": priority} | arguments, number)


def _fields(text: str, line: int) -> dict[str, Any]:
    """Return the arguments for the `Request` that a line describes."""
    if not text.startswith(_JSON):
        return {"url": text}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"line {line} is not JSON: {error}") from None
    if isinstance(value, str):
        return {"url": value}
    if not isinstance(value.get("url"), str):
        raise UsageError(f"line {line} has no text `url`")
    if unknown := value.keys() - _REQUEST_ARGUMENTS:
        raise UsageError(
            f"line {line}: a request has no {', '.join(map(repr, sorted(unknown)))}; "
            f"it takes {', '.join(sorted(_REQUEST_ARGUMENTS))}"
        )
    if isinstance(value.get("changed"), str):
        value["changed"] = _time(value["changed"], line)
    return dict(value)


def _time(text: str, line: int) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"line {line}: changed={text!r} is not an ISO 8601 time") from None


def _request(arguments: dict[str, Any], line: int) -> Request:
    try:
        return Request(**arguments)
    except CrawlcwError as error:
        raise UsageError(f"line {line}: {error}") from None
    except (TypeError, ValueError, AttributeError) as error:
        # A value of the JSON object has a wrong type.
        raise UsageError(f"line {line} is not a valid request: {error}") from None
