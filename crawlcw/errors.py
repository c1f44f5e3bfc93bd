"""Everything that can go wrong, by name.

    CrawlcwError
    ├── UsageError                     the user's mistake; exit 2
    │   ├── SettingsError
    │   └── SpiderError
    │       └── InvalidItemError       an item has a value that no ledger keeps
    ├── FetchError                     an attempt failed; carries a `Reason`
    │   ├── ProxyFailedError           the proxy could not be used; nothing was asked
    │   │   └── ProxiesAwayError       none can be used now; carries how long to wait
    │   └── ParseRefusedError          the page would hang the HTML parser
    │       └── XmlError               a sitemap or feed is no XML, or is built to do harm
    ├── LedgerError
    │   ├── LedgerUnavailableError     no answer; try again, then exit 69
    │   ├── LedgerGoneError            its file was removed or replaced; exit 69
    │   ├── LedgerConfigurationError   will never answer as configured; exit 78
    │   │   └── LedgerKindError        the name is a spider's and no use case's, or vice versa
    │   └── LeaseLostError             somebody else holds the task now
    ├── StopCrawl                      raised by a spider: the crawl is to end softly
    ├── Defer                          an attempt does not count: the page is to be tried later
    ├── DropItem                       raised by a spider's item(): the item is not recorded
    ├── UnwantedError                  raised by a handler: its task is not to be done
    └── TaskMissedError                a tracked task cannot be started now; carries its key
        ├── TaskNotFoundError
        ├── TaskLockedError            somebody holds it; carries the holder, and until when
        ├── TaskNotDueError            it waits for its time; carries it
        ├── TaskFinishedError
        └── TaskIgnoredError           it was given up or is unwanted; carries the `Reason`

Every error makes its own sentence. What came from a server is kept as it is
here, and is cleaned where it is stored or shown.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol


class Reason(StrEnum):
    """Why a task failed, is ignored, or is finished without a page: stored in the ledger."""

    # Worth another attempt, see `retry`.
    DNS_TEMPORARY = "dns-temporary"
    CONNECT = "connect"
    TIMEOUT_CONNECT = "timeout-connect"
    TIMEOUT_READ = "timeout-read"
    TIMEOUT_TOTAL = "timeout-total"
    DISCONNECTED = "disconnected"
    PAYLOAD_TRUNCATED = "payload-truncated"
    HTTP_STATUS = "http-status"  #: retried or not by its number
    BROWSER_FAILED = "browser-failed"  #: the page could not be rendered
    ROBOTS_UNAVAILABLE = "robots-unavailable"
    TASK_ERROR = "task-error"  #: the work on a tracked task raised

    # A failure that another attempt would only repeat.
    PARSE_ERROR = "parse-error"  #: a callback raised
    DNS_NXDOMAIN = "dns-nxdomain"
    TLS = "tls"
    PROTOCOL = "protocol"
    HEADER_TOO_LARGE = "header-too-large"
    CONTENT_ENCODING = "content-encoding"
    BODY_TOO_LARGE = "body-too-large"  #: than `max_file`, or than `max_body` where nothing is cut
    FILES_UNWRITABLE = "files-unwritable"  #: no disk or store takes it; costs a crawl no attempt
    REDIRECT_LOOP = "redirect-loop"
    REDIRECT_LIMIT = "redirect-limit"
    REDIRECT_INVALID = "redirect-invalid"
    XML_UNSAFE = "xml-unsafe"
    PARSE_KILLED = "parse-killed"
    BROWSER_CRASHED = "browser-crashed"  #: it crashes whatever renders it
    DOCUMENT_TOO_LARGE = "document-too-large"
    STORE_REJECTED = "store-rejected"
    CRASHED_WORKER = "crashed-worker"
    HOST_UNREACHABLE = "host-unreachable"  #: its host was given up
    HOST_FULL = "max-pages-per-host"  #: its host has had its `max_pages_per_host`
    PROXY = "proxy"  #: the proxy that its request names does not work
    BANNED = "banned"  #: its answer bans whichever proxy or session asks for it
    LOGGED_OUT = "logged-out"  #: its answer says so, though its session is logged in
    INTERNAL = "internal"

    # Unwanted: nothing failed, and `retry-failed` leaves them alone.
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
    UNWANTED = "unwanted"  #: the work on a tracked task said so
    WITHDRAWN = "withdrawn"  #: taken out of the pool before anybody worked on it
    REDIRECT = "redirect"  #: the task is finished, and its page is another one's


#: The reasons which say that a task was unwanted, not that it failed.
POLICY_REASONS = frozenset(
    {
        Reason.REFUSED_SCHEME,
        Reason.REFUSED_SCOPE,
        Reason.REFUSED_ROBOTS,
        Reason.REFUSED_ADDRESS,
        Reason.REFUSED_PORT,
        Reason.REFUSED_CREDENTIALS,
        Reason.REFUSED_DEPTH,
        Reason.URL_INVALID,
        Reason.URL_TOO_LONG,
        Reason.TRAP_PATH_SEGMENTS,
        Reason.TRAP_REPEATED_SEGMENT,
        Reason.TRAP_QUERY_PARAMETERS,
        Reason.CONTENT_TYPE,
        Reason.UNWANTED,
        Reason.WITHDRAWN,
        Reason.REDIRECT,
    }
)
FAILURE_REASONS = frozenset(Reason) - POLICY_REASONS


class CrawlcwError(Exception):
    """The base of all errors that crawlcw raises itself."""


class UsageError(CrawlcwError):
    """The user asked for something that cannot be; the text names the way out."""


class SettingsError(UsageError):
    """A setting has a name or a value that does not exist."""


class SpiderError(UsageError):
    """A spider cannot be found, loaded or run as it is written."""


class InvalidItemError(SpiderError):
    """What is no item, or has a value that no ledger keeps; the text names the value's field."""


