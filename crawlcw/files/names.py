"""What a saved file is called: its checksum, and what its server calls it, made harmless.

The URL and the headers are the server's, which may say `../../.bashrc`, `CON` or a
kilobyte of control characters. The checksum comes first, so two names are equal
where the contents are, and a name is never empty, hidden or a device's.
"""

import mimetypes
import re
import unicodedata
from functools import cache
from itertools import groupby
from urllib.parse import unquote, unquote_to_bytes, urlsplit

#: Bytes of the readable part; with the checksum and an extension some 140, and all
#: file systems take that many.
_LONGEST_STEM = 60
_LONGEST_HEADER = 10_000
#: A parameter of Content-Disposition: its name, and its value in quotes or without.
_PARAMETER = re.compile(r'(?:^|;)\s*([^\s=;"]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"?|([^;]*))', re.DOTALL)
#: Paths of Windows come with backslashes that escape nothing.
_WINDOWS_PATH = re.compile(r"[A-Za-z]:\\")
_EXTENSION = re.compile(r"(?<=[^.])(?:\.tar)?\.[A-Za-z0-9]{1,8}\Z", re.ASCII | re.IGNORECASE)
#: Of Unicode's categories: letters, numbers, and the marks that letters of many scripts need.
_KEPT = ("L", "N", "M")


def stored_name(sha256: str, *, url: str, content_type: str, disposition: str) -> str:
    """Return the name of a file with this content, one component of a path.

    *disposition* is the Content-Disposition header, which names the file before its
    *url* does; the extension is that of the name or, where it has none that is
    known, that of *content_type*. Nothing that these hold makes it raise.
    """
    named = _last_part(_disposed(disposition)) or _last_part(unquote(_path(url)))
    found = _EXTENSION.search(named)
    extension = found[0].lower() if found else ""
    types = _types()
    known = "." + extension.rpartition(".")[2]
    if known not in types.types_map[True] and known not in types.encodings_map:
        announced = types.guess_extension(content_type.partition(";")[0].strip().lower())
        extension = announced or extension
    stem = _harmless(named[: found.start()] if found else named)
    return f"{sha256}-{stem}{extension}" if stem else f"{sha256}{extension}"


@cache
def _types() -> mimetypes.MimeTypes:
    """Return Python's own table: that of the machine would make other names on another one."""
    # Not when this is imported: Python reads the machine's tables first, 20 ms of each start.
    return mimetypes.MimeTypes()


def _disposed(header: str) -> str:
    """Return the name that a Content-Disposition header has, as browsers read it (RFC 6266)."""
    found: dict[str, str] = {}
    for name, quoted, token in _PARAMETER.findall(header[:_LONGEST_HEADER]):
        if not _WINDOWS_PATH.match(quoted):
            quoted = re.sub(r"\\(.)", r"\1", quoted)
        found.setdefault(name.lower(), quoted or token.strip())
    return _decoded(found.get("filename*", "")) or found.get("filename", "")


def _decoded(extended: str) -> str:
    """Return the text of an extended value (RFC 8187), "" where it is none."""
    charset, _, rest = extended.partition("'")
    _, separator, encoded = rest.partition("'")
    if not separator:
        return ""
    try:
        return unquote_to_bytes(encoded).decode(charset)
    except (ValueError, LookupError):  # not of this charset, or of one that nobody knows
        return ""


def _path(url: str) -> str:
    try:
        return urlsplit(url).path
    except ValueError:
        return ""


def _last_part(path: str) -> str:
    parts = re.split(r"[/\\\0]", path)
    return next((part for part in reversed(parts) if part.strip(". ")), "")


def _harmless(stem: str) -> str:
    """Return *stem* with a hyphen for each run of what is no letter or number."""
    letters = "".join(
        "-" if same == "-" else "".join(run)
        for same, run in groupby(unicodedata.normalize("NFC", stem), key=_kept)
    )
    cut = letters.strip("-").encode()[:_LONGEST_STEM]
    return cut.decode(errors="ignore").strip("-")


def _kept(character: str) -> str:
    is_kept = unicodedata.category(character)[0] in _KEPT or character == "_"
    return "kept" if is_kept else "-"
