"""Text that is stored or shown: nothing in it acts on a terminal, or looks like another line.

A page's text may hold escape sequences, marks that turn the direction of text,
and characters that some programs take for the end of a line (CWE-150). JSON has
a way to write each of them that means the same; a table has none.
"""

import re

#: Among these are what JSON leaves as it is and a terminal acts on: DEL, C1
#: controls, marks that turn the direction of text.
_UNUSUAL = re.compile(r"[^\x20-\x7e\n]")
_MARKS = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f"
#: Those of them that are escaped wherever the line goes: it may be shown by the next program, and
#: some take U+0085 and U+2028 for the end of a line. Few: looking at each letter takes long.
_NEVER_AS_IT_IS = re.compile(f"[{_MARKS}]")
_CONTROLS = re.compile(f"[\x00-\x08\x0b\x0c\x0e-\x1f{_MARKS}]")


def visible(json: str) -> str:
    r"""Return JSON with what is not printable as `\u....`: for a terminal."""
    return _UNUSUAL.sub(lambda m: m[0] if m[0].isprintable() else _escaped(m[0]), json)


def inert(json: str) -> str:
    r"""Return JSON with what moves cursors or turns text as `\u....`: for a file."""
    return _NEVER_AS_IT_IS.sub(lambda m: _escaped(m[0]), json)


def inert_cell(text: str) -> str:
    r"""Return a cell's text with control characters, but for tabs and line ends, as `\u....`."""
    return _CONTROLS.sub(lambda m: _escaped(m[0]), text)


def visible_cell(text: str) -> str:
    r"""Return a cell's text with whatever is not printable as `\u....`: for a terminal."""
    return visible(text).replace("\n", "\\u000a")


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))
