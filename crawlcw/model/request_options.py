"""What one request asks for instead of its spider's settings; it is stored with its task."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """None: as the settings say. All values are plain, see `model.values`."""

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
        """Return what is asked for, by name."""
        if self is NO_OPTIONS:
            return {}
        named = {name: getattr(self, name) for name in _NAMES}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in named.items()
            if value is not None
        }

    @classmethod
    def from_document(cls, found: Mapping[str, Any] | None) -> "RequestOptions":
        """Return what `to_document` was called on; names of a newer crawlcw are left out."""
        if not found:
            return NO_OPTIONS
        named = {name: found.get(name) for name in _NAMES}
        values: dict[str, Any] = {name: _unchanging(value) for name, value in named.items()}
        return cls(**values)


_NAMES = tuple(field.name for field in fields(RequestOptions))
#: Those of nearly every request: one object, so that they are told at a glance.
NO_OPTIONS = RequestOptions()


def _unchanging(value: object) -> object:
    """Return a stored value with tuples for its lists."""
    return tuple(_unchanging(each) for each in value) if isinstance(value, list) else value
