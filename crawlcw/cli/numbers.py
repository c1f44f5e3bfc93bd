"""Numbers with a noun, for messages."""


def counted(number: int, thing: str) -> str:
    """Return *number* with the noun in singular or plural: 1 page, 2,000 pages."""
    return f"1 {thing}" if number == 1 else f"{number:,} {thing}s"
