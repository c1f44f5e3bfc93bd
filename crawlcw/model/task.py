"""Define a task of the ledger: its request, its status, and the lease for the work on the task.

A crawl's task is a URL to fetch. A tracked task is any other work that must be done once; the task
carries data. The field `url` of a tracked task has the task's key. Its field `callback` has the
task's stage. Its field `host` has the stage too, because the ledger lists tasks by `host`.

The classes of this module have no behaviour: `transitions` decides all changes of tasks, and
`ledger.documents` defines their stored form.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from enum import IntEnum
from hashlib import blake2b
from typing import Any, Self

from crawlcw.errors import Reason
from crawlcw.model.page_value import page_value
from crawlcw.model.urls import Location, locate
from crawlcw.model.visits import Visit

#: The bytes of a task's id: first the host's digest, then the request's digest.
HOST_BYTES, _REQUEST_BYTES = 6, 10
#: A file name without a path, so that a ledger cannot name a file outside of the WARC folder.
_FILE = re.compile(r"[\w-][\w.-]{0,249}", re.ASCII)
#: The key of values that no command and no page shows, because they may be passwords: in a context
#: and, as the beginning of a name, in the spider state.
PRIVATE_KEY = "__private__"


class Status(IntEnum):
    """The status of a task; the numbers are those of the Coordinator-Worker pattern."""

    TODO = 0  #: waiting for a coordinator
    FAILED = 20  #: the last attempt failed, and another attempt follows
    PROCESSING = 30  #: leased to one worker until `due`
    FINISHED = 50  #: the result is recorded
    IGNORED = 70  #: given up or unwanted, as `reason` says


#: Statuses of waiting tasks, which no worker leases and which are due now or later.
WAITING = (Status.TODO, Status.FAILED)
#: Statuses of tasks that are never due, because no work on these tasks remains.
DONE = (Status.FINISHED, Status.IGNORED)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobRef:
    """A reference to a blob, which is a value that is too large for its task's document."""

    id: str
    size: int  #: approximate size in bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """The values of a tracked task that a worker receives when it claims the task."""

    data: Mapping[str, Any] | BlobRef = field(default_factory=dict)
    results: Mapping[str, Any] = field(default_factory=dict)  #: results by stage


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """The options of a request, each of which overrides a setting of the spider.

    An option is None if the setting applies. All options are plain values, see `model.values`.
    """

    max_retry: int | None = None  #: number of failed attempts after which the crawl gives up
    browser: bool | None = None  #: whether a browser renders the page
    save_to: str | None = None  #: folder for the response's body; None: keep the body in memory
    truncate: bool | None = None  #: whether to cut a body over `max_body`, or to fail the page
    timeout: float | None = None  #: seconds for one attempt
    retry_statuses: tuple[int, ...] | None = None  #: HTTP statuses after which a retry follows
    accept_statuses: tuple[int, ...] | None = None  #: HTTP statuses of good pages besides 200-299
    max_depth: int | None = None  #: maximum `depth` of pages that are reached from this page
    rules: bool | None = None  #: whether the spider's rules apply to the page
    revisit: float | str | None = None  #: time between visits of the page, see `visits.recurrence`
    max_body: int | None = None  #: the limit of the decoded body in bytes
    session: str | None = None  #: name of the crawl session
    proxy: str | None = field(default=None, repr=False)  #: its URL, or `direct`
    cookies: tuple[tuple[str, str], ...] | None = field(default=None, repr=False)

    def to_document(self) -> dict[str, Any]:
        """Return the options that are not None, by name."""
        value_by_name = {name: getattr(self, name) for name in _NAMES}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in value_by_name.items()
            if value is not None
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Return the options that `to_document` converted to *document*."""
        return cls(**{name: _unchanging(document.get(name)) for name in _NAMES})


_NAMES = tuple(field.name for field in fields(RequestOptions))
#: The options of a request that sets none. Compare with this object by `is`.
NO_OPTIONS = RequestOptions()


def _unchanging(value: Any) -> Any:
    """Return *value* with tuples in place of lists."""
    return tuple(_unchanging(entry) for entry in value) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPage:
    """The position of a page's stored body, which is a record in one of the spider's WARC files."""

    file: str  #: file name without a path, because the folder may be moved
    offset: int  #: number of bytes in the file before the record
    length: int  #: compressed size of the record in bytes

    @property
    def is_sound(self) -> bool:
        """Whether `offset` and `length` are valid, and `file` is a possible name of a WARC file."""
        return _FILE.fullmatch(self.file) is not None and self.offset >= 0 and self.length > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The fields of a task in the ledger; `Record` adds the task's errors, response and items."""

    id: bytes  #: 16 bytes, see `task_id`
    url: str  #: the URL without userinfo and fragment; the key of a tracked task
    host: str  #: host and port whose limits apply; the stage of a tracked task
    method: str = "GET"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    callback: str = "parse"  #: the spider's method for the page; the stage of a tracked task
    errback: str | None = None  #: the spider's method that is called if the task fails
    context: Mapping[str, Any] | BlobRef | None = None  #: the spider's values
    options: RequestOptions = NO_OPTIONS
    depth: int = 0  #: number of links from a start URL to the page
    parent: bytes | None = None  #: id of the task whose page contained the link to this task's URL
    hops: int = 0  #: number of consecutive redirects that led to this task
    priority: int = 0  #: higher first
    status: Status = Status.TODO
    due: datetime | None  #: earliest time at which a worker may claim the task; None: never
    update_time: datetime
    create_time: datetime
    lock: str | None = None  #: token of the current lease
    lock_time: datetime | None = None
    fence: int = 0  #: number of claims so far
    settled: int = 0  #: fence of the last recorded outcome
    retry: int = 0  #: failed attempts
    lost: int = 0  #: number of workers that crashed while they ran only this task
    quarantine_fence: int | None = None
    """None: no worker has crashed with this task since the task was last finished. 0: one worker
    has crashed. In a quarantined task: the fence of the last lease whose holder ran the task alone
    or released the task; see `transitions.is_quarantined`."""
    reason: Reason | None = None
    visit: Visit | None = None  #: the last visit of the page, if the page was ever finished
    revisit: datetime | None = None  #: time after which the next run visits the page again
    stored: StoredPage | None = None  #: position of the last stored body
    carried: Payload | None = None  #: data of a tracked task

    @property
    def shown_context(self) -> Mapping[str, Any] | BlobRef | None:
        """The context as commands and pages may show it: without the values under `PRIVATE_KEY`."""
        context = self.context
        if context is None or isinstance(context, BlobRef) or PRIVATE_KEY not in context:
            return context
        return {name: value for name, value in context.items() if name != PRIVATE_KEY} or None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedTask(Task):
    """A task that must be done again if it was last done before its page changed at `changed`.

    The ledger only compares *changed* with the `update_time` of the task that it has stored.
    """

    changed: datetime

    def capped_at(self, moment: datetime) -> "ChangedTask":
        """Return a task whose `changed` is at most *moment*; a later `changed` becomes *moment*."""
        return self if self.changed <= moment else replace(self, changed=moment)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A lease, which is one worker's right to work on a task until `expires`."""

    task: Task  #: the task before the claim; `release` restores its status and `due`
    token: str
    fence: int
    expires: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptError:
    """The error of one failed attempt, which the ledger adds to the task's `errors`."""

    time: datetime
    kind: Reason
    message: str  #: printable text of at most 500 characters
    attempt: int  #: the first is 1
    traceback: str | None = None  #: traceback of an error in the spider's code


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One claim of a tracked task, and how the claim ended; the task's `trace` has such records."""

    fence: int
    stage: str
    worker: str  #: name of the process or the external worker that had the lease
    started_at: datetime
    ended_at: datetime
    event: str  #: `finish`, `advance`, `fail` or `give up`


