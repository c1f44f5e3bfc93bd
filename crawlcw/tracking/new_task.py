"""Tasks to be added: one, or any number of them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task to be added, see `Tracker.add`."""

    key: str
    data: Mapping[str, Any] = field(default_factory=dict)
    priority: int = 0  #: higher first
    stage: str | None = None  #: None: the use case's first
    context: Mapping[str, Any] | None = None
    delay: timedelta = timedelta(0)


def in_chunks(things: Iterable[T], *, size: int) -> Iterator[list[T]]:
    """Yield the *things*, *size* at a time, and the rest."""
    left = iter(things)
    while chunk := list(islice(left, size)):
        yield chunk
