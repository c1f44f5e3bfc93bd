"""What an exception of the user's own code says, as it is kept in a task's errors."""

import inspect
import traceback
from collections.abc import Callable
from typing import Any


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

    *own* are beginnings of the names of the files whose frames are left out.
    """
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(own):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))


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
