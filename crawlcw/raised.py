"""What an exception of the user's own code says, as it is kept in a task's errors."""

import traceback


def said(error: BaseException) -> str:
    """Return the type and the text of *error*."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # any code may be behind `__str__`
        return type(error).__name__


def shown(error: BaseException, *, own: tuple[str, ...]) -> str:
    """Return the traceback of *error* without our *own* first frames, which the user cannot change.

    *own* are beginnings of the names of the files whose frames are left out.
    """
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(own):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))
