"""Write items: the option `-o`, and safe output on a terminal."""

import sys
from collections.abc import Callable, Sequence
from io import RawIOBase
from typing import BinaryIO, ParamSpec, TypeVar, cast

import click

from crawlcw.feeds.escaping import visible
from crawlcw.feeds.target import Target

P = ParamSpec("P")
R = TypeVar("R")


def outputs_option(*, required: bool, about: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that adds `-o`: any number of targets, each checked for writing."""
    return click.option(
        "-o",
        "outputs",
        metavar="FILE",
        multiple=True,
        required=required,
        callback=_targets,
        help=f"{about} .jsonl, .json, .csv or .parquet, and .gz or .zst after it; "
        "- is stdout, -:csv is CSV on stdout. May be repeated.",
    )


def stdout() -> BinaryIO:
    """Return the stream for items; on a terminal, their control sequences are escaped."""
    # Write bytes, because JSON is UTF-8, whatever the terminal's encoding.
    stream = sys.stdout.buffer
    return cast("BinaryIO", _Terminal(stream)) if sys.stdout.isatty() else stream


class _Terminal(RawIOBase):
    """Writes to a terminal, with control sequences escaped."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self._stream = stream

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]  # the buffer is always bytes
        self._stream.write(visible(bytes(data).decode()).encode())
        return len(data)

    def flush(self) -> None:
        self._stream.flush()


def _targets(
    _ctx: click.Context, _parameter: click.Parameter, texts: Sequence[str]
) -> list[Target]:
    targets = [Target.parse(text) for text in texts]
    if targets:
        # Import it in this function: it loads many modules, and few commands write a feed.
        from crawlcw.feeds import export

        export.check(targets)
    return targets
