"""Decide whether and when a failed task is tried again; read and format HTTP statuses.

The waits grow by exponential backoff with full jitter (Brooker, "Exponential Backoff And Jitter",
2015). The wait is never shorter than the server's Retry-After (RFC 9110, section 10.2.3).
"""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from crawlcw.errors import Reason, SettingsError
from crawlcw.model.task import RequestOptions

#: HTTP statuses after which the crawl tries a page again; 520-526 are Cloudflare's.
RETRY_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504, *range(520, 527)})
LONGEST_RETRY_AFTER = timedelta(hours=1)
#: The default number of last errors that the ledger stores with a task.
KEPT_ERRORS = 10

_RETRIED_REASONS = frozenset(
    {
        Reason.DNS_TEMPORARY,
        Reason.CONNECT,
        Reason.TIMEOUT_CONNECT,
        Reason.TIMEOUT_READ,
        Reason.TIMEOUT_TOTAL,
        Reason.DISCONNECTED,
        Reason.PAYLOAD_TRUNCATED,
        Reason.BROWSER_FAILED,
        Reason.PROXY,
        Reason.ROBOTS_UNAVAILABLE,
        Reason.TASK_ERROR,
    }
)
#: A text with one HTTP status or a range of statuses, such as `500-599`.
_STATUS_RANGE = re.compile(r"(\d{3})(?:\s*-\s*(\d{3}))?")
_ALL_STATUSES = range(100, 600)
#: A DNS resolver may wrongly report that a name does not exist, so the crawl tries the page twice.
_NXDOMAIN_ATTEMPTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The number of attempts for a task, and the waits between two attempts."""

    max_retry: int = 3  #: number of failed attempts after which the crawl gives up a task
    base: timedelta = timedelta(seconds=5)
    ceiling: timedelta = timedelta(hours=1)
    kept_errors: int = KEPT_ERRORS  #: number of last errors stored with a task
    statuses: Collection[int] = RETRY_STATUSES  #: HTTP statuses after which a page is tried again

    def with_options(self, options: RequestOptions) -> "RetryPolicy":
        """Return this policy, changed by the *options* of a task's request."""
        return replace(
            self,
            max_retry=self.max_retry if options.max_retry is None else options.max_retry,
            statuses=self.statuses if options.retry_statuses is None else options.retry_statuses,
        )

    def tries_again(self, reason: Reason, *, attempt: int, status: int | None = None) -> bool:
        """Return whether the crawl tries a task again after failed attempt number *attempt*."""
        if attempt >= self.max_retry:
            return False
        if reason is Reason.HTTP_STATUS:
            return status in self.statuses
        if reason is Reason.DNS_NXDOMAIN:
            return attempt < _NXDOMAIN_ATTEMPTS
        return reason in _RETRIED_REASONS

    def wait(self, attempt: int, *, chance: float, retry_after: float | None = None) -> timedelta:
        """Return how long to wait after failed attempt number *attempt*; the first attempt is 1.

        The wait is the result of `backoff` multiplied by *chance*, a random number in [0, 1). If
        the server sent *retry_after*, the wait is at least this number of seconds.
        """
        jittered_wait = backoff(attempt, base=self.base, ceiling=self.ceiling) * chance
        if retry_after is None:
            return jittered_wait
        requested_wait = min(timedelta(seconds=retry_after), LONGEST_RETRY_AFTER)
        return max(jittered_wait, requested_wait)


def backoff(attempt: int, *, base: timedelta, ceiling: timedelta) -> timedelta:
    """Return the longest wait after failed attempt number *attempt*; the first attempt is 1."""
    # Limit the exponent, because a timedelta with a large exponent would overflow.
    doublings = min(max(attempt - 1, 0), 20)
    return min(base * (1 << doublings), ceiling)


def retry_after(header_value: str | None, *, now: datetime) -> float | None:
    """Return the seconds in a Retry-After header, at most 3,600; None if the header is invalid."""
    if header_value is None:
        return None
    header_text = header_value.strip()
    max_seconds = LONGEST_RETRY_AFTER.total_seconds()
    if header_text.isascii() and header_text.isdigit():
        return max_seconds if len(header_text) > 6 else min(float(header_text), max_seconds)
    try:
        retry_time = parsedate_to_datetime(header_text)
        if retry_time.tzinfo is None:
            retry_time = retry_time.replace(tzinfo=UTC)
        return min(max((retry_time - now).total_seconds(), 0.0), max_seconds)
    except (ValueError, OverflowError, TypeError, IndexError):
        return None


def statuses(value: int | str | Iterable[int | str]) -> tuple[int, ...]:
    """Return the HTTP statuses in *value*, sorted and without duplicates.

    *value* is for example 404, `[404, 410]`, `range(500, 505)`, or the text `404, 500-599` or
    `none`. Raises `SettingsError` if *value* has another form.
    """
    try:
        status_numbers = set(_statuses_in(value))
    except (TypeError, ValueError):
        status_numbers = {0}
    if not all(status in _ALL_STATUSES for status in status_numbers):
        raise SettingsError(
            f"{value!r} is not a list of HTTP statuses: write numbers from 100 to 599, or a text "
            "such as 404,500-599"
        )
    return tuple(sorted(status_numbers))


def format_statuses(codes: Iterable[int]) -> str:
    """Return HTTP statuses as a short text such as `404,500-599`, or as `none`."""
    spans: list[list[int]] = []
    for status in sorted(codes):
        if spans and status == spans[-1][1] + 1:
            spans[-1][1] = status
        else:
            spans.append([status, status])
    span_texts = [f"{first}-{last}" if last > first else f"{first}" for first, last in spans]
    return ",".join(span_texts) or "none"


def _statuses_in(value: int | str | Iterable[int | str]) -> Iterator[int]:
    if isinstance(value, bool):
        raise TypeError
    if isinstance(value, int):
        yield value
    elif isinstance(value, str):
        yield from _statuses_in_text(value)
    else:
        for entry in value:
            yield from _statuses_in(entry)


def _statuses_in_text(text: str) -> Iterator[int]:
    if text.strip().lower() in ("", "none"):
        return
    for span_text in text.split(","):
        match = _STATUS_RANGE.fullmatch(span_text.strip())
        if match is None:
            raise ValueError(span_text)
        yield from range(int(match[1]), int(match[2] or match[1]) + 1)
