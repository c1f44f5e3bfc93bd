"""Healthy pages, which show whether the other pages delay them."""

from tests.hostile.pages import KEEP, Exchange, page, response


def title_of(number: int) -> str:
    """Return the title of one of the plain pages."""
    return f"healthy page {number}"


@page("/healthy")
async def _healthy(exchange: Exchange) -> object:
    """Names itself, without a delay."""
    title = title_of(int(exchange.query))
    await exchange.send(response(f"<title>{title}</title><p>{title}".encode()))
    return KEEP
