"""Numbers of things, as sentences have them."""


def counted(number: int, thing: str) -> str:
    """Return how many there are of a *thing*, as text: 1 page, 2,000 pages."""
    return f"1 {thing}" if number == 1 else f"{number:,} {thing}s"
