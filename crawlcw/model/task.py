"""One task in the ledger: its request, its status, and the right to work on it.

A crawl's task is a URL. A tracked task is any other work that must be done once. Its `url` is
its key, and its `callback` is its stage. Its `host` is also the stage, because the ledger lists
the tasks of each stage separately. It carries data.

These are values. `transitions` decides their changes, and `ledger.documents` defines their
stored form.
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

#: The numbers of bytes in an id for the host, and for the request.
HOST_BYTES, _REQUEST_BYTES = 6, 10
#: A plain name: a field of a ledger must not give access to another file of the machine.
_FILE = re.compile(r"[\w-][\w.-]{0,249}", re.ASCII)


class Status(IntEnum):
    """The status of a task. The numbers are those of the Coordinator-Worker pattern."""

    TODO = 0  #: waiting for a coordinator
    FAILED = 20  #: the last attempt failed; another attempt follows when it is due
    PROCESSING = 30  #: leased to one worker until `due`
    FINISHED = 50  #: the result is recorded
    IGNORED = 70  #: given up, or unwanted; `reason` says which


#: Statuses of tasks that wait: no worker has a lease, and the task will be due.
WAITING = (Status.TODO, Status.FAILED)
#: Statuses of tasks that are never due: no work on them remains in this run.
DONE = (Status.FINISHED, Status.IGNORED)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobRef:
    """A reference to a blob: a value that is too large for its task's document."""

    id: str
    size: int  #: the approximate bytes of the value


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """The data that a tracked task carries from claim to claim."""

    data: Mapping[str, Any] | BlobRef = field(default_factory=dict)
    results: Mapping[str, Any] = field(default_factory=dict)  #: stage -> result, or a `BlobRef`


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """The options of one request that differ from its spider's settings, stored with its task.

    None: as the settings say. All values are plain, see `model.values`.
    """

    max_retry: int | None = None  #: failed attempts until the crawl gives the task up
    browser: bool | None = None  #: whether the page is rendered in a browser
    save_to: str | None = None  #: the folder for its body; None: the body is read into memory
    truncate: bool | None = None  #: whether a body over `max_body` is cut; if not, the page fails
    timeout: float | None = None  #: seconds for one attempt
    retry_statuses: tuple[int, ...] | None = None  #: statuses that are tried again
    accept_statuses: tuple[int, ...] | None = None  #: statuses of pages, besides 200 to 299
    max_depth: int | None = None  #: links from a start URL, for this page and all below it
    rules: bool | None = None  #: whether the spider's rules apply to the page
    revisit: float | str | None = None  #: when to visit it again, see `visits.recurrence`
    max_body: int | None = None  #: the limit of the decoded body in bytes
    session: str | None = None  #: the name of its session
    proxy: str | None = field(default=None, repr=False)  #: its URL, or `direct`
    cookies: tuple[tuple[str, str], ...] | None = field(default=None, repr=False)

    def to_document(self) -> dict[str, Any]:
        """Return the options that are set, by name."""
        value_by_name = {name: getattr(self, name) for name in _NAMES}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in value_by_name.items()
            if value is not None
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Return the options from the result of `to_document`."""
        return cls(**{name: _unchanging(document.get(name)) for name in _NAMES})


_NAMES = tuple(field.name for field in fields(RequestOptions))
#: The options of nearly every request: one object, so that `is` can recognise it.
NO_OPTIONS = RequestOptions()


def _unchanging(value: Any) -> Any:
    """Return a stored value with tuples in place of lists."""
    return tuple(_unchanging(entry) for entry in value) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPage:
    """The place of a page's body: a record in the folder of its spider's WARC files."""

    file: str  #: a name without a path, because the folder may be moved
    offset: int  #: number of bytes before the record
    length: int  #: compressed bytes of the record

    @property
    def is_sound(self) -> bool:
        """Whether it is a valid place of a record, inside of the folder."""
        return _FILE.fullmatch(self.file) is not None and self.offset >= 0 and self.length > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task's document in the ledger, without its results."""

    id: bytes  #: 16 bytes, see `task_id`
    url: str  #: as browsers send it, without userinfo and fragment; the key of a tracked task
    host: str  #: the politeness key; the stage of a tracked task
    method: str = "GET"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    callback: str = "parse"  #: the spider's method that parses the page; the stage
    errback: str | None = None  #: the spider's method for the given-up task, if not `on_error`
    context: Mapping[str, Any] | BlobRef | None = None  #: the spider's values
    options: RequestOptions = NO_OPTIONS
    depth: int = 0  #: links from a start URL
    parent: bytes | None = None  #: the id of the task whose page had this link
    hops: int = 0  #: consecutive redirects that led to this task, each from another task
    priority: int = 0  #: higher first
    status: Status = Status.TODO
    due: datetime | None  #: when a coordinator may take it; None: never again
    update_time: datetime
    create_time: datetime
    lock: str | None = None  #: the token of its current claim
    lock_time: datetime | None = None
    fence: int = 0  #: the number of claims so far
    settled: int = 0  #: the fence of the last recorded outcome
    retry: int = 0  #: failed attempts
    lost: int = 0  #: workers that crashed while they worked on it alone
    quarantine_fence: int | None = None
    """None: no worker has crashed on it since it was last finished. 0: one has. Otherwise the fence
    of the last claim whose worker ran it alone or, if it is quarantined, released it; see
    `transitions.is_quarantined`."""
    reason: Reason | None = None
    visit: Visit | None = None  #: the last visit of a page that was once finished
    revisit: datetime | None = None  #: when it is due again; the first run after that visits it
    stored: StoredPage | None = None  #: the place of its last fetched body
    carried: Payload | None = None  #: data of a tracked task; `page` does not read it


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedTask(Task):
    """A task to add that must be done again if it was last done before it *changed*.

    The ledger stores it like any other task: *changed* counts only when it is added.
    """

    changed: datetime

    def capped_at(self, moment: datetime) -> "ChangedTask":
        """Return the task with *changed* no later than *moment*."""
        return self if self.changed <= moment else replace(self, changed=moment)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to work on one task until `expires`."""

    task: Task  #: its state before the claim: `release` restores its status and `due`
    token: str
    fence: int
    expires: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptError:
    """The error of one attempt, an entry in the task's `errors`."""

    time: datetime
    kind: Reason
    message: str  #: cleaned, at most 500 characters
    attempt: int  #: the first is 1
    traceback: str | None = None  #: only if the spider's own code raised


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One claim of a tracked task and its end, an entry in the task's `trace`."""

    fence: int
    stage: str
    worker: str  #: the holder of the lease: a process, or a worker that requested its share
    started_at: datetime
    ended_at: datetime
    event: str  #: `finish`, `advance`, `fail` or `give up`


