"""Parse the values of options that select tasks: key, age, host, reason."""

import difflib
from collections.abc import Collection
from datetime import timedelta

from crawlcw.api.request import Request
from crawlcw.errors import FetchError, Reason, SettingsError, UsageError
from crawlcw.ledger.protocol import Ledger
from crawlcw.model import urls
from crawlcw.model.durations import duration
from crawlcw.model.task import key_id


def task_of(ledger: Ledger, key: str) -> bytes:
    """Return the id of the task with this key, or in a crawl this URL; raises `UsageError`."""
    if ledger.kind.tracked:
        from crawlcw.tracking import keys  # imports all of tracking, which a crawl does not need

        return key_id(keys.key(key))
    try:
        return Request(key).identity()[1]
    except FetchError as error:
        # The error shows the URL without its password.
        raise UsageError(f"not a URL: {error.message}") from None


def age(text: str, *, option: str = "--since") -> timedelta:
    """Return the duration that *option* was given; raises `UsageError`."""
    try:
        return duration(text)
    except SettingsError as error:
        raise UsageError(f"{option}: {error}") from None


def host(text: str) -> str:
    """Return the host of a host name, `host:port` or URL, as tasks store it."""
    try:
        return urls.locate(text if "://" in text else f"http://{text}/").host
    except FetchError:
        raise UsageError(f"{text!r} is not a host: write host or host:port") from None


def any_reason(text: str, known: Collection[Reason] = tuple(Reason)) -> Reason:
    """Return the reason named *text*, one of *known*; raises `UsageError`."""
    if text in known:
        return Reason(text)
    near = difflib.get_close_matches(text, known, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise UsageError(f"there is no reason {text!r}: {hint}there are {', '.join(sorted(known))}")
