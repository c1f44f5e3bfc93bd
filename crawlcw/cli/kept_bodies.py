"""Notice about WARC files that stay when a ledger's data is deleted."""

from pathlib import Path

from crawlcw.api.settings import Settings
from crawlcw.archive.bodies import folder_of
from crawlcw.cli.numbers import counted
from crawlcw.model.sanitize import printable


def left(name: str, settings: Settings) -> str | None:
    """Return one sentence about the WARC files of a spider; None: it has none."""
    folder = folder_of(name, settings)
    sizes = _sizes(folder)
    if not sizes:
        return None
    how_many = f"{counted(len(sizes), 'file')}, {counted(sum(sizes), 'byte')}"
    return printable(f"the pages that it kept stay in {folder}: {how_many}", limit=400)


def _sizes(folder: Path) -> list[int]:
    try:
        return [path.stat().st_size for path in folder.glob("*.warc.gz*")]
    except OSError:
        return []
