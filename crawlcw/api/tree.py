"""Making lexbor's tree of a page, with or without a bound on the memory that it takes."""

from selectolax.lexbor import LexborHTMLParser, SelectolaxError

from crawlcw.api import heap_limit, markup
from crawlcw.errors import ParseRefusedError


def parse(source: bytes) -> LexborHTMLParser:
    """Return the tree of a page in UTF-8, whatever it is built to do."""
    return LexborHTMLParser(source)


def parse_bounded(source: bytes | str) -> LexborHTMLParser:
    """Return the tree of a page; raises `ParseRefusedError` where it takes too much memory."""
    if len(source) <= markup.HARMLESS:
        return LexborHTMLParser(source)
    for exactly in (False, True):
        try:
            return heap_limit.within(
                markup.MOST_HEAP, lambda: LexborHTMLParser(source), exactly=exactly
            )
        except (SelectolaxError, MemoryError):  # for want of memory: any bytes can be parsed
            pass
    raise ParseRefusedError(f"its tree takes over {markup.MOST_HEAP >> 20} MiB")
