"""What dispensing stands on: who may ask, how their leases are told apart, and the ledger."""

import re
import secrets
import time
from datetime import timedelta

from crawlcw.errors import UsageError
from crawlcw.model.task import Status, Task
from crawlcw.tracking.blobs import Blobs
from crawlcw.tracking.tracker import Tracker

_WORD = re.compile(r"[A-Za-z0-9._-]{1,100}")
#: Seconds between two looks at the use case's settings.
_POLICY_CHECK = 15.0


class Dispensing:
    """A tracker whose tasks are handed out, and the names of those that ask for them."""

    def __init__(self, tracker: Tracker, *, ttl: timedelta | None = None) -> None:
        """Let a worker keep what it was given for *ttl*, by default the policy's lease."""
        self._tracker = tracker
        self._ledger = tracker.ledger
        self._blobs = Blobs(tracker.ledger)
        self._ttl = ttl
        # Several dispensers count their claims each for itself.
        self._nonce = secrets.token_hex(6)
        self._policy_seen = time.monotonic()

    @property
    def ttl(self) -> timedelta:
        """How long a worker keeps what it was given, from each time it asks or touches it."""
        return self._ttl or self._tracker.policy.lease

    async def _follow_policy(self) -> None:
        """Look now and then whether somebody has changed the settings."""
        now = time.monotonic()
        if now - self._policy_seen > _POLICY_CHECK:
            self._policy_seen = now
            await self._tracker.session.refresh()


def holder(worker: object) -> str:
    """Return what the tokens of a worker's leases begin with; raises `UsageError`."""
    return f"@{_word(worker, 'name of a worker')}"


def request_holder(worker: object, request: object) -> str:
    """Return what the tokens begin with that one request of a worker has got."""
    return f"{holder(worker)}:~{_word(request, 'token of a request')}"


def _word(given: object, what: str) -> str:
    if not isinstance(given, str) or not _WORD.fullmatch(given):
        raise UsageError(f"{given!r} is no {what}: write 1 to 100 letters, digits, '.', '_' or '-'")
    return given


def is_held(task: Task, by: str) -> bool:
    """Return whether *by* holds the task; a lease that ran out holds until it is taken over."""
    return (
        task.status is Status.PROCESSING
        and task.lock is not None
        and task.lock.startswith(f"{by}:")
    )
