"""Commands in the process of the test, otherwise as `crawlcw.cli.main` runs them.

A process takes most of a second to start, a command that only reads a ledger a few
hundredths. Commands that load a user's code or receive signals need a process:
`tests.cli.test_cli.crawlcw`.
"""

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import BytesIO, TextIOWrapper
from unittest import mock

from crawlcw.cli.main import cli, exit_code


def invoke(*arguments: str, given: str = "") -> "subprocess.CompletedProcess[str]":
    """Run `crawlcw` with *arguments*, and *given* on stdin; return its exit code and output."""
    out, err = _stream(), _stream()
    ends: list[int] = []

    def run() -> None:
        ends.append(exit_code(lambda: cli.main(arguments, "crawlcw", standalone_mode=False)))

    with (
        mock.patch.object(sys, "stdin", _stream(given)),
        redirect_stdout(out),
        redirect_stderr(err),
        _logging_kept(),
    ):
        if _has_loop():
            # A command runs its own event loop.
            running = threading.Thread(target=run)
            running.start()
            running.join()
        else:
            run()  # it may install signal handlers
    (code,) = ends
    return subprocess.CompletedProcess(arguments, code, _text(out), _text(err))


def _has_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _Stream(BytesIO):
    name = "<stream>"  # like the streams of a process


def _stream(given: str = "") -> TextIOWrapper:
    return TextIOWrapper(_Stream(given.encode()), "utf-8", "backslashreplace", write_through=True)


def _text(stream: TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


@contextmanager
def _logging_kept() -> Iterator[None]:
    """Undo a command's log set-up."""
    root = logging.getLogger()
    level, raises = root.level, logging.raiseExceptions
    before = root.handlers[:]
    try:
        yield
    finally:
        logging.captureWarnings(capture=False)
        logging.raiseExceptions = raises
        root.setLevel(level)
        for handler in [each for each in root.handlers if each not in before]:
            root.removeHandler(handler)
            handler.close()
