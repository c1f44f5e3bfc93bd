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
    │   └── ParseRefusedError          the page would hang the HTML parser
    │       └── XmlError               a sitemap or feed is not XML, or is an attack
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

Every error forms its own message. Text from a server is raw here, and sanitized when it
is stored or shown.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any


class Reason(StrEnum):
    """Why a task failed, was ignored, or finished without a page; the ledger stores it."""

    # Failures that are worth another attempt, see `retry`.
    DNS_TEMPORARY = "dns-temporary"
    DNS_NXDOMAIN = "dns-nxdomain"  #: retried only once
    CONNECT = "connect"
    TIMEOUT_CONNECT = "timeout-connect"
    TIMEOUT_READ = "timeout-read"
    TIMEOUT_TOTAL = "timeout-total"
    DISCONNECTED = "disconnected"
    PAYLOAD_TRUNCATED = "payload-truncated"
    HTTP_STATUS = "http-status"  #: the status decides about a retry
    BROWSER_FAILED = "browser-failed"  #: the page could not be rendered
    ROBOTS_UNAVAILABLE = "robots-unavailable"
    PROXY = "proxy"  #: the proxy of its request does not work
    TASK_ERROR = "task-error"  #: the handler of a tracked task raised

    # Failures without a retry.
    PARSE_ERROR = "parse-error"  #: a callback raised
    TLS = "tls"
    PROTOCOL = "protocol"
    HEADER_TOO_LARGE = "header-too-large"
    CONTENT_ENCODING = "content-encoding"
    BODY_TOO_LARGE = "body-too-large"  #: over `max_file`, or over `max_body` if it is not cut
    FILES_UNWRITABLE = "files-unwritable"  #: the disk or store fails; costs a crawl no attempt
    REDIRECT_LOOP = "redirect-loop"
    REDIRECT_LIMIT = "redirect-limit"
    REDIRECT_INVALID = "redirect-invalid"
    XML_UNSAFE = "xml-unsafe"
    PARSE_KILLED = "parse-killed"
    BROWSER_CRASHED = "browser-crashed"  #: the page crashes the browser
    DOCUMENT_TOO_LARGE = "document-too-large"
    STORE_REJECTED = "store-rejected"
    CRASHED_WORKER = "crashed-worker"
    HOST_UNREACHABLE = "host-unreachable"  #: the crawl gave its host up
    HOST_FULL = "max-pages-per-host"  #: its host has reached `max_pages_per_host`
    BANNED = "banned"  #: the server bans every proxy and session for this page
    LOGGED_OUT = "logged-out"  #: the page shows a logged-out user, even after a login
    INTERNAL = "internal"

    # Reasons of unwanted tasks: nothing failed, and `retry-failed` does not reopen these tasks.
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
    WITHDRAWN = "withdrawn"  #: the user withdrew it before a worker claimed it
    REDIRECT = "redirect"  #: the task is finished, and its page belongs to another task


#: Reasons of unwanted tasks, which are not failures.
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
    """A mistake of the user; the message names a remedy."""


class UnknownNameError(UsageError):
    """A ledger that was opened for reading has no data of this spider or use case."""

    def __init__(self, name: str) -> None:
        super().__init__(f"nothing is recorded for {name!r}")


class SettingsError(UsageError):
    """A setting has an unknown name or an invalid value."""


class SpiderError(UsageError):
    """A spider cannot be found, loaded or run."""


class InvalidItemError(SpiderError):
    """An item is invalid, or has a value that no ledger can store; the message names the field."""


class FetchError(CrawlcwError):
    """One attempt at one URL failed.

    *message* may hold text from the server. *retry_after* is the server's Retry-After in
    seconds, already bounded. *hop* is 1 for the first request; each redirect adds 1.
    *response* is the failed `Response`, if there was one.
    """

    hop = 1
    # `Any`, because the module of `Response` imports this one.
    response: Any = None  #: the failed `Response`, if there was one
    proxy: object = None  #: the `Proxy` of the request, if it may be the cause
    deadline: float | None = None  #: the request's deadline in seconds, if that has passed
    port_closed = False  #: whether the connection was refused

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
        """The reason of the failed fetch that caused this error; else the error's own reason."""
        cause = self.__cause__
        return cause.reason if isinstance(cause, FetchError) else self.reason


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < 1e9


