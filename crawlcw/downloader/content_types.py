"""Which bodies are not read: those that have no end or no text, by Content-Type and first bytes.

A picture that calls itself HTML is still a picture. PDF and what is only called
`application/octet-stream` are read: spiders want them, and there is nothing to tell them by.
"""

import re
from collections.abc import Sequence

#: So many bytes of a body tell what it is.
START = 512
#: What is read although the type before its slash is not.
_TEXT = ("image/svg+xml",)
_REFUSED = (
    *("audio/", "video/", "image/", "font/", "text/event-stream"),
    *("application/ogg", "application/font-", "application/vnd.ms-fontobject"),
    *("application/zip", "application/x-zip-compressed", "application/java-archive"),
    *("application/x-7z-compressed", "application/vnd.rar", "application/x-rar-compressed"),
    *(
        "application/x-tar",
        "application/x-iso9660-image",
        "application/vnd.android.package-archive",
    ),
    *("application/x-msdownload", "application/wasm"),
)
#: WHATWG MIME Sniffing, section 6, as far as no text begins like this.
_SIGNATURES = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"GIF87a", "image/gif"),
    (0, b"GIF89a", "image/gif"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (8, b"WEBPVP", "image/webp"),
    (0, b"\0\0\1\0", "image/x-icon"),
    (4, b"ftyp", "video/mp4"),
    (0, b"\x1a\x45\xdf\xa3", "video/webm"),
    (0, b"OggS\0", "application/ogg"),
    (0, b"ID3\3", "audio/mpeg"),
    (8, b"WAVE", "audio/wave"),
    (0, b"wOFF", "font/woff"),
    (0, b"wOF2", "font/woff2"),
    (0, b"PK\3\4", "application/zip"),
    (0, b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed"),
    (0, b"Rar!\x1a\7", "application/vnd.rar"),
    (0, b"\0asm", "application/wasm"),
)
#: Any of these: most pages begin with none, and one look tells.
_SIGNED = re.compile(
    b"|".join(b".{%d}%b" % (place, re.escape(mark)) for place, mark, _ in _SIGNATURES), re.DOTALL
)
#: What a server says of a body that it knows nothing about.
_SAYS_NOTHING = ("", "text/html", "text/plain", "application/xhtml+xml", "application/octet-stream")


def refused(content_type: str, *, accepted: Sequence[str] = ()) -> str | None:
    """Return the type, where a body that is announced as *content_type* is not to be read.

    *accepted* are types that are read nevertheless: `image/png`, `image/*`, `*/*`.
    """
    kind = _essence(content_type)
    if kind.startswith(_REFUSED) and kind not in _TEXT and not _is_among(kind, accepted):
        return kind
    return None


def refused_start(start: bytes, *, content_type: str, accepted: Sequence[str] = ()) -> str | None:
    """Return what a body is that begins with *start*, where it is not to be read.

    Only of a body whose *content_type* is that of pages, or says nothing.
    """
    if _SIGNED.match(start) is None or _essence(content_type) not in _SAYS_NOTHING:
        return None
    for place, signature, kind in _SIGNATURES:
        if start.startswith(signature, place):
            return refused(kind, accepted=accepted)
    return None


def _essence(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _is_among(kind: str, accepted: Sequence[str]) -> bool:
    family = kind.partition("/")[0]
    return any(each.lower() in (kind, f"{family}/*", "*/*") for each in accepted)
