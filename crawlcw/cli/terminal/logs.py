"""Set up logging for the commands, and write each log record as one line.

`printable` escapes every message, so that an escape sequence or a line feed in a crawled URL cannot
rewrite the terminal or forge a line of the log. Passwords and keys are removed from URLs. Repeated
log records of crawlcw are counted, not shown.
"""

import io
import json
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from textwrap import indent
from typing import IO, Any, TextIO, TypeVar, cast

import click

from crawlcw.api.settings import unknown_variables
from crawlcw.errors import UsageError
from crawlcw.model.sanitize import printable, printable_block, redacted

logger = logging.getLogger(__name__)

LEVELS = ("debug", "info", "warning", "error")

R = TypeVar("R")

#: Maximum length of a whole log message; a text within the message has a smaller maximum.
_LONGEST_MESSAGE = 1000
_LONGEST_EXTRA = 2000
_INDENT = "    "
#: Maximum length of text that is searched for passwords. A message is cut after the search, because
#: the search would not find half of a password.
_LONGEST_READ = 20_000
_SHOWN_RECORDS = 5
_COUNT_EVERY = 60.0
#: Libraries whose debug records contain network packets, such as commands to a database. Scrapy's
#: crawler writes all settings of a project, which may have passwords.
_TALKATIVE = ("aiohttp", "asyncio", "motor", "pymongo", "scrapy.crawler")
#: Libraries that warn of each odd response, such as a bad cookie.
_TALKATIVE_OF_PAGES = ("aiohttp.internal",)
#: Rare events whose records are always written, never only counted.
_ALWAYS_SHOWN = frozenset(
    {"progress", "worker_started", "worker_crashed", "worker_down", "callback_failed"}
)
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


level_option = click.option(
    "--log-level",
    type=click.Choice(LEVELS, case_sensitive=False),
    help="Lowest level to log; debug shows every page and tracebacks.",
)
format_option = click.option(
    "--log-format",
    type=click.Choice(("text", "json")),
    default="text",
    show_default=True,
    help="Log format on stderr. With json, the progress and the report are JSON records too.",
)
file_option = click.option(
    "--log-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Append the log of all processes to FILE instead of stderr.",
)
quiet_option = click.option(
    "--quiet", "-q", is_flag=True, help="No progress, no tables; only warnings."
)


def log_option(command: Callable[..., R]) -> Callable[..., R]:
    """Add the option `--log-level` to a command, which by default logs only warnings."""

    @level_option
    @wraps(command)
    def wrapper(*, log_level: str | None, **options: Any) -> R:
        set_up(log_level or "warning")
        return command(**options)

    return wrapper