@page_value(frozen=True, slots=True, kw_only=True)
class ResponseInfo:
    """The fields of a page's response that the ledger stores with the task."""

    status: int
    final_url: str
    content_type: str | None = None
    bytes: int = 0  #: size of the decoded body
    elapsed: float = 0.0  #: seconds for the response and for all redirects before it
    etag: str | None = None
    last_modified: str | None = None
    truncated: str | None = None  #: why the body is incomplete; None: a complete body
    file: str | None = None  #: path of the saved body; None: not saved
    sha256: str | None = None  #: digest of the saved body, in hexadecimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """All data that the ledger stores about one task."""

    task: Task
    errors: tuple[AttemptError, ...] = ()
    response: ResponseInfo | None = None
    items: tuple[dict[str, Any], ...] = ()
    trace: tuple[AttemptRecord, ...] = ()  #: the last claims of a tracked task

    @property
    def leads_to(self) -> bytes | None:
        """The id of the task to which this task's URL redirects; None if it does not redirect."""
        response = self.response
        if response is None:
            return None
        return redirect_target(self.task.status, self.task.reason, response.final_url)


def redirect_target(status: Status, reason: Reason | None, final_url: str) -> bytes | None:
    """Return the id of the task to which a task redirects; None if the task does not redirect."""
    is_redirect = status is Status.FINISHED and reason is Reason.REDIRECT
    return task_id(locate(final_url)) if is_redirect else None


def key_id(key: str) -> bytes:
    """Return the 16-byte id of the tracked task with *key*."""
    return blake2b(key.encode(), digest_size=16).digest()


def task_id(
    location: Location,
    *,
    method: str = "GET",
    body: bytes = b"",
    salt: bytes = b"",
    fingerprint: bytes | None = None,
) -> bytes:
    """Return the 16-byte id of the task for a request.

    The id begins with the host's digest, so that the tasks of a host are adjacent in the index.
    Requests that differ only in *salt* are different tasks, see `Request.dont_filter`. A
    *fingerprint* replaces the method, the URL and the body.
    """
    if fingerprint is None:
        content = b"\n".join((method.encode(), location.canonical.encode(), body, salt))
    else:
        # No other content begins with a line end, because a method is never empty.
        content = b"\n".join((b"", fingerprint, salt))
    return (
        blake2b(location.host.encode(), digest_size=HOST_BYTES).digest()
        + blake2b(content, digest_size=_REQUEST_BYTES).digest()
    )


def ids_of_host(host: str) -> tuple[bytes, bytes]:
    """Return the smallest and the largest possible id of the tasks of *host*."""
    digest = blake2b(host.encode("utf-8", "replace"), digest_size=HOST_BYTES).digest()
    return digest + bytes(_REQUEST_BYTES), digest + b"\xff" * _REQUEST_BYTES
