"""Callbacks that read a list of URLs, of any length, and no page with some links."""

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def url_list(callback: F) -> F:
    """Mark a callback of a spider as one that reads a list of URLs, such as a sitemap.

    It is a generator, or an async one. The requests that it yields go to the ledger some
    hundred at a time, while it runs, so that their number takes no memory and is not
    bounded by `max_links_per_page`. They lie as deep as the list itself. What it has
    yielded stays when it raises; run again, it adds nothing twice.
    """
    callback.is_url_list = True  # type: ignore[attr-defined]  # a function takes any attribute
    return callback


def is_url_list(callback: Callable[..., Any]) -> bool:
    """Return whether `url_list` has marked the function or method."""
    return getattr(callback, "is_url_list", False) is True