def set_up(
    level: str,
    *,
    log_format: str = "text",
    file: Path | None = None,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Log records of at least *level* to stderr or *file*; *log_format* is `text` or `json`.

    This function replaces an earlier set-up of the log. Warns of unknown CRAWLCW_ variables in
    *environment*. Raises `UsageError` if *file* cannot be written.
    """
    stream = None if file is None else _appending(file)
    # A failed write of a log record (disk full, pipe closed) must not end a crawl.
    logging.raiseExceptions = False
    logging.captureWarnings(True)
    handler = TerseHandler(stream=stream)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    for old_handler in root.handlers[:]:
        if isinstance(old_handler, TerseHandler):
            root.removeHandler(old_handler)
            old_handler.close()
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in _TALKATIVE_OF_PAGES:
        logging.getLogger(name).setLevel(logging.ERROR)
    for sentence in unknown_variables(environment):
        logger.warning(sentence, extra={"event": "unknown_variable"})


def _appending(file: Path) -> TextIO:
    # Open the file without a buffer, so that each line is one write and processes do not mix lines.
    try:
        raw_file = file.open("ab", buffering=0)
    except OSError as error:
        raise UsageError(f"cannot write the log to {file}: {error.strerror}") from None
    return io.TextIOWrapper(
        cast("IO[bytes]", raw_file), encoding="utf-8", errors="backslashreplace", write_through=True
    )


class TextFormatter(logging.Formatter):
    """`2026-11-20T19:30:45Z INFO message`, and a traceback as an indented block of lines.

    The traceback is indented, because an exception's text could imitate a log record.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return a log record as a line, and its traceback as a block of lines."""
        line = f"{_time(record, 'seconds')} {record.levelname} {_message(record)}"
        block = _traceback(self, record)
        return f"{line}\n{indent(block, _INDENT, lambda _: True)}" if block else line


class JsonFormatter(logging.Formatter):
    """Writes one JSON object on each line: time, level, logger, pid, message, and extra fields.

    Each record of crawlcw has a field `event`, which stays the same even if the message changes.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return a log record as a JSON object on one line of ASCII."""
        fields = {
            "time": _time(record, "milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": _message(record),
        }
        fields |= {k: _plain(v) for k, v in vars(record).items() if k not in _STANDARD}
        if block := _traceback(self, record):
            fields["traceback"] = block
        return json.dumps(fields)


def _time(record: logging.LogRecord, precision: str) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec=precision).replace("+00:00", "Z")


def _message(record: logging.LogRecord) -> str:
    return printable(redacted(record.getMessage()[:_LONGEST_READ]), limit=_LONGEST_MESSAGE)


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    if not record.exc_info or record.exc_info[0] is None:
        # A callback's traceback may be a text, because the callback may have run in another
        # process.
        text = getattr(record, "traceback", "")
        return printable_block(redacted(text)) if isinstance(text, str) else ""
    return printable_block(redacted(formatter.formatException(record.exc_info)))


def _plain(value: object) -> Any:
    """Return the value of a record's extra field as a value that JSON can represent."""
    if value is None or type(value) in (bool, int, float):
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {printable(k): _plain(v) for k, v in value.items()}
    return printable(redacted(str(value)[:_LONGEST_READ]), limit=_LONGEST_EXTRA)


class TerseHandler(logging.Handler):
    """Writes log records to *stream*, or to the current `sys.stderr`, and counts repeated records.

    In each minute the handler writes the first five records with the same fields `event` and
    `reason`. At the end of the minute it writes how many such records it has left out. Records of a
    spider and debug records are always written.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, stream: TextIO | None = None
    ) -> None:
        super().__init__()
        self._stream = stream
        self._clock = clock
        self._minute_start = clock()
        self._record_counts: Counter[tuple[str, str]] = Counter()  #: in this minute

    def emit(self, record: logging.LogRecord) -> None:
        """Write the log record, unless the record is only counted."""
        now = self._clock()
        if now - self._minute_start >= _COUNT_EVERY:
            self._write_counts()
            self._minute_start = now
        if _is_counted(record):
            key = _event_and_reason(record)
            self._record_counts[key] += 1
            if self._record_counts[key] > _SHOWN_RECORDS:
                return
        self._write(record)

    def close(self) -> None:
        """Write how many log records were not shown, and close the stream."""
        self._write_counts()
        if self._stream is not None:
            self._stream.close()
        super().close()

    def _write_counts(self) -> None:
        counts, self._record_counts = self._record_counts, Counter()
        for (event, reason), number in counts.items():
            if (further_count := number - _SHOWN_RECORDS) > 0:
                extra = {"event": "repeated", "of": event, "reason": reason, "times": further_count}
                fields = {"name": __name__, "levelno": logging.INFO, "levelname": "INFO"}
                cause = ", ".join(part for part in (event, reason) if part)
                fields |= {"msg": "%d more like this: %s", "args": (further_count, cause)}
                self._write(logging.makeLogRecord(fields | extra))

    def _write(self, record: logging.LogRecord) -> None:
        try:
            stream = self._stream or sys.stderr
            stream.write(self.format(record) + "\n")
            stream.flush()
        except Exception:  # an error of the log must not end a crawl
            self.handleError(record)


def _is_counted(record: logging.LogRecord) -> bool:
    is_crawlcw = record.name.partition(".")[0] == "crawlcw"
    return (
        is_crawlcw
        and record.levelno > logging.DEBUG
        and _event_and_reason(record)[0] not in _ALWAYS_SHOWN
    )


def _event_and_reason(record: logging.LogRecord) -> tuple[str, str]:
    # If a record has no event, use the template of its message as the event.
    event = getattr(record, "event", None) or record.msg
    return str(event), str(getattr(record, "reason", ""))