class ProxyFailedError(FetchError):
    """A proxy could not be used, so no request reached the server.

    *is_permanent*: the proxy refuses this client permanently. *request_failure* is the failure of
    the request if the proxy worked before: then the server may be the cause.
    """

    def __init__(
        self, message: str, *, is_permanent: bool = False, request_failure: FetchError | None = None
    ) -> None:
        super().__init__(Reason.PROXY, message)
        self.is_permanent = is_permanent
        self.request_failure = request_failure


class ProxiesAwayError(ProxyFailedError):
    """No proxy is usable for *wait* seconds; not a failure of the page or its host.

    *is_dead*: the session's only allowed proxy is dead and must be replaced.
    """

    def __init__(self, message: str, *, wait: float, is_dead: bool = False) -> None:
        super().__init__(message)
        self.wait = wait
        self.is_dead = is_dead


class ParseRefusedError(FetchError):
    """The page would keep the parser busy for minutes, or is unsafe XML."""

    def __init__(self, message: str, *, reason: Reason = Reason.PARSE_KILLED) -> None:
        super().__init__(reason, message)


class XmlError(ParseRefusedError):
    """A sitemap or a feed cannot be read to its end; not a mistake of the spider."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message, reason=reason)


class LedgerError(CrawlcwError):
    """Base of the exceptions of a ledger."""


class LedgerUnavailableError(LedgerError):
    """The ledger did not answer; whether the write was applied is unknown."""


class LedgerGoneError(LedgerError):
    """The ledger's file was removed or replaced during use: waiting does not help."""


class LedgerConfigurationError(LedgerError):
    """The ledger answers, but not with this configuration: waiting does not help."""


class LedgerKindError(LedgerConfigurationError):
    """The name belongs to a spider and not to a use case, or vice versa."""


class LedgerFormatError(LedgerConfigurationError):
    """Another version of crawlcw wrote the data of this name, in a different format."""


class LeaseLostError(LedgerError):
    """The lease has ended, or another worker has claimed the task; nothing was written."""


class Defer(CrawlcwError):  # not an error of the page
    """Raised if an attempt must not count, neither for the page nor for its host.

    The page is released. The page is due again at *due*, an aware datetime or a duration; None: as
    soon as its host allows. A user's layer may raise `Defer`, with the *cause* in words; the page
    then waits at least a second. A page that is deferred at every attempt prevents the end of its
    crawl.
    """

    def __init__(self, cause: str, *, due: datetime | timedelta | None = None) -> None:
        super().__init__(cause)
        self.cause = cause
        self.due = due


class StopCrawl(CrawlcwError):  # an order, not an error
    """Raised by a spider's callback, errback, `start` or `opened`: end the crawl gracefully.

    The crawl records the items and requests that the page has already yielded. Running requests
    finish, and all other tasks are released. The report contains the error's text.
    """


class DropItem(CrawlcwError):  # an order, not an error
    """Raised by a spider's `item`: the item is not recorded, but counted by the error's text."""


class UnwantedError(CrawlcwError):
    """Raised by a handler: the task is unwanted, which is not a failure.

    Like `Execution.ignore`, for handlers without an execution.
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
    """The task is not due yet, after a failure or because of a delay."""

    def __init__(self, key: str, *, due: datetime) -> None:
        super().__init__(key, f"is not due before {due:%Y-%m-%d %H:%M:%S.%f} UTC")
        self.due = due


class TaskFinishedError(TaskMissedError):
    """The task is done."""

    def __init__(self, key: str) -> None:
        super().__init__(key, "is already finished")


class TaskIgnoredError(TaskMissedError):
    """The task is ignored: it failed for good, or it is unwanted."""

    def __init__(self, key: str, *, reason: Reason | None) -> None:
        command = "retry" if reason in FAILURE_REASONS else "reset"
        super().__init__(key, f"is ignored ({reason}): use `{command}` to run it again")
        self.reason = reason


@contextmanager
def single_errors() -> Iterator[None]:
    """Raise the first error of a task group without the group; it caused the other errors."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        # Keep the error's own cause: the group must not replace it.
        raise error from error.__cause__
