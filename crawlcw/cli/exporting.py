"""Items on their way out: JSON Lines, one item a line, in flat memory."""

import asyncio
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from crawlcw.errors import UsageError
from crawlcw.ledger.protocol import ItemRow, Ledger
from crawlcw.model import values

#: Among these are what JSON leaves as it is and a terminal acts on: DEL, C1
#: controls, marks that turn the direction of text.
_UNUSUAL = re.compile(r"[^\x20-\x7e]")


async def to_file(ledger: Ledger, path: Path, *, with_meta: bool = False) -> int:
    """Write every recorded item to *path*, whole or not at all; return how many."""
    with _replacing(path) as write:
        return await _write_items(ledger, write, with_meta=with_meta)


async def to_stdout(ledger: Ledger, *, with_meta: bool = False) -> int:
    """Write every recorded item to stdout; return how many."""
    # JSON is UTF-8 whatever the terminal's encoding.
    stream = sys.stdout.buffer
    shown = visible if sys.stdout.isatty() else str
    count = await _write_items(
        ledger, lambda line: stream.write(shown(line).encode()), with_meta=with_meta
    )
    stream.flush()
    return count


def check_writable(path: Path) -> None:
    """Raise `UsageError` where *path* cannot be written, before hours of work are done for it."""
    folder = path.resolve().parent
    if not folder.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {folder}")
    place = path if path.exists() else folder
    if path.is_dir() or not os.access(place, os.W_OK) or not os.access(folder, os.W_OK):
        raise UsageError(f"cannot write {path}: it is a folder, or this user may not write there")


def visible(line: str) -> str:
    r"""Return a line of JSON with what is not printable as `\u....`, which means the same."""
    return _UNUSUAL.sub(lambda m: m[0] if m[0].isprintable() else _escaped(m[0]), line[:-1]) + "\n"


async def _write_items(ledger: Ledger, write: Callable[[str], object], *, with_meta: bool) -> int:
    count = 0
    async for row in ledger.queries.items():
        write(_line(row, with_meta=with_meta))
        count += 1
        if count % 1000 == 0:
            # A ledger that answers from memory would keep signals waiting.
            await asyncio.sleep(0)
    return count


def _line(row: ItemRow, *, with_meta: bool) -> str:
    meta = {"_url": row.url, "_fetched_at": row.fetched_at} if with_meta else {}
    return values.to_json(row.item | meta) + "\n"


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


@contextmanager
def _replacing(path: Path) -> Iterator[Callable[[str], object]]:
    """Give what writes to `FILE.part`, which becomes *path* when the block ends well."""
    try:
        # Behind a link, the file is replaced and not the link; a device or a
        # pipe cannot be replaced.
        target = path.resolve()
        if target.exists() and not target.is_file():
            with target.open("w", encoding="utf-8", newline="\n") as stream:
                yield stream.write
            return
        part = target.with_name(target.name + ".part")
        try:
            with part.open("w", encoding="utf-8", newline="\n") as stream:
                yield stream.write
                stream.flush()
                os.fsync(stream.fileno())
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
