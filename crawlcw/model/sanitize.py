"""Text on its way to a person: crawled text, and that of exceptions in the user's code.

Crawled text gets one line, no control characters and a bounded length.
A title can hold an escape sequence that rewrites the terminal or sets the
clipboard, or a line feed that forges a log line (CWE-150, CWE-117). Nothing
that came from a server reaches a terminal or a log but through here.
"""

import inspect
import re
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from crawlcw.errors import SpiderError

_PACKAGE = f"{Path(__file__).parents[1]}/"
_LIMIT = 200
#: Between the slashes and the host of a URL. Greedy: a password may have an @ itself.
_USERINFO = re.compile(r"([/\\]{2})[^/\\?#\s]*@")
#: Parameters of a URL that are keys to something, by how their names end.
_SECRET = re.compile(
    r"([?&;](?:[\w.%-]*[-_.])?(?:api|access|auth|client|id|private|refresh|session)?"
    r"(?:token|key|sig|signature|pass|passwd|password|pwd|auth|secret)=)[^&;#\s'\"]+",
    re.IGNORECASE,
)


def redacted(text: str) -> str:
    """Return *text* with the passwords and keys in its URLs written as `***`.

    What stands before the host (`//user:password@`) goes, and the value of parameters
    such as `token`, `api_key`, `sig`, `password` and `auth`.
    """
    if "@" in text:
        text = _USERINFO.sub(r"\1***@", text)
    return _SECRET.sub(r"\1***", text) if "=" in text else text


def printable(text: object, *, limit: int = _LIMIT) -> str:
    r"""Return *text* on one line, with unprintable characters written as `\x1b`, cut at *limit*."""
    whole = str(text)
    line = whole[: limit + 1]
    if not line.isprintable():
        line = "".join(c if c.isprintable() else _escaped(c) for c in line)
    if len(line) > limit or len(whole) > limit:
        return line[: limit - 1] + "…"
    return line


def printable_block(text: str, *, limit: int = 20_000) -> str:
    """Return *text* with its lines kept and each of them made printable: for tracebacks.

    An exception's text has line feeds as well, so a line may look like anything: indent the block
    wherever other lines stand beside it.
    """
    lines = text[:limit].removesuffix("\n").split("\n")
    return "\n".join(printable(line, limit=1000) for line in lines)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")


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
    called = inspect.unwrap(function)  # or an object that is called
    code = getattr(called, "__code__", getattr(type(called).__call__, "__code__", None))
    place = last = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if file.startswith(own):
            continue
        last = f"{file}:{line}"
        if code is not None and file == code.co_filename:
            place = last
    return place or last
