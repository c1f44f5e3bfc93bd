"""A value as the cell of a table."""

import re
from typing import Any

from crawlcw.model import values

#: What a spreadsheet takes for the beginning of a formula (CWE-1236), also in full width.
_FORMULA = re.compile(r"[=+\-@\t\r\uff1d\uff0b\uff0d\uff20]")
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?\Z")


def text_of(value: Any) -> str:
    """Return a clean value as text: nothing for None, JSON for a list or an object."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    encoded = values.to_json(value)
    # Dates and bytes are texts in JSON.
    return encoded[1:-1] if encoded.startswith('"') else encoded


def defused(text: str) -> str:
    """Return *text* with an apostrophe before what a spreadsheet would run as a formula."""
    if _FORMULA.match(text) and not _NUMBER.match(text):
        return f"'{text}"
    return text
