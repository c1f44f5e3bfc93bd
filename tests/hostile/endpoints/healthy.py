"""The pages that mean well, for the crawl to tell whether the others cost them anything."""

from tests.hostile.pages import KEEP, Exchange, page, response


def title_of(number: int) -> str:
    """Return the title of one of the plain pages."""
    return f"healthy page {number}"


@page("/healthy")
async def _healthy(exchange: Exchange) -> object:
    """Says which page it is, as soon as it is asked."""
    title = title_of(int(exchange.query))
    await exchange.send(response(f"<title>{title}</title><p>{title}".encode()))
    return KEEP
