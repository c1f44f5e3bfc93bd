"""What a saved file is called: its checksum, and what its server calls it, made harmless.

The URL and the headers are the server's, which may say `../../.bashrc`, `CON` or a
kilobyte of control characters. The checksum comes first, so two names are equal
where the contents are, and a name is never empty, hidden or a device's.
"""

import mimetypes
import re
import unicodedata
from email.message import Message
from itertools import groupby
from urllib.parse import unquote, urlsplit

#: Bytes of the readable part; with the checksum and an extension some 140, and all
#: file systems take that many.
_LONGEST_STEM = 60
_LONGEST_HEADER = 1000
_EXTENSION = re.compile(r"(?<=[^.])(?:\.tar)?\.[A-Za-z0-9]{1,8}\Z", re.ASCII | re.IGNORECASE)
#: Of Unicode's categories: letters, numbers, and the marks that letters of many scripts need.
_KEPT = ("L", "N", "M")
#: Python's own table: that of the machine would make other names on another one.
_TYPES = mimetypes.MimeTypes()
_EXTENSIONS = frozenset({*_TYPES.types_map[True], *_TYPES.encodings_map})


def stored_name(sha256: str, *, url: str, content_type: str, disposition: str) -> str:
    """Return the name of a file with this content, one component of a path.

    *disposition* is the Content-Disposition header, which names the file before its
    *url* does; the extension is that of the name or, where it has none that is
    known, that of *content_type*. Nothing that these hold makes it raise.
    """
    named = _last_part(_disposed(disposition)) or _last_part(unquote(_path(url)))
    found = _EXTENSION.search(named)
    extension = found[0].lower() if found else ""
    if "." + extension.rpartition(".")[2] not in _EXTENSIONS:
        announced = _TYPES.guess_extension(content_type.partition(";")[0].strip().lower())
        extension = announced or extension
    stem = _harmless(named[: found.start()] if found else named)
    return f"{sha256}-{stem}{extension}" if stem else f"{sha256}{extension}"


def _disposed(header: str) -> str:
    if "filename" not in header.lower():
        return ""
    message = Message()
    try:
        message["Content-Disposition"] = header[:_LONGEST_HEADER]
        return message.get_filename() or ""
    except (ValueError, LookupError):  # RFC 2231, with a charset that nobody knows
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
