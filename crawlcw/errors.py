"""Exceptions of crawlcw, and the reasons of failed and ignored tasks.

    CrawlcwError
    ├── UsageError                     the user's mistake; exit 2
    │   ├── UnknownNameError           nothing is recorded for this spider or use case
    │   ├── SettingsError
    │   └── SpiderError
    │       └── InvalidItemError       an item has a value that no ledger can store
    ├── FetchError                     an attempt failed; carries a `Reason`
    │   ├── ProxyFailedError           the proxy could not be used; no request was sent
    │   │   └── ProxiesAwayError       no proxy is usable now; carries the wait
    │   ├── ParseRefusedError          the page would hang the HTML parser
    │   │   └── XmlError               a sitemap or feed is not XML, or is an attack
    │   └── FilesUnwritableError       a disk is full, or a folder accepts no files
    ├── LedgerError
    │   ├── LedgerUnavailableError     no answer; try again, then exit 69
    │   ├── LedgerGoneError            its file was removed or replaced; exit 69
    │   ├── LedgerConfigurationError   will never answer as configured; exit 78
    │   │   └── LedgerKindError        the name is a spider's, not a use case's, or vice versa
    │   └── LeaseLostError             another worker has the lease now
    ├── StopCrawl                      raised by a spider: end the crawl gracefully
    ├── Defer                          an attempt does not count: try the page later
    ├── DropItem                       raised by a spider's item(): the item is not recorded
    ├── UnwantedError                  raised by a handler: its task is unwanted
    └── TaskMissedError                a tracked task cannot be started now; carries its key
        ├── TaskNotFoundError
        ├── TaskLockedError            a worker holds it; carries holder and end
        ├── TaskNotDueError            it is not due yet; carries the time
        ├── TaskFinishedError
        └── TaskIgnoredError           it failed for good or is unwanted; carries the `Reason`

Every exception class forms its own message. A message may contain raw text from a server. crawlcw
sanitizes this text when it stores or shows the message.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any


class Reason(StrEnum):
    """Reason why a task failed, was ignored, or ended as a redirect to another task."""

    # Failures after which crawlcw tries the page again, see `retry`.
    DNS_TEMPORARY = "dns-temporary"
    DNS_NXDOMAIN = "dns-nxdomain"  #: retried only once
    CONNECT = "connect"
    TIMEOUT_CONNECT = "timeout-connect"
    TIMEOUT_READ = "timeout-read"
    TIMEOUT_TOTAL = "timeout-total"
    DISCONNECTED = "disconnected"
    PAYLOAD_TRUNCATED = "payload-truncated"
    HTTP_STATUS = "http-status"  #: the page is retried if its status is in `retry_statuses`
    BROWSER_FAILED = "browser-failed"  #: the browser could not render the page
    ROBOTS_UNAVAILABLE = "robots-unavailable"
    PROXY = "proxy"  #: the proxy of the request does not work
    TASK_ERROR = "task-error"  #: the handler of a tracked task raised an error

    # Failures without a retry.
    PARSE_ERROR = "parse-error"  #: a callback raised
    TLS = "tls"
    PROTOCOL = "protocol"
    HEADER_TOO_LARGE = "header-too-large"
    CONTENT_ENCODING = "content-encoding"
    BODY_TOO_LARGE = "body-too-large"  #: a file exceeds `max_file`, or a body `max_body`
    FILES_UNWRITABLE = "files-unwritable"  #: disk or file store failed; the attempt does not count
    REDIRECT_LOOP = "redirect-loop"
    REDIRECT_LIMIT = "redirect-limit"
    REDIRECT_INVALID = "redirect-invalid"
    XML_UNSAFE = "xml-unsafe"
    PARSE_KILLED = "parse-killed"
    BROWSER_CRASHED = "browser-crashed"  #: the page crashes the browser
    DOCUMENT_TOO_LARGE = "document-too-large"
    STORE_REJECTED = "store-rejected"
    CRASHED_WORKER = "crashed-worker"
    HOST_UNREACHABLE = "host-unreachable"  #: the crawl gave up the page's host
    HOST_FULL = "max-pages-per-host"  #: the page's host has reached `max_pages_per_host`
    BANNED = "banned"  #: the server bans every proxy and session for this page
    LOGGED_OUT = "logged-out"  #: the page shows a logged-out user even after a login
    INTERNAL = "internal"

    # Reasons of unwanted tasks. Unwanted tasks did not fail; `retry-failed` does not reopen them.
    REFUSED_SCHEME = "refused-scheme"
    REFUSED_SCOPE = "refused-scope"
    REFUSED_ROBOTS = "refused-robots"
    REFUSED_ADDRESS = "refused-address"
    REFUSED_PORT = "refused-port"
    REFUSED_CREDENTIALS = "refused-credentials"
    REFUSED_DEPTH = "refused-depth"
    URL_INVALID = "url-invalid"
    URL_TOO_LONG = "url-too-long"
    TRAP_PATH_SEGMENTS = "trap-path-segments"
    TRAP_REPEATED_SEGMENT = "trap-repeated-segment"
    TRAP_QUERY_PARAMETERS = "trap-query-parameters"
    CONTENT_TYPE = "content-type"
    UNWANTED = "unwanted"  #: the handler does not want its tracked task
    WITHDRAWN = "withdrawn"  #: the user withdrew the task before a worker claimed it
    REDIRECT = "redirect"  #: the task is finished: its URL redirects to the page of another task


#: The reasons that do not count as failures, because the task is unwanted.
POLICY_REASONS = frozenset(
    {
        *(reason for reason in Reason if reason.startswith(("refused-", "url-", "trap-"))),
        *(Reason.CONTENT_TYPE, Reason.UNWANTED, Reason.WITHDRAWN, Reason.REDIRECT),
    }
)
FAILURE_REASONS = frozenset(Reason) - POLICY_REASONS


class CrawlcwError(Exception):
    """Base of all exceptions of crawlcw."""


class UsageError(CrawlcwError):
    """Raised for a mistake of the user; the error's message names a remedy."""


