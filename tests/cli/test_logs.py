import ast
import io
import json
import logging
import os
import sys
from pathlib import Path

import pytest

import crawlcw
from crawlcw.cli.terminal import logs
from crawlcw.cli.terminal.logs import JsonFormatter, TerseHandler, TextFormatter

PACKAGE = Path(crawlcw.__file__).parent
HOSTILE = "a\x1b]52;c;aGk=\x07b\nERROR forged\u2028\u202ec \x9b31m"


def record(message="hello %s", *args, level=logging.INFO, name="crawlcw.crawl.fetcher", **extra):
    made = logging.LogRecord(name, level, __file__, 1, message, args or ("you",), None)
    vars(made).update(extra)
    return made


class FakeClock:
    def __init__(self):
        self.time = 0.0

    def __call__(self):
        return self.time


@pytest.fixture
def clock():
    return FakeClock()


class Captured:
    """Captured output of stderr."""

    def __init__(self, capsys):
        self._capsys = capsys
        self._text = ""

    def getvalue(self):
        self._text += self._capsys.readouterr().err
        return self._text


@pytest.fixture
def stderr(capsys):
    return Captured(capsys)


@pytest.fixture
def handler(clock, stderr):
    made = TerseHandler(clock=clock)
    made.setFormatter(TextFormatter())
    yield made
    made.close()


def test_text_is_one_line_with_time_and_level():
    made = record()
    made.created = 0

    assert TextFormatter().format(made) == "1970-01-01T00:00:00Z INFO hello you"


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_a_hostile_message_stays_on_its_line_and_moves_no_cursor(formatter):
    line = formatter.format(record("%s", HOSTILE, url=HOSTILE))

    assert line.isprintable()
    assert "\\x1b" in line


def test_a_hostile_exception_becomes_a_block_of_printable_lines():
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        made = record()
        made.exc_info = sys.exc_info()

    lines = TextFormatter().format(made).splitlines()

    assert lines[1] == "    Traceback (most recent call last):"
    # No line of its text looks like a record.
    assert all(line.isprintable() and line.startswith("    ") for line in lines[1:])


def test_json_holds_the_extra_fields():
    made = record(event="progress", todo=3, eta=None, task=b"\x01\xff", counts={"a": 1})

    fields = json.loads(JsonFormatter().format(made))

    assert fields["message"] == "hello you"
    assert (fields["level"], fields["logger"]) == ("info", "crawlcw.crawl.fetcher")
    assert (fields["event"], fields["todo"], fields["eta"]) == ("progress", 3, None)
    assert (fields["task"], fields["counts"]) == ("01ff", {"a": 1})


def test_the_first_five_of_equal_records_are_shown_and_the_rest_is_counted(handler, clock, stderr):
    for _ in range(1000):
        handler.handle(record(event="give up", reason="http-status"))
    assert stderr.getvalue().count("hello") == 5

    clock.time = 61
    handler.handle(record(event="another"))

    lines = stderr.getvalue().splitlines()
    assert len(lines) == 7
    assert lines[5].endswith("INFO 995 more like this: give up, http-status")


def test_what_was_not_told_is_told_at_the_end(handler, stderr):
    for _ in range(7):
        handler.handle(record(event="give up", reason="dns"))

    handler.close()

    assert stderr.getvalue().splitlines()[-1].endswith("2 more like this: give up, dns")


def test_a_log_that_cannot_be_written_raises_nothing(handler, monkeypatch):
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(logging, "raiseExceptions", False)
    monkeypatch.setattr(sys, "stderr", Full())

    handler.handle(record())
    handler.handle(record("%d", "not a number"))


def test_setting_up_twice_leaves_one_handler(monkeypatch, stderr):
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", root.handlers[:])
    monkeypatch.setattr(root, "level", root.level)
    monkeypatch.setattr(logging, "raiseExceptions", True)

    logs.set_up("warning")
    logs.set_up("info", log_format="json")

    (ours,) = [h for h in root.handlers if isinstance(h, TerseHandler)]
    assert isinstance(ours.formatter, JsonFormatter)
    assert root.level == logging.INFO
    logging.captureWarnings(False)


def test_every_line_of_crawlcw_has_an_event_for_programs():
    without = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "logger"
        and node.func.attr in ("debug", "info", "warning", "error", "exception", "log")
        and not any(keyword.arg == "extra" for keyword in node.keywords)
    ]

    assert without == []


def test_fields_of_a_record_are_values_of_json_without_secrets():
    made = record(event="seen", urls=["http://u:hunter2@a.example/?token=hunter2", 3], of=(1, None))

    fields = json.loads(JsonFormatter().format(made))

    assert fields["urls"] == ["http://***@a.example/?token=***", 3]
    assert fields["of"] == [1, None]
    assert fields["pid"] == os.getpid()
