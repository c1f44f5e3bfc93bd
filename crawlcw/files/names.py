"""Names of saved files: the checksum, and the sanitized name from the server.

URL and headers come from the server and may name `../../.bashrc`, `CON` or a kilobyte
of control characters. The checksum comes first, so a name is never empty, hidden or a
device's.
"""

import mimetypes
import re
import unicodedata
from functools import cache
from itertools import groupby
from urllib.parse import unquote, unquote_to_bytes, urlsplit

#: Bytes of the readable part; with checksum and extension about 140, which all file systems
#: allow.
_LONGEST_STEM = 60
_LONGEST_HEADER = 10_000
#: A parameter of Content-Disposition: its name, and its value, quoted or not.
_PARAMETER = re.compile(r'(?:^|;)\s*([^\s=;"]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"?|([^;]*))', re.DOTALL)
#: Windows paths have backslashes that are not escapes.
_WINDOWS_PATH = re.compile(r"[A-Za-z]:\\")
_EXTENSION = re.compile(r"(?<=[^.])(?:\.tar)?\.[A-Za-z0-9]{1,8}\Z", re.ASCII | re.IGNORECASE)
#: Kept Unicode categories: letters, numbers, and the marks that many scripts need.
_KEPT = ("L", "N", "M")


def stored_name(sha256: str, *, url: str, content_type: str, disposition: str) -> str:
    """Return the name of a file with this content, one component of a path.

    *disposition* is the Content-Disposition header, which has precedence over *url*.
    The extension is that of the name or, if unknown, that of *content_type*. Never
    raises, whatever the arguments contain.
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
    """Return Python's own table: names must not depend on the machine's tables."""
    # Not at import: Python first reads the machine's tables, which takes 20 ms.
    return mimetypes.MimeTypes()


def _disposed(header: str) -> str:
    """Return the name in a Content-Disposition header, as browsers read it (RFC 6266)."""
    found: dict[str, str] = {}
    for name, quoted, token in _PARAMETER.findall(header[:_LONGEST_HEADER]):
        if not _WINDOWS_PATH.match(quoted):
            quoted = re.sub(r"\\(.)", r"\1", quoted)
        found.setdefault(name.lower(), quoted or token.strip())
    return _decoded(found.get("filename*", "")) or found.get("filename", "")


def _decoded(extended: str) -> str:
    """Return the text of an extended value (RFC 8187), or "" for an invalid one."""
    charset, _, rest = extended.partition("'")
    _, separator, encoded = rest.partition("'")
    if not separator:
        return ""
    try:
        return unquote_to_bytes(encoded).decode(charset)
    except (ValueError, LookupError):  # not in this charset, or an unknown charset
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
    """Return *stem* with a hyphen for each run of other characters than letters and numbers."""
    letters = "".join(
        "-" if same == "-" else "".join(run)
        for same, run in groupby(unicodedata.normalize("NFC", stem), key=_kept)
    )
    cut = letters.strip("-").encode()[:_LONGEST_STEM]
    return cut.decode(errors="ignore").strip("-")


def _kept(character: str) -> str:
    is_kept = unicodedata.category(character)[0] in _KEPT or character == "_"
    return "kept" if is_kept else "-"
