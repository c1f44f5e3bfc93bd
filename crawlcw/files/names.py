"""Names of saved files; each contains a checksum and the sanitized name from the server.

A server's URL or header may call a file `../../.bashrc`, `CON` or a kilobyte of control characters.
A stored name begins with the checksum, so it is never empty, hidden or a Windows device.
"""

import re
import unicodedata
from itertools import groupby
from urllib.parse import unquote, unquote_to_bytes, urlsplit

import endec

from crawlcw.api.links import SKIPPED_EXTENSIONS

#: Maximum bytes between checksum and extension of a name, short enough for all file systems.
_LONGEST_STEM = 60
_LONGEST_HEADER = 10_000
#: Pattern for a parameter of Content-Disposition, whose value may have quotes.
_PARAMETER = re.compile(r'(?:^|;)\s*([^\s=;"]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"?|([^;]*))', re.DOTALL)
#: Pattern for the start of a Windows path; in such a path a backslash is not an escape.
_WINDOWS_PATH = re.compile(r"[A-Za-z]:\\")
_EXTENSION = re.compile(r"(?<=[^.])(?:\.tar)?\.[A-Za-z0-9]{1,8}\Z", re.ASCII | re.IGNORECASE)
_OFFICE = "vnd.openxmlformats-officedocument"
#: Common media types. A text has words `extension:subtype`, or one word if the extension and the
#: subtype are equal. Python's own table lacks many of these types, and differs between versions.
_TYPES = {
    "application": "7z:x-7z-compressed apk:vnd.android.package-archive bin:octet-stream "
    f"bz2:x-bzip2 doc:msword docx:{_OFFICE}.wordprocessingml.document epub:epub+zip gz:gzip "
    "gz:x-gzip jar:java-archive js:javascript json m3u8:vnd.apple.mpegurl "
    "odp:vnd.oasis.opendocument.presentation ods:vnd.oasis.opendocument.spreadsheet "
    "odt:vnd.oasis.opendocument.text ogg pdf ppt:vnd.ms-powerpoint ps:postscript "
    f"pptx:{_OFFICE}.presentationml.presentation rar:vnd.rar rar:x-rar-compressed rtf sql "
    "swf:x-shockwave-flash tar:x-tar torrent:x-bittorrent wasm xhtml:xhtml+xml "
    f"xls:vnd.ms-excel xlsx:{_OFFICE}.spreadsheetml.sheet xml xz:x-xz yaml zip "
    "zip:x-zip-compressed zst:zstd",
    "audio": "aac flac m4a:mp4 mid:midi mp3:mpeg mp3 ogg opus wav wav:x-wav weba:webm",
    "font": "otf ttf woff woff2",
    "image": "avif bmp gif heic ico:vnd.microsoft.icon ico:x-icon jpg:jpeg jpg jxl png "
    "svg:svg+xml tiff webp",
    "text": "css csv html ics:calendar js:javascript md:markdown tsv:tab-separated-values "
    "txt:plain vcf:vcard vcf:x-vcard vtt xml yaml",
    "video": "3gp:3gpp avi:x-msvideo mkv:x-matroska mov:quicktime mp4 mpeg ogv:ogg ts:mp2t webm",
    # The extensions in this last line have no common media type.
    "": "br conf db dll gml gpx h5 htm jsonl kml log npy parquet sqlite tex toml yml z",
}
_EXTENSIONS = [(kind, entry.partition(":")) for kind in _TYPES for entry in _TYPES[kind].split()]
_BY_TYPE = {f"{kind}/{entry[2] or entry[0]}": f".{entry[0]}" for kind, entry in _EXTENSIONS}
#: Extensions that a name keeps, even if the content type usually has another extension.
_KNOWN = SKIPPED_EXTENSIONS | {entry[0] for _, entry in _EXTENSIONS}
#: Unicode categories allowed in names: letters, numbers, and the marks that many scripts need.
_KEPT_CATEGORIES = ("L", "N", "M")


def stored_name(sha256: str, *, url: str, content_type: str, disposition: str) -> str:
    """Return the file name for a file with the checksum *sha256*.

    *disposition* is the Content-Disposition header, which has precedence over *url*. The extension
    comes from the server's name. If that extension is unknown, *content_type* decides.
    `stored_name` never raises an exception.
    """
    file_name = _last_part(_disposed(disposition)) or _last_part(unquote(_path(url)))
    match = _EXTENSION.search(file_name)
    extension = match[0].lower() if match else ""
    if extension.rpartition(".")[2] not in _KNOWN:
        kind = content_type.partition(";")[0].strip().lower()
        # `+json`, `+xml` and `+zip` name the syntax of a type (RFC 6839).
        syntax = f"application/{kind.rpartition('+')[2]}"
        extension = _BY_TYPE.get(kind) or _BY_TYPE.get(syntax) or extension
    stem = harmless(file_name[: match.start()] if match else file_name)
    return f"{sha256}-{stem}{extension}" if stem else f"{sha256}{extension}"


def _disposed(header: str) -> str:
    """Return the name in a Content-Disposition header, as browsers read it (RFC 6266)."""
    parameters: dict[str, str] = {}
    for name, quoted, token in _PARAMETER.findall(header[:_LONGEST_HEADER]):
        if not _WINDOWS_PATH.match(quoted):
            quoted = re.sub(r"\\(.)", r"\1", quoted)
        parameters.setdefault(name.lower(), quoted or token.strip())
    return _decoded_value(parameters.get("filename*", "")) or parameters.get("filename", "")


def _decoded_value(extended: str) -> str:
    """Return the text of an extended value (RFC 8187), or "" for an invalid one."""
    charset, _, tail = extended.partition("'")
    _, separator, encoded = tail.partition("'")
    if not separator:
        return ""
    try:
        return endec.decode(unquote_to_bytes(encoded), charset)
    except (ValueError, LookupError):  # invalid bytes, or an unknown charset
        return ""


def _path(url: str) -> str:
    try:
        return urlsplit(url).path
    except ValueError:
        return ""


def _last_part(path: str) -> str:
    parts = re.split(r"[/\\\0]", path)
    return next((part for part in reversed(parts) if part.strip(". ")), "")


def harmless(stem: str) -> str:
    """Return *stem*, shortened; a hyphen replaces each series of forbidden characters."""
    letters = "".join(
        "-" if key == "-" else "".join(run)
        for key, run in groupby(unicodedata.normalize("NFC", stem), key=_run_key)
    )
    stem_bytes = letters.strip("-").encode()[:_LONGEST_STEM]
    return stem_bytes.decode(errors="ignore").strip("-")


def _run_key(character: str) -> str:
    is_kept = unicodedata.category(character)[0] in _KEPT_CATEGORIES or character == "_"
    return "kept" if is_kept else "-"
