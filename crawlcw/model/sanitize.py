"""Make crawled text, and the text of exceptions in the user's code, safe to show to people.

Crawled text becomes one line without control characters, with a limited length. An unchanged escape
sequence in a page's title could rewrite the terminal or set the clipboard (CWE-150). An unchanged
line feed could forge a log line (CWE-117). All text from a server goes through this module before
the text reaches a terminal or a log.
"""

import inspect
import re
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from crawlcw.errors import SpiderError

_PACKAGE_PREFIX = f"{Path(__file__).parents[1]}/"
_MAX_CHARACTERS = 200
#: The user and password in a URL; the pattern is greedy, because a password may contain an @.
_USERINFO = re.compile(r"([/\\]{2})[^/\\?#\s]*@")
#: URL parameters whose names end with a word that stands for a secret, such as `token`.
_SECRET_PARAMETER = re.compile(
    r"([?&;](?:[\w.%-]*[-_.])?(?:api|access|auth|client|id|private|refresh|session)?"
    r"(?:token|key|sig|signature|pass|passwd|password|pwd|auth|secret)=)[^&;#\s'\"]+",
    re.IGNORECASE,
)


def redacted(text: str) -> str:
    """Return *text* with `***` in place of the passwords and keys in its URLs.

    The replaced parts are the text before the host (`//user:password@`) and the values of
    parameters such as `token`, `api_key`, `sig`, `password` and `auth`.
    """
    if "@" in text:
        text = _USERINFO.sub(r"\1***@", text)
    return _SECRET_PARAMETER.sub(r"\1***", text) if "=" in text else text


def printable(text: object, *, limit: int = _MAX_CHARACTERS) -> str:
    r"""Return *text* on one line, with unprintable characters written as `\x1b`, cut at *limit*."""
    full_text = str(text)
    line = full_text[: limit + 1]
    if not line.isprintable():
        line = "".join(c if c.isprintable() else _escaped(c) for c in line)
    if len(line) > limit or len(full_text) > limit:
        return line[: limit - 1] + "…"
    return line


def printable_block(text: str, *, limit: int = 20_000) -> str:
    """Return *text*, such as a traceback, with each line made printable.

    An exception's text may contain a line that looks like a log line. So a caller that shows the
    result between log lines must indent the result.
    """
    lines = text[:limit].removesuffix("\n").split("\n")
    return "\n".join(printable(line, limit=1000) for line in lines)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")


def describe_error(error: BaseException) -> str:
    """Return the type and the text of *error*."""
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:  # `__str__` may run any code
        return type(error).__name__


def text_of(error: BaseException) -> str:
    """Return the text of *error*, or "" if its `__str__` raises."""
    try:
        return str(error)
    except BaseException:  # `__str__` may run any code
        return ""


def format_traceback(error: BaseException, *, own_prefixes: tuple[str, ...]) -> str:
    """Return the traceback of *error* without its outermost frames in crawlcw's own files.

    The names of crawlcw's files begin with one of *own_prefixes*. The text of a `SpiderError`
    explains the user's mistake, so its traceback has only frames of the user's code. The result is
    empty if no such frame exists.
    """
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(own_prefixes):
        frames = frames.tb_next
    if isinstance(error, SpiderError):
        user_frames = [
            frame
            for frame in traceback.extract_tb(frames)
            if not frame.filename.startswith(_PACKAGE_PREFIX)
        ]
        return format_frames(user_frames, error) if user_frames else ""
    return "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))


def format_frames(frames: Sequence[traceback.FrameSummary], error: BaseException) -> str:
    """Format *frames* and *error* as a traceback; the last frame of *frames* is the innermost."""
    lines = traceback.format_list(frames) + traceback.format_exception_only(error)
    return "".join(["Traceback (most recent call last):\n", *lines])


def where(
    error: BaseException, *, own_prefixes: tuple[str, ...], function: Callable[..., Any]
) -> str:
    """Return the file and line in the user's code at which *error* was raised, as `file:line`.

    The innermost frame in the file of *function* has precedence over other frames. Frames in
    crawlcw's own files, whose names begin with one of *own_prefixes*, never count.
    """
    unwrapped = inspect.unwrap(function)
    code = getattr(unwrapped, "__code__", getattr(type(unwrapped).__call__, "__code__", None))
    user_code_line = innermost = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if file.startswith(own_prefixes):
            continue
        innermost = f"{file}:{line}"
        if code is not None and file == code.co_filename:
            user_code_line = innermost
    return user_code_line or innermost