@page_value(frozen=True, slots=True, kw_only=True)
class ResponseInfo:
    """The part of a response that the ledger stores."""

    status: int
    final_url: str
    content_type: str | None = None
    bytes: int = 0  #: the size of the decoded body
    elapsed: float = 0.0  #: seconds, including redirects within the attempt
    etag: str | None = None
    last_modified: str | None = None
    truncated: str | None = None  #: why the body is incomplete; None: it is complete


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """All data of the ledger about one task."""

    task: Task
    errors: tuple[AttemptError, ...] = ()
    response: ResponseInfo | None = None
    items: tuple[Mapping[str, Any], ...] = ()
    trace: tuple[AttemptRecord, ...] = ()  #: the last claims of a tracked task

    @property
    def leads_to(self) -> bytes | None:
        """The id of the task that has this task's page; None if this is no finished redirect."""
        is_redirect = self.task.status is Status.FINISHED and self.task.reason is Reason.REDIRECT
        if not is_redirect or self.response is None:
            return None
        return task_id(locate(self.response.final_url))


def key_id(key: str) -> bytes:
    """Return the 16 bytes that identify a tracked task."""
    return blake2b(key.encode(), digest_size=16).digest()


def task_id(
    location: Location, *, method: str = "GET", body: bytes = b"", salt: bytes = b""
) -> bytes:
    """Return the 16 bytes that identify a request.

    The host comes first, so that the tasks of a host are adjacent in the index. *salt*
    makes a second task for the same request, see `Request.dont_filter`.
    """
    content = b"\n".join((method.encode(), location.canonical.encode(), body, salt))
    return (
        blake2b(location.host.encode(), digest_size=HOST_BYTES).digest()
        + blake2b(content, digest_size=_REQUEST_BYTES).digest()
    )


def ids_of_host(host: str) -> tuple[bytes, bytes]:
    """Return the smallest and the largest possible id of requests to a host."""
    digest = blake2b(host.encode("utf-8", "replace"), digest_size=HOST_BYTES).digest()
    return digest + bytes(_REQUEST_BYTES), digest + b"\xff" * _REQUEST_BYTES
