"""One task in the ledger: its request, its status, and the right to work on it.

A crawl's task is a URL. A tracked task is anything else that is to be done once:
its `url` is its key, its `callback` the stage it is in, and so is its `host`, for
a stage is paged by itself, so it has a host of its own; and it carries data.

These are values. What may happen to them is in `transitions`; how they are
written down is in `ledger.documents`.
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

#: Bytes of an id that are its host's, and that are the request's.
HOST_BYTES, _REQUEST_BYTES = 6, 10
#: A plain name: no field of a ledger may lead to another file of the machine.
_FILE = re.compile(r"[\w-][\w.-]{0,249}", re.ASCII)


class Status(IntEnum):
    """Where a task stands. The numbers are those of the Coordinator-Worker pattern."""

    TODO = 0  #: waiting for a coordinator
    FAILED = 20  #: the last attempt failed; it will be tried again when due
    PROCESSING = 30  #: leased to one worker until `due`
    FINISHED = 50  #: the result is recorded
    IGNORED = 70  #: given up, or unwanted; `reason` says which


#: Waiting to be worked on: no worker holds it, and it will be due.
WAITING = (Status.TODO, Status.FAILED)
#: No worker is to work on it in this run: it is never due.
DONE = (Status.FINISHED, Status.IGNORED)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobRef:
    """Stands for a value that is too large for a task's document and is kept beside it."""

    id: str
    size: int  #: about how many bytes the value has


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

    max_retry: int | None = None  #: failed attempts before the task is given up
    browser: bool | None = None  #: whether the page is rendered in a browser
    save_to: str | None = None  #: the folder its body is saved in; None: it is read into memory
    truncate: bool | None = None  #: whether a body over `max_body` is cut, or fails
    timeout: float | None = None  #: seconds for one attempt
    retry_statuses: tuple[int, ...] | None = None  #: answers that are tried again
    accept_statuses: tuple[int, ...] | None = None  #: answers that are pages, besides 200 to 299
    max_depth: int | None = None  #: links from a start URL, on this page and all that it leads to
    rules: bool | None = None  #: whether the spider's rules hold for the page
    revisit: float | str | None = None  #: when to visit it again, see `visits.recurrence`
    max_body: int | None = None  #: bytes of the decoded body; the rest is cut off
    session: str | None = None  #: the name of the session that asks for it
    proxy: str | None = field(default=None, repr=False)  #: its URL, or `direct`
    cookies: tuple[tuple[str, str], ...] | None = field(default=None, repr=False)

    def to_document(self) -> dict[str, Any]:
        """Return the options that are set, by name."""
        named = {name: getattr(self, name) for name in _NAMES}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in named.items()
            if value is not None
        }

    @classmethod
    def from_document(cls, found: Mapping[str, Any]) -> Self:
        """Return what `to_document` was called on."""
        return cls(**{name: _unchanging(found.get(name)) for name in _NAMES})


_NAMES = tuple(field.name for field in fields(RequestOptions))
#: Those of nearly every request: one object, so that they are told at a glance.
NO_OPTIONS = RequestOptions()


