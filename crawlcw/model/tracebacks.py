"""Text of exceptions in the user's code, for a task's errors."""

import inspect
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from crawlcw.errors import SpiderError

_PACKAGE = f"{Path(__file__).parents[1]}/"


def describe_error(error: BaseException) -> str:
    """Return the type and the text of *error*."""
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:  # any code may be behind `__str__`
        return type(error).__name__


def text_of(error: BaseException) -> str:
    """Return the text of *error*, empty where it has none that can be made."""
    try:
        return str(error)
    except BaseException:  # any code may be behind `__str__`
        return ""


def format_traceback(error: BaseException, *, own: tuple[str, ...]) -> str:
    """Return the traceback of *error* without our *own* first frames, which the user cannot change.

    *own* are prefixes of the names of files whose frames are left out. A `SpiderError`,
    whose text names the mistake, has the user's frames only: none if there are none.
    """
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(own):
        frames = frames.tb_next
    if isinstance(error, SpiderError):
        theirs = [
            each for each in traceback.extract_tb(frames) if not each.filename.startswith(_PACKAGE)
        ]
        return format_frames(theirs, error) if theirs else ""
    return "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))


def format_frames(frames: Sequence[traceback.FrameSummary], error: BaseException) -> str:
    """Return the traceback of *error* as if it had come by these frames, the innermost last."""
    lines = traceback.format_list(frames) + traceback.format_exception_only(error)
    return "".join(["Traceback (most recent call last):\n", *lines])


def where(error: BaseException, *, own: tuple[str, ...], function: Callable[..., Any]) -> str:
    """Return the file and line of *function*'s file at which *error* came out of its code.

    Where it has no frame there, that of the innermost one that is not our *own*.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    place = last = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if file.startswith(own):
            continue
        last = f"{file}:{line}"
        if code is not None and file == code.co_filename:
            place = last
    return place or last