class Answered(Protocol):
    """The parts of a `Response` that an error is sure to carry."""

    @property
    def url(self) -> str:
        """The URL that was asked for."""

    @property
    def status(self) -> int:
        """The status code."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, by names of any case."""

    @property
    def body(self) -> bytes:
        """The body, decompressed."""

    @property
    def text(self) -> str:
        """The body as text."""


class FetchError(CrawlcwError):
    """One attempt at one URL failed.

    *message* may hold text from the server. *retry_after* is what the server
    asked for, in seconds, already parsed and bounded. *hop* is 1 where it was the
    first request that failed, and more behind redirects. *response* is the answer
    that was the failure, where there was one: its status, headers and body.
    """

    hop = 1
    response: Answered | None = None
    proxy: object = None  #: a `Proxy`: through which it failed, where it may be to blame
    deadline: float | None = None  #: seconds, where it was the request's own and is over
    refused = False  #: whether the server's port took no connection, and said so

    def __init__(
        self,
        reason: Reason,
        message: str = "",
        *,
        status: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"{reason}: {message}" if message else str(reason))
        self.reason = reason
        self.message = message
        self.status = status
        self.retry_after = retry_after

    @property
    def underlying(self) -> Reason:
        """The reason of the failed fetch that this one follows from, if any; else its own."""
        cause = self.__cause__
        return cause.reason if isinstance(cause, FetchError) else self.reason


class ProxyFailedError(FetchError):
    """A proxy could not be used, so no server was asked.

    *for_good*: it refuses us, and waiting will not help. *otherwise* is the failure of
    the request where the proxy has worked before: then it may be the server's.
    """

    def __init__(
        self, message: str, *, for_good: bool = False, otherwise: FetchError | None = None
    ) -> None:
        super().__init__(Reason.PROXY, message)
        self.for_good = for_good
        self.otherwise = otherwise


class ProxiesAwayError(ProxyFailedError):
    """No proxy can be used for *wait* seconds: neither the page nor its host is to blame.

    *is_dead*: the only one that may be used, a session's, is to be replaced.
    """

    def __init__(self, message: str, *, wait: float, is_dead: bool = False) -> None:
        super().__init__(message)
        self.wait = wait
        self.is_dead = is_dead


