"""Tasks to be added: one, or any number of them."""

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
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


async def in_chunks(things: Iterable[T] | AsyncIterable[T], *, size: int) -> AsyncIterator[list[T]]:
    """Yield what *things* yield, *size* at a time, and what is left."""
    chunk: list[T] = []
    async for thing in _each(things):
        chunk.append(thing)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


async def _each(things: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    if isinstance(things, AsyncIterable):
        async for thing in things:
            yield thing
    else:
        for thing in things:
            yield thing
