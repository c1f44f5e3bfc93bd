"""Crawled text on its way to a person: one line, no control characters, a bounded length.

A title can hold an escape sequence that rewrites the terminal or sets the
clipboard, or a line feed that forges a log line (CWE-150, CWE-117). Nothing
that came from a server reaches a terminal or a log but through here.
"""

_LIMIT = 200


def printable(text: object, *, limit: int = _LIMIT) -> str:
    r"""Return *text* on one line, with what is not printable written as `\x1b`, cut at *limit*."""
    whole = str(text)
    line = whole[: limit + 1]
    if not line.isprintable():
        line = "".join(c if c.isprintable() else _escaped(c) for c in line)
    if len(line) > limit or len(whole) > limit:
        return line[: limit - 1] + "…"
    return line


def printable_block(text: str, *, limit: int = 20_000) -> str:
    """Return *text* with its lines kept and each of them made printable: for our own tracebacks."""
    return "\n".join(printable(line, limit=1000) for line in text[:limit].splitlines())


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")
