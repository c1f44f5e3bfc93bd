"""What commands say of WARC files that stay behind: a ledger may go, and they are not its own."""

from pathlib import Path

from crawlcw.api.settings import Settings
from crawlcw.archive.bodies import folder_of
from crawlcw.model.sanitize import printable


def left(name: str, settings: Settings) -> str | None:
    """Return one sentence about the WARC files of a spider; None where there are none."""
    folder = folder_of(name, settings)
    sizes = _sizes(folder)
    if not sizes:
        return None
    files = "1 file" if len(sizes) == 1 else f"{len(sizes):,} files"
    return printable(
        f"the pages that it kept stay in {folder}: {files}, {sum(sizes):,} bytes", limit=400
    )


def _sizes(folder: Path) -> list[int]:
    try:
        return [path.stat().st_size for path in folder.glob("*.warc.gz*")]
    except OSError:
        return []
