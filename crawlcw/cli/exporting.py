"""Define the option `-o` for files of items, and write items safely to a terminal."""

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
    """Return a decorator that adds the repeatable option `-o` for files to write."""
    return click.option(
        "-o",
        "outputs",
        metavar="FILE[:CLASS]",
        multiple=True,
        required=required,
        callback=_targets,
        help=f"{about} a path that ends in .jsonl, .json, .csv or .parquet, optionally with .gz or "
        ".zst; or - for JSON Lines on stdout, or -:csv for CSV on stdout. :CLASS selects the items "
        "of one class. May be repeated.",
    )


def stdout() -> BinaryIO:
    """Return stdout as a stream for items; it escapes control sequences if stdout is a terminal."""
    # Write bytes, because items are UTF-8 even if the terminal has another encoding.
    stream = sys.stdout.buffer
    return cast("BinaryIO", _EscapingStream(stream)) if sys.stdout.isatty() else stream


class _EscapingStream(RawIOBase):
    """A stream that escapes control sequences before it writes to a terminal."""

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
        # Import `feeds` late, because it loads many modules and few commands write items to files.
        from crawlcw.feeds import export

        export.check(targets)
    return targets
