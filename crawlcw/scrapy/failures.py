"""Translate crawlcw's failures of a request into the exceptions that a Scrapy project expects."""

from typing import Any

import scrapy.exceptions
from scrapy.exceptions import IgnoreRequest
from twisted.internet import error as twisted_errors
from twisted.python.failure import Failure
from twisted.web.client import ResponseFailed

from crawlcw.errors import FetchError, Reason


def _exception(name: str, twisted_error: type[Exception], newer: str) -> type[Exception]:
    """Return an exception of Twisted's that is also an exception of Scrapy 2.15 and later."""
    scrapy_error = getattr(scrapy.exceptions, newer, None)
    bases = (twisted_error,) if scrapy_error is None else (scrapy_error, twisted_error)
    return type(name if scrapy_error is None else newer, bases, {"__module__": bases[0].__module__})


_NAME_UNKNOWN = _exception(
    "DNSLookupError", twisted_errors.DNSLookupError, "CannotResolveHostError"
)
_TIMEOUT = _exception("TimeoutError", twisted_errors.TimeoutError, "DownloadTimeoutError")
_REFUSED = _exception(
    "ConnectionRefusedError",
    twisted_errors.ConnectionRefusedError,
    "DownloadConnectionRefusedError",
)
_LOST = _exception("ConnectionLost", twisted_errors.ConnectionLost, "DownloadFailedError")
_CUT = _exception("ResponseFailed", ResponseFailed, "ResponseDataLossError")

_EXCEPTIONS = {
    Reason.DNS_TEMPORARY: _NAME_UNKNOWN,
    Reason.DNS_NXDOMAIN: _NAME_UNKNOWN,
    Reason.TIMEOUT_TOTAL: _TIMEOUT,
    Reason.TIMEOUT_READ: _TIMEOUT,
    Reason.TIMEOUT_CONNECT: _TIMEOUT,
    Reason.CONNECT: _REFUSED,
    # The crawl gives up a host most often because its port refuses connections.
    Reason.HOST_UNREACHABLE: _REFUSED,
    Reason.PAYLOAD_TRUNCATED: _CUT,
    Reason.REFUSED_ROBOTS: IgnoreRequest,
}


class ComponentError(FetchError):
    """A downloader middleware or a download handler raised *error* for a request.

    `IgnoreRequest` means that the project does not want the request.
    """

    def __init__(self, error: Exception) -> None:
        unwanted = isinstance(error, IgnoreRequest)
        super().__init__(
            Reason.UNWANTED if unwanted else Reason.PARSE_ERROR, f"{type(error).__name__}: {error}"
        )
        self.failure = Failure(error)


def exception_of(error: FetchError) -> Exception:
    """Return the exception for a failed request; its attribute `fetch_error` is *error*.

    The classes are exceptions of Scrapy and of Twisted at once, because errbacks check both.
    """
    exception: Any = _EXCEPTIONS.get(error.underlying, _LOST)(error.message)
    exception.fetch_error = error
    return exception  # type: ignore[no-any-return]


def failure_of(error: FetchError) -> Failure:
    """Return the failure that the errback of a request gets."""
    return error.failure if isinstance(error, ComponentError) else Failure(exception_of(error))