class UnknownNameError(UsageError):
    """A ledger that was opened for reading has no data of this spider or use case."""

    def __init__(self, name: str) -> None:
        super().__init__(f"nothing is recorded for {name!r}")


class SettingsError(UsageError):
    """A setting has an unknown name or an invalid value."""


class SpiderError(UsageError):
    """A spider cannot be found, loaded or run."""


class InvalidItemError(SpiderError):
    """An item is invalid, or has a value that no ledger can store; the message names the field.

    *detail* and *page* are parts of the message, but not of `reason`, by which items are counted.
    """

    def __init__(self, reason: str, *, detail: str = "", page: str = "") -> None:
        detail_suffix = f": {detail}" if detail else ""
        super().__init__(reason + detail_suffix + (f" (page {page})" if page else ""))
        self.reason = reason


class FetchError(CrawlcwError):
    """One attempt at one URL failed.

    *message* may contain text from the server. *retry_after* is the server's Retry-After in
    seconds, limited by crawlcw. *hop* is 1 for the first request of a page, 2 after one redirect,
    and so on. *response* is the `Response` with an error status, or None if no response came.
    """

    hop = 1
    # `Any`, because the module of `Response` imports this one.
    response: Any = None  #: the `Response` with an error status
    proxy: object = None  #: the `Proxy` of the request, if the proxy may have failed
    deadline: float | None = None  #: length of the exceeded timeout in seconds
    port_closed = False  #: whether the server's port refused the connection

    def __init__(
        self,
        reason: Reason,
        message: str = "",
        *,
        status: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        # User code may raise this error too, and the ledger must be able to store its message.
        if not isinstance(reason, Reason):
            raise SpiderError(f"FetchError({reason!r}) takes a member of crawlcw.Reason")
        if not isinstance(status, int | None):
            raise SpiderError(f"FetchError(status={status!r}) takes a number such as 503")
        if retry_after is not None and not _is_seconds(retry_after):
            raise SpiderError(f"FetchError(retry_after={retry_after!r}) takes seconds")
        super().__init__(f"{reason}: {message}" if message else str(reason))
        self.reason = reason
        self.message = str(message)
        self.status = status
        self.retry_after = retry_after

    @property
    def underlying(self) -> Reason:
        """The reason of the fetch error that caused this error, or else this error's own reason."""
        cause = self.__cause__
        return cause.reason if isinstance(cause, FetchError) else self.reason


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < 1e9


class ProxyFailedError(FetchError):
    """A proxy could not be used, so no request reached the server.

    *is_permanent* is true if the proxy refuses this client permanently. If the proxy has worked
    before, the server may be the cause, so *request_failure* is raised instead of this error.
    """

    def __init__(
        self, message: str, *, is_permanent: bool = False, request_failure: FetchError | None = None
    ) -> None:
        super().__init__(Reason.PROXY, message)
        self.is_permanent = is_permanent
        self.request_failure = request_failure


class ProxiesAwayError(ProxyFailedError):
    """No proxy is usable for *wait* seconds; the page and its host have not failed.

    *is_dead* is true if the proxy of the request or of its session is dead and must be replaced.
    """

    def __init__(self, message: str, *, wait: float, is_dead: bool = False) -> None:
        super().__init__(message)
        self.wait = wait
        self.is_dead = is_dead


class ParseRefusedError(FetchError):
    """The page would keep the HTML parser busy for minutes, or is unsafe XML."""

    def __init__(self, message: str, *, reason: Reason = Reason.PARSE_KILLED) -> None:
        super().__init__(reason, message)


class XmlError(ParseRefusedError):
    """A sitemap or a feed cannot be parsed completely; the spider is not the cause."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message, reason=reason)


class FilesUnwritableError(FetchError):
    """A disk or a file store accepts no files; the crawl ends, and no attempt counts.

    A callback that writes files raises it, so that its page is parsed again by a later crawl.
    """

    def __init__(self, message: str) -> None:
        super().__init__(Reason.FILES_UNWRITABLE, message)


class LedgerError(CrawlcwError):
    """Base of the exceptions of a ledger."""


class LedgerUnavailableError(LedgerError):
    """The ledger did not answer, so it is unknown whether the ledger has applied the last write."""


class LedgerGoneError(LedgerError):
    """The ledger's file was removed or replaced during the crawl, so waiting does not help."""


class LedgerConfigurationError(LedgerError):
    """The ledger refuses this configuration, so waiting for the ledger does not help."""


class LedgerKindError(LedgerConfigurationError):
    """The name belongs to a spider and not to a use case, or vice versa."""


class LedgerFormatError(LedgerConfigurationError):
    """A crawlcw with a different ledger format wrote the data of this spider or use case."""


class LeaseLostError(LedgerError):
    """The lease has ended or another worker has claimed the task, so the ledger wrote nothing."""


class Defer(CrawlcwError):
    """Raised to try a page later; the attempt counts neither for the page nor for its host.

    The crawl releases the page. *due* says when the page is due again, as an aware datetime or as a
    duration. If *due* is None, the page is due as soon as its host allows. A user's layer may raise
    `Defer`; *cause* then gives the reason in words. A page that a layer defers waits at least a
    second. If a page is always deferred, its crawl never ends.
    """

    def __init__(self, cause: str, *, due: datetime | timedelta | None = None) -> None:
        super().__init__(cause)
        self.cause = cause
        self.due = due


class StopCrawl(CrawlcwError):
    """Raised by a spider's callback, errback, `start` or `opened` to end the crawl gracefully.

    The crawl records the items and requests that the page has already yielded. The crawl finishes
    running requests and releases all other tasks. The report contains the exception's text.
    """


class DropItem(CrawlcwError):
    """Raised by a spider's `item` to drop the item; the report has a count for each error text."""


class UnwantedError(CrawlcwError):
    """Raised by a tracked task's handler to ignore the task as unwanted, not as failed.

    Handlers that take no `Execution` raise `UnwantedError` instead of calling `Execution.ignore`.
    """


class TaskMissedError(CrawlcwError):
    """A tracked task cannot be started now."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"task {key!r} {message}")
        self.key = key


class TaskNotFoundError(TaskMissedError):
    """There is no task with this key."""

    def __init__(self, key: str) -> None:
        super().__init__(key, "does not exist: add it first")


class TaskLockedError(TaskMissedError):
    """A worker has a lease on the task."""

    def __init__(self, key: str, *, holder: str, expires: datetime) -> None:
        super().__init__(key, f"is leased to {holder} until {expires:%Y-%m-%d %H:%M:%S.%f} UTC")
        self.holder = holder
        self.expires = expires


class TaskNotDueError(TaskMissedError):
    """The task is not due yet, because it has failed recently or was added with a delay."""

    def __init__(self, key: str, *, due: datetime) -> None:
        super().__init__(key, f"is not due before {due:%Y-%m-%d %H:%M:%S.%f} UTC")
        self.due = due


class TaskFinishedError(TaskMissedError):
    """The task is done."""

    def __init__(self, key: str) -> None:
        super().__init__(key, "is already finished")


class TaskIgnoredError(TaskMissedError):
    """The task is ignored, because it failed for good or is unwanted."""

    def __init__(self, key: str, *, reason: Reason | None) -> None:
        command = "retry" if reason in FAILURE_REASONS else "reset"
        super().__init__(key, f"is ignored ({reason}): use `{command}` to run it again")
        self.reason = reason


@contextmanager
def single_errors() -> Iterator[None]:
    """Raise only the first error of an exception group, since it caused the other errors."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        # Keep the error's own cause; otherwise the exception group would become the cause.
        raise error from error.__cause__
