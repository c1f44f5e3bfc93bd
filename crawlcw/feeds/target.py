"""Parse the argument of `-o`: the target and the format of an export."""

import re
from dataclasses import dataclass
from pathlib import Path

from crawlcw.errors import UsageError

STDOUT = "-"
FORMATS = ("jsonl", "json", "csv", "parquet")
_EXTENSIONS = {
    ".jsonl": "jsonl",
    ".jl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".parquet": "parquet",
}
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Place, format and compression of an export."""

    place: str  #: a path, a URL such as `s3://bucket/key`, or `-` for stdout
    format: str  #: one of `FORMATS`
    compression: str | None = None  #: `gzip`, `zstd` or None

    @property
    def is_stdout(self) -> bool:
        """Whether the feed goes to stdout."""
        return self.place == STDOUT

    @property
    def is_remote(self) -> bool:
        """Whether the place is a URL, which fsspec opens."""
        return _REMOTE.match(self.place) is not None

    @classmethod
    def parse(cls, text: str) -> "Target":
        """Return the target of *text*: a path or URL by its extension, `-`, or `-:FORMAT`.

        Raises `UsageError` for an unknown extension, and for a path without access.
        """
        name, colon, form = text.partition(":")
        if name == STDOUT and (colon or not form):
            return cls(place=STDOUT, format=_format(form) if colon else "jsonl")
        path = Path(text)
        try:
            is_special = path.exists() and not path.is_file() and not path.is_dir()
        except OSError as error:
            raise UsageError(f"cannot write {text}: {error.strerror}") from None
        if is_special:
            # A device or a named pipe has no extension.
            return cls(place=text, format="jsonl")
        *_, last = path.suffixes[-1:] or [""]
        compression = _COMPRESSIONS.get(last.lower())
        extension = (path.with_suffix("").suffix if compression else last).lower()
        if extension not in _EXTENSIONS:
            raise UsageError(
                f"{text!r} has no known format: end it in .jsonl, .json, .csv or .parquet, "
                "with a further .gz or .zst to compress it"
            )
        found = cls(place=text, format=_EXTENSIONS[extension], compression=compression)
        if found.format == "parquet" and compression:
            raise UsageError(f"{text!r}: a Parquet file is compressed already; leave {last} out")
        return found


def _format(form: str) -> str:
    if form not in FORMATS:
        raise UsageError(f"there is no format {form!r}: write -:{', -:'.join(FORMATS)}")
    return form
