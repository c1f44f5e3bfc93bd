"""Crawled text on its way to a person: one line, no control characters, a bounded length.

A title can hold an escape sequence that rewrites the terminal or sets the
clipboard, or a line feed that forges a log line (CWE-150, CWE-117). Nothing
that came from a server reaches a terminal or a log but through here.
"""

import re

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
