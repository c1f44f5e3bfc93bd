"""Further visits of a page: whether it has changed since the last one, and the date of the next."""

import re
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.model.task import Task
from crawlcw.model.visits import RevisitPolicy, Visit

NOT_MODIFIED = 304
#: A spider's own ones are left as they are.
_PRECONDITIONS = frozenset(
    {
        *("if-match", "if-none-match", "if-modified-since", "if-unmodified-since"),
        *("if-range", "range"),
    }
)
#: A validator is sent back as it came, or not at all.
_VALIDATOR = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,510}[\x21-\x7e])?")


def conditional(request: Request, task: Task) -> Request:
    """Return *request*, or one that is answered by 304 where the page is as at its last visit."""
    visit = task.visit
    if visit is None or request.method != "GET" or request.body is not None:
        return request
    asked = {"If-None-Match": visit.etag, "If-Modified-Since": visit.last_modified}
    added = tuple((name, value) for name, value in asked.items() if value is not None)
    own = {name.lower() for name, _ in request.headers}
    if not added or own & _PRECONDITIONS:
        return request
    return request.elsewhere(request.url, headers=(*request.headers, *added))


@dataclass(frozen=True, slots=True)
class Revisits:
    """The records of visits, and the dates of the next ones."""

    policy: RevisitPolicy

    def is_same(self, last: Visit, response: Response) -> bool:
        """Return whether the body is that of the *last* visit, though a server sends it again."""
        return last.digest is not None and last.digest == _digest(response)

    def changed(
        self, task: Task, response: Response, *, now: datetime
    ) -> tuple[Visit, datetime | None]:
        """Return the visit of a page that is new, or another one than before, and the next date."""
        visit = Visit(
            time=now,
            changed=now,
            digest=_digest(response),
            etag=_validator(task, response, "etag"),
            last_modified=_validator(task, response, "last-modified"),
        )
        return self._dated(task, visit, changed=True)

    def of_alias(self, task: Task, *, now: datetime) -> tuple[Visit, datetime | None]:
        """Return the same of a task that only leads to a page: nothing of the page is its own."""
        last = task.visit
        visit = Visit(time=now, changed=now if last is None else last.changed)
        return self._dated(task, visit, changed=False)

    def unchanged(
        self, task: Task, response: Response | None = None, *, now: datetime
    ) -> tuple[Visit, datetime | None]:
        """Return the same of a page that is as it was, or was not to be had (no *response*)."""
        last = task.visit
        assert last is not None
        visit = replace(last, time=now)
        if response is not None:
            # A 304 may leave out what is as it was.
            etag = _validator(task, response, "etag") or last.etag
            modified = _validator(task, response, "last-modified") or last.last_modified
            visit = replace(visit, etag=etag, last_modified=modified)
        return self._dated(task, visit, changed=False)

    def _dated(self, task: Task, visit: Visit, *, changed: bool) -> tuple[Visit, datetime | None]:
        interval = self.policy.interval(task.options.revisit, task.visit, changed=changed)
        if interval is None:
            return visit if visit.interval is None else replace(visit, interval=None), None
        return replace(visit, interval=interval.total_seconds()), visit.time + interval


def _validator(task: Task, response: Response, name: str) -> str | None:
    """Return a header that can be sent back, where the answer is of this very URL."""
    value = response.headers.get(name)
    if value is None or response.url != task.url or not _VALIDATOR.fullmatch(value):
        return None
    return value


def _digest(response: Response) -> str | None:
    """Return a digest of a body; None where it is cut off."""
    if response.file is not None:
        return response.file.sha256
    if response.truncated is not None:
        return None
    # OpenSSL's, which has the processor's own instructions, takes half the time of Python's BLAKE2.
    return sha256(response.body, usedforsecurity=False).hexdigest()
