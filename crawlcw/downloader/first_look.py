"""A look at what is to be saved, before it is: what is an answer of another kind is no file."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from crawlcw.api.response import Response

#: So many bytes of a file are looked at.
LOOK = 1 << 16

_is_unwanted: ContextVar[Callable[[Response], bool] | None] = ContextVar(
    "is_unwanted", default=None
)


@contextmanager
def looking(is_unwanted: Callable[[Response], bool]) -> Iterator[None]:
    """Have files in the block saved only where *is_unwanted* is false of what they begin with.

    It is given a response with the first bytes as its body; one that is unwanted is
    returned like that, and nothing of it is kept.
    """
    token = _is_unwanted.set(is_unwanted)
    try:
        yield
    finally:
        _is_unwanted.reset(token)


def is_looking() -> bool:
    """Return whether anybody wants to see what is to be saved."""
    return _is_unwanted.get() is not None


def is_unwanted(response: Response) -> bool:
    """Return whether what *response* begins with is not to be saved."""
    asked = _is_unwanted.get()
    return asked is not None and asked(response)
