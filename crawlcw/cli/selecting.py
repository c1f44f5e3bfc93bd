"""Which tasks a command is about, as it is said on the command line."""

import difflib
from contextlib import suppress
from datetime import timedelta

from crawlcw.api.request import Request
from crawlcw.errors import FetchError, Reason, SettingsError, UsageError
from crawlcw.ledger.protocol import Ledger
from crawlcw.model.durations import duration
from crawlcw.model.task import key_id
from crawlcw.tracking import keys


def task_of(ledger: Ledger, key: str) -> bytes:
    """Return the id of the task that *key*, or in a crawl a URL, names; raises `UsageError`."""
    if ledger.kind.tracked:
        return key_id(keys.key(key))
    try:
        return Request(key).identity()[1]
    except FetchError as error:
        raise UsageError(f"{key!r} is no URL: {error.message}") from None


def age(text: str) -> timedelta:
    """Return how long ago `--since` is."""
    try:
        return duration(text)
    except SettingsError as error:
        raise UsageError(f"--since: {error}") from None


def any_reason(text: str) -> Reason:
    """Return the reason that *text* is."""
    with suppress(ValueError):
        return Reason(text)
    near = difflib.get_close_matches(text, list(Reason), n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise UsageError(f"there is no reason {text!r}: {hint}there are {', '.join(sorted(Reason))}")
