"""Numbers with a noun, for messages."""

from crawlcw.ledger.protocol import Count


def counted(number: int | Count, thing: str) -> str:
    """Return *number* with the noun in singular or plural: 1 page, at least 2,000 pages."""
    count = number if isinstance(number, Count) else Count(number=number)
    return f"{count} {thing}{'' if count.number == 1 else 's'}"
