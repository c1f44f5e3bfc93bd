"""Convert the text of a page to the type of a field.

pydantic converts the values of its own models. The table here is for the other item classes, and
accepts the same texts as pydantic: for example, it refuses a number with a currency.
"""

import math
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from functools import partial
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


def conversion_to(value_type: Any) -> Callable[[str], Any] | None:
    """Return the function that makes a value of a type from a text; None for an unknown type.

    The text of a member of an `Enum` is the text of the member's value.
    """
    if isinstance(value_type, type) and issubclass(value_type, Enum):
        return partial(_member, {str(member.value): member for member in value_type})
    return CONVERSIONS.get(value_type)


def _member(members: Mapping[str, Enum], text: str) -> Enum:
    try:
        return members[text]
    except KeyError:
        raise ValueError("no member of the enumeration") from None