def _unchanging(value: Any) -> Any:
    """Return a stored value with tuples for its lists."""
    return tuple(_unchanging(each) for each in value) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPage:
    """The place of a page's body: a record in the folder of its spider's WARC files."""

    file: str  #: a name, without a path: the folder may be moved
    offset: int  #: bytes before the record
    length: int  #: bytes of the record, as it is packed

    @property
    def is_sound(self) -> bool:
        """Whether it can be a record's place at all, and within the folder."""
        return _FILE.fullmatch(self.file) is not None and self.offset >= 0 and self.length > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A document of the ledger as a coordinator sees it, without its results."""

    id: bytes  #: 16 bytes, see `task_id`
    url: str  #: as a browser sends it, without userinfo and fragment; the key of a tracked task
    host: str  #: the politeness key; the stage of a tracked task
    method: str = "GET"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    callback: str = "parse"  #: the spider's method that parses the page; the stage
    errback: str | None = None  #: the spider's method for a task given up, if not `on_error`
    context: Mapping[str, Any] | BlobRef | None = None  #: the spider's own; never read here
    options: RequestOptions = NO_OPTIONS
    depth: int = 0  #: links from a start URL
    parent: bytes | None = None  #: the id of the task whose page had this link
    hops: int = 0  #: redirects that led here one after the other, each to a task of its own
    priority: int = 0  #: higher first
    status: Status = Status.TODO
    due: datetime | None  #: when a coordinator may take it; None: never again
    update_time: datetime
    create_time: datetime
    lock: str | None = None  #: the token of the claim that holds it
    lock_time: datetime | None = None
    fence: int = 0  #: the number of claims so far
    settled: int = 0  #: the fence of the last outcome recorded
    retry: int = 0  #: failed attempts
    lost: int = 0  #: workers that were lost while they worked on it alone
    quarantine_fence: int | None = None
    """None: no worker was lost that held it, since it was last finished. 0: one was. Else the
    fence of the last claim whose holder began with it alone or, where it is quarantined, gave it
    back; see `transitions.is_quarantined`."""
    reason: Reason | None = None
    visit: Visit | None = None  #: of a page that was finished once
    revisit: datetime | None = None  #: when it is to be visited again, by the next run then
    stored: StoredPage | None = None  #: where the last body that was fetched of it is kept
    carried: Payload | None = None  #: of a tracked task; `page` does not read it


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedTask(Task):
    """A task to be added that was not done well enough where it was done before it *changed*.

    The ledger keeps it as any other: its fields count only when it is added.
    """

    changed: datetime

    def before(self, moment: datetime) -> "ChangedTask":
        """Return the task as if it had not changed after *moment*."""
        return self if self.changed <= moment else replace(self, changed=moment)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to work on one task until `expires`."""

    task: Task  #: as it was when it was claimed: `release` restores its status and `due`
    token: str
    fence: int
    expires: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptError:
    """What went wrong in one attempt, as it is kept in the task's `errors`."""

    time: datetime
    kind: Reason
    message: str  #: cleaned, at most 500 characters
    attempt: int  #: the first is 1
    traceback: str | None = None  #: only where the spider's own code raised


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One claim of a tracked task and how it ended, as it is kept in the task's `trace`."""

    fence: int
    stage: str
    worker: str  #: who held it: a process, or a worker that asked for its share
    started_at: datetime
    ended_at: datetime
    event: str  #: `finish`, `advance`, `fail` or `give up`


@page_value(frozen=True, slots=True, kw_only=True)
class ResponseInfo:
    """The part of a response that is remembered."""

    status: int
    final_url: str
    content_type: str | None = None
    bytes: int = 0  #: of the decoded body
    elapsed: float = 0.0  #: seconds, with redirects in place
    etag: str | None = None
    last_modified: str | None = None
    truncated: str | None = None  #: why the body is not whole, if it is not


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Everything the ledger knows about one task."""

    task: Task
    errors: tuple[AttemptError, ...] = ()
    response: ResponseInfo | None = None
    items: tuple[Mapping[str, Any], ...] = ()
    trace: tuple[AttemptRecord, ...] = ()  #: of a tracked task: the last ones

    @property
    def leads_to(self) -> bytes | None:
        """The id of the task whose page this one's is; None: it is no redirect that has ended."""
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

    The host comes first, so that a host's tasks lie side by side in the index;
    *salt* makes a second task of the same request, see `Request.dont_filter`.
    """
    rest = b"\n".join((method.encode(), location.canonical.encode(), body, salt))
    return (
        blake2b(location.host.encode(), digest_size=HOST_BYTES).digest()
        + blake2b(rest, digest_size=_REQUEST_BYTES).digest()
    )


def ids_of_host(host: str) -> tuple[bytes, bytes]:
    """Return the least and the greatest id that a request to a host may have."""
    digest = blake2b(host.encode("utf-8", "replace"), digest_size=HOST_BYTES).digest()
    return digest + bytes(_REQUEST_BYTES), digest + b"\xff" * _REQUEST_BYTES
