"""Read whole numbers in options, and write counts such as "1 page" in messages."""

from typing import Any

import click

from crawlcw.ledger.protocol import Count


def counted(number: int | Count, thing: str) -> str:
    """Return *number* and its noun, in singular or plural, such as "at least 2,000 pages"."""
    count = number if isinstance(number, Count) else Count(number=number)
    return f"{count} {thing}{'' if count.number == 1 else 's'}"


class WholeNumber(click.IntRange):
    """A click type for a whole number in a range, whose error message states the range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; raises `click.BadParameter`."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            limits = f"of at least {self.min}" if self.max is None else f"{self.min} to {self.max}"
            self.fail(f"write a whole number {limits}, not {value!r}", param, ctx)
