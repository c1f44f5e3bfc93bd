"""Items on their way out of a command: `-o`, and what a terminal is shown of them."""

import sys
from collections.abc import Callable, Sequence
from io import RawIOBase
from typing import BinaryIO, ParamSpec, TypeVar, cast

import click

from crawlcw.feeds.inert import visible
from crawlcw.feeds.target import Target

P = ParamSpec("P")
R = TypeVar("R")


def outputs_option(*, required: bool, about: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return what adds `-o` to a command: any number of targets, all of which can be written."""
    return click.option(
        "-o",
        "outputs",
        metavar="FILE",
        multiple=True,
        required=required,
        callback=_targets,
        help=f"{about} .jsonl, .json, .csv or .parquet, and .gz or .zst behind it; "
        "- is stdout, -:csv as CSV. May be repeated.",
    )


def stdout() -> BinaryIO:
    """Return the stream for items; where it is a terminal, nothing in them can act on it."""
    # JSON is UTF-8 whatever the terminal's encoding.
    stream = sys.stdout.buffer
    return cast("BinaryIO", _Terminal(stream)) if sys.stdout.isatty() else stream


class _Terminal(RawIOBase):
    """Shows what is written to it, with what a terminal would act on escaped."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self._stream = stream

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]  # no other buffer comes here
        self._stream.write(visible(bytes(data).decode()).encode())
        return len(data)

    def flush(self) -> None:
        self._stream.flush()


def _targets(
    _ctx: click.Context, _parameter: click.Parameter, texts: Sequence[str]
) -> list[Target]:
    targets = [Target.parse(text) for text in texts]
    if targets:
        # Few crawls write a feed; its forms and places are many modules.
        from crawlcw.feeds import export

        export.check(targets)
    return targets
