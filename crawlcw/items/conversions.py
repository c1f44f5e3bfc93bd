"""Convert the text of a page to the type of a field.

pydantic converts the values of its own models. The table is for the other item classes, and accepts
what pydantic accepts: for example, no text means a number with a currency.
"""

import math
import re
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

_WHOLE = re.compile(r"([+-]?[0-9_]+)\.0+")
_BOOLS = {
    **dict.fromkeys(("1", "on", "t", "true", "y", "yes"), True),
    **dict.fromkeys(("0", "off", "f", "false", "n", "no"), False),
}


def _int(text: str) -> int:
    match = _WHOLE.fullmatch(text)
    return int(match[1] if match else text)


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("not a finite number")  # a ledger stores None for it
    return number


def _decimal(text: str) -> Decimal:
    number = Decimal(text)
    if not number.is_finite():
        raise ValueError("not a finite number")
    return number


def _bool(text: str) -> bool:
    try:
        return _BOOLS[text.lower()]
    except KeyError:
        raise ValueError("neither true nor false") from None


def _date(text: str) -> date:
    moment = datetime.fromisoformat(text)
    if moment.time() != time.min:
        raise ValueError("a date with a time")
    return moment.date()


#: A function for each type of a field; it raises `ValueError` or `ArithmeticError`.
CONVERSIONS: dict[type, Callable[[str], Any]] = {
    str: str,
    int: _int,
    float: _float,
    bool: _bool,
    Decimal: _decimal,
    date: _date,
    datetime: datetime.fromisoformat,
}
