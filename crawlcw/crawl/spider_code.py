"""Where the spider's own hooks are called: what they raise is one clear error, or their wish."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from crawlcw.api.user_code import Cancellation
from crawlcw.errors import LedgerGoneError, LedgerUnavailableError, SpiderError, StopCrawl
from crawlcw.model.sanitize import printable
from crawlcw.model.tracebacks import describe_error, text_of

logger = logging.getLogger(__name__)


@contextmanager
def spider_code(what: str, *, stop: Callable[[str], None]) -> Iterator[None]:
    """Turn whatever the spider's own code raises into one clear error, its cause attached.

    *what* names the code for people. A `StopCrawl` is no error: *stop* is told why.
    """
    cancellation = Cancellation()
    try:
        yield
    except StopCrawl as told:
        stop(printable(text_of(told)))
    except (SpiderError, LedgerGoneError, LedgerUnavailableError):
        raise
    except BaseException as error:
        if cancellation.passes(error):
            raise
        logger.debug("the spider's %s raised", what, exc_info=True, extra={"event": "spider_error"})
        raise SpiderError(
            f"the spider's {what} raised {printable(describe_error(error))}"
        ) from error