class ParseRefusedError(FetchError):
    """The page has a shape that would keep a parser busy for minutes, or XML that is not safe."""

    def __init__(self, message: str, *, reason: Reason = Reason.PARSE_KILLED) -> None:
        super().__init__(reason, message)


class XmlError(ParseRefusedError):
    """A sitemap or a feed cannot be read to its end; that is no fault of the spider's."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.args = (f"{reason}: {message}",)


class LedgerError(CrawlcwError):
    """The base of what a ledger raises."""


class LedgerUnavailableError(LedgerError):
    """The ledger did not answer; whether the write was applied is unknown."""


class LedgerGoneError(LedgerError):
    """The ledger's file was removed or replaced while it was in use: no waiting brings it back."""


class LedgerConfigurationError(LedgerError):
    """The ledger answers, but not to this configuration: no waiting will help."""


class LedgerKindError(LedgerConfigurationError):
    """The name is that of a spider, and not of a use case; or the other way round."""


class LeaseLostError(LedgerError):
    """The lease has ended or is held by another claim; nothing was written."""


class Defer(CrawlcwError):  # nothing went wrong with the page
    """An attempt at a page does not count, neither for the page nor for its host.

    The page goes back, and is due again at *until*, a time with a zone, or after so long; None:
    as soon as its host may be asked. A layer of the user's own may raise it, with the *cause* in
    words; a page that it puts back each time keeps its crawl from ending.
    """

    def __init__(self, cause: str, *, until: datetime | timedelta | None = None) -> None:
        super().__init__(cause)
        if isinstance(until, datetime) and until.tzinfo is None:
            raise ValueError(f"Defer(until={until!r}) must be a time with a zone")
        self.cause = cause
        self.until = until


class StopCrawl(CrawlcwError):  # it says what to do: nothing went wrong
    """A spider's callback, errback, `start` or `opened` raises it: the crawl is to end, softly.

    What the page has yielded before is recorded, what is under way is finished,
    and all else is released. The text is in the report.
    """


class DropItem(CrawlcwError):  # it says what to do: nothing went wrong
    """A spider's `item` raises it: the item is not recorded, and counted by the text."""


class UnwantedError(CrawlcwError):
    """A handler raises it: the task turned out to be unwanted, which is no failure.

    It is what `Execution.ignore` is, for handlers that have no execution.
    """


class TaskMissedError(CrawlcwError):
    """A tracked task cannot be started now."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"task {key!r} {why}")
        self.key = key


class TaskNotFoundError(TaskMissedError):
    """There is no task with this key."""

    def __init__(self, key: str) -> None:
        super().__init__(key, "does not exist: add it first")


class TaskLockedError(TaskMissedError):
    """Somebody holds the task."""

    def __init__(self, key: str, *, holder: str, until: datetime) -> None:
        super().__init__(key, f"is held by {holder} until {until:%Y-%m-%d %H:%M:%S.%f} UTC")
        self.holder = holder
        self.until = until


class TaskNotDueError(TaskMissedError):
    """The task waits for its time, after a failure or because it was delayed."""

    def __init__(self, key: str, *, due: datetime) -> None:
        super().__init__(key, f"is not due before {due:%Y-%m-%d %H:%M:%S.%f} UTC")
        self.due = due


class TaskFinishedError(TaskMissedError):
    """The task is done."""

    def __init__(self, key: str) -> None:
        super().__init__(key, "is finished already")


class TaskIgnoredError(TaskMissedError):
    """The task was given up, or is unwanted."""

    def __init__(self, key: str, *, reason: Reason | None) -> None:
        again = "retry" if reason in FAILURE_REASONS else "reset"
        super().__init__(key, f"is ignored ({reason}): `{again}` brings it back")
        self.reason = reason


@contextmanager
def single_errors() -> Iterator[None]:
    """Raise the first error of a group of tasks by itself: the others followed from it."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        # With its own cause: the group has no more to tell.
        raise error from error.__cause__
