"""Escape control characters in output, for files and terminals (CWE-150).

Text from pages may hold terminal escape sequences, bidirectional marks, and characters that some
programs treat as line ends. JSON can escape such characters and keeps the meaning of the text, but
CSV has no such escapes.
"""

import re

#: Characters that a terminal may interpret, including some that JSON does not escape, such as DEL.
_UNUSUAL = re.compile(r"[^\x20-\x7e\n]")
_MARKS = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f"
#: Characters to escape in files too, because some programs treat U+0085 and U+2028 as line ends.
#: The list is short, because checking each letter would be slow.
_NEVER_AS_IT_IS = re.compile(f"[{_MARKS}]")
_CONTROLS = re.compile(f"[\x00-\x08\x0b\x0c\x0e-\x1f{_MARKS}]")


def visible(json: str) -> str:
    r"""Return JSON for a terminal, with all unprintable characters as `\u....`."""
    return _UNUSUAL.sub(lambda m: m[0] if m[0].isprintable() else _escaped(m[0]), json)


def escape_json(json: str) -> str:
    r"""Return JSON for a file, with control characters and bidirectional marks as `\u....`."""
    return _NEVER_AS_IT_IS.sub(lambda m: _escaped(m[0]), json)


def escape_cell(text: str) -> str:
    r"""Return a CSV cell's text with control characters, except tabs and line ends, as `\u....`."""
    return _CONTROLS.sub(lambda m: _escaped(m[0]), text)


def visible_cell(text: str) -> str:
    r"""Return a CSV cell's text for a terminal, with all unprintable characters as `\u....`."""
    return visible(text).replace("\n", "\\u000a")


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))
