"""Read XML that is a list of records, such as a sitemap or a feed, one record at a time.

The reader uses expat. Harmful XML cannot do damage, because the reader fetches nothing and refuses
a DTD that declares an entity. The reader also limits the depth of elements, and the size of each
tag and record. The reader accepts common mistakes of programs that write XML: a bare `&`, entities
of HTML, control characters, undeclared prefixes.

The reader unpacks gzip, decodes the text and limits its size piece by piece, so that a sitemap of
50 MiB is never in memory as a whole.
"""

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from html.entities import html5
from itertools import chain
from urllib.parse import urljoin
from xml.parsers import expat

from crawlcw.api import charset
from crawlcw.errors import Reason, XmlError

#: Maximum size of an unpacked sitemap in bytes, by sitemaps.org.
LARGEST = 50 << 20
_GZIP = b"\x1f\x8b"
_PIECE = 1 << 16
#: Number of bytes at the start of a text that may contain the name of the text's encoding.
_HEAD = 1024
#: Maximum number of members in a gzip file. Opening a member takes as long as unpacking some KiB.
_MAX_MEMBERS = 10_000
#: The attribute with the base of the links in an element (XML Base).
BASE = "xml:base"
_DEEPEST = 100
#: Maximum length of a token, which is a tag or a comment. For each new piece of a token, older
#: versions of expat read the whole token again (CVE-2023-52425).
_LONGEST_TOKEN = 1 << 20
#: Two limits of a record: the characters in all of its texts and attributes, and its number of
#: fields. A text or attribute over a limit is left out completely, never cut.
_LONGEST_RECORD = 1 << 18
_MAX_FIELDS = 1000
#: Maximum length of a base URL in characters. A longer base would slow down the joining of links.
_LONGEST_BASE = 4096
#: Maximum number of attributes in a DTD, because expat reads all attributes of an element at each
#: tag.
_MAX_DECLARED = 100
_OF_XML = frozenset({"amp", "lt", "gt", "quot", "apos"})
#: A `&`, or the whole entity that begins with the `&`.
_AMPERSAND = re.compile(r"&(?:#\d{1,7};|#[xX][0-9a-fA-F]{1,6};|([A-Za-z][A-Za-z0-9]{1,30});)?")
_BEFORE_XML = re.compile(r"\A(?:\s*<!--(?:[^-]|-(?!->))*+-->)++\s*(?=<\?xml\s)")
_CDATA, _CDATA_END = "<![CDATA[", "]]>"
#: The end of a piece, if it may be a part of an entity or of a CDATA mark.
_CUT = re.compile(r"(?:&[#A-Za-z0-9]{0,32}|<!?\[?[A-Z]{0,5}|\]\]?)\Z")
_LONGEST_CUT = 40
_NO_CHARACTERS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def text_pieces(body: bytes, *, content_type: str | None = None) -> Iterator[str]:
    """Yield *body* as text, with U+FFFD for bytes that are invalid in the body's encoding.

    The first bytes of *body* decide whether it is gzip. A byte order mark, *content_type* or the
    first lines name the encoding, as for a page. Raises `XmlError` for corrupt or incomplete gzip,
    and after the first 50 MiB of a longer text.
    """
    pieces = _bounded(_unpacked_pieces(body) if body.startswith(_GZIP) else _cut_into_pieces(body))
    first_piece = next(pieces, b"")
    encoding = charset.choose(content_type, first_piece[:_HEAD], is_xml=True)
    texts = charset.decoded(chain([first_piece], pieces), encoding)
    yield next(texts).removeprefix("\ufeff")
    yield from texts


def _bounded(pieces: Iterable[bytes]) -> Iterator[bytes]:
    remaining_bytes = LARGEST
    for piece in pieces:
        yield piece[:remaining_bytes]
        remaining_bytes -= len(piece)
        if remaining_bytes < 0:
            raise XmlError(Reason.DOCUMENT_TOO_LARGE, f"it has more than {LARGEST >> 20} MiB")


def _cut_into_pieces(body: bytes) -> Iterator[bytes]:
    for start in range(0, len(body), _PIECE):
        yield body[start : start + _PIECE]


def _unpacked_pieces(body: bytes) -> Iterator[bytes]:
    inflate = zlib.decompressobj(16 + zlib.MAX_WBITS)
    member_count = 1
    for packed in _cut_into_pieces(body):
        packed_remainder = packed
        while packed_remainder:
            if inflate.eof:
                if not packed_remainder.startswith(_GZIP[:1]):
                    return  # browsers ignore trailing bytes
                member_count += 1
                if member_count > _MAX_MEMBERS:
                    raise XmlError(Reason.CONTENT_ENCODING, "its gzip has too many members")
                inflate = zlib.decompressobj(16 + zlib.MAX_WBITS)
            try:
                piece = inflate.decompress(packed_remainder, _PIECE)
            except zlib.error as error:
                raise XmlError(Reason.CONTENT_ENCODING, f"its gzip is corrupt: {error}") from None
            if piece:
                yield piece
            packed_remainder = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
    if not inflate.eof:
        raise XmlError(Reason.PAYLOAD_TRUNCATED, "its gzip data is cut off")


@dataclass(slots=True, kw_only=True)
class Field:
    """A child element of a record; `text` includes the text of the child's own children."""

    name: str  #: the element's name, with its prefix (`dc:date`) if it is not the record's prefix
    attributes: Mapping[str, str]
    text: str = ""


@dataclass(slots=True, kw_only=True)
class Record:
    """One record."""

    name: str  #: the element's name in lower case, without a prefix
    root: str  #: the root element's name in lower case, without a prefix
    attributes: Mapping[str, str]
    content: str = ""  #: text without fields
    base: str = ""  #: the `xml:base` of the record's links; may be relative
    fields: list[Field] = field(default_factory=list)

    def text(self, *names: str) -> str:
        """Return the text of the first field that is not empty, in the order of *names*, or ""."""
        for name in names:
            for element in self.fields:
                if element.name == name and (text := element.text.strip()):
                    return text
        return ""


def joined(base: str, more: str) -> str:
    """Resolve the URL *more* against *base*; return *base* if the URL is broken or very long."""
    try:
        # Use the standard library's `urljoin`, because a base may have neither scheme nor host.
        url = urljoin(base, more.strip())
    except ValueError:
        return base
    return url if len(url) <= _LONGEST_BASE else base


def records(
    pieces: Iterable[str], *, names_by_root: Mapping[str, frozenset[str]], label: str
) -> Iterator[Record]:
    """Yield the records of an XML document that comes in *pieces*.

    *names_by_root* maps each known root element to the elements that are records, all by their
    names. A record may be at any depth. *label* names the expected document in messages. Yields the
    records before an error, then raises `XmlError`. The reason of the `XmlError` is `xml-unsafe`
    for harmful XML, and `parse-error` if the body is not XML or has an unknown root.
    """
    reader = _Reader(names_by_root, label)
    for piece in _mended_text(pieces):
        try:
            reader.feed(piece)
        except XmlError:
            yield from reader.take_records()
            raise
        yield from reader.take_records()
    reader.feed("", last=True)


def _mended_text(pieces: Iterable[str]) -> Iterator[str]:
    """Correct the common mistakes in *pieces* that make expat fail, and yield the text."""
    mender = _Mending()
    unread_text, has_begun = "", False
    for piece in pieces:
        text = unread_text + _NO_CHARACTERS.sub("", piece)
        if not has_begun:
            text = _BEFORE_XML.sub("", text).lstrip()  # `<?xml` must be first
            has_begun = bool(text)
        cut_match = _CUT.search(text, max(0, len(text) - _LONGEST_CUT))
        end = len(text) if cut_match is None else cut_match.start()
        yield mender.of(text[:end])
        unread_text = text[end:]
    yield mender.of(unread_text)


class _Mending:
    """Replaces entities that XML does not have. In CDATA nothing changes, because `&` is text."""

    def __init__(self) -> None:
        self._in_cdata = False

    def of(self, text: str) -> str:
        """Return *text* without mistakes; *text* must not end within an entity or a CDATA mark."""
        mended_parts = []
        while text:
            cdata_mark = _CDATA_END if self._in_cdata else _CDATA
            head, delimiter, text = text.partition(cdata_mark)
            mended_parts += [
                head if self._in_cdata else _AMPERSAND.sub(_plain_entity, head),
                delimiter,
            ]
            self._in_cdata ^= bool(delimiter)
        return "".join(mended_parts)


def _plain_entity(match: re.Match[str]) -> str:
    """Return an entity in the form of plain XML: a character reference, or an escaped `&`."""
    text, name = match[0], match[1]
    if name in _OF_XML:
        return text
    if name is not None:
        # Write the characters of an entity as numbers, because some characters are markup.
        characters = "".join(f"&#{ord(c)};" for c in html5.get(f"{name};", ""))
        return characters or f"&amp;{text[1:]}"
    if len(text) == 1:
        return "&amp;"
    number = int(text[3:-1], 16) if text[2] in "xX" else int(text[2:-1])
    is_character = number < 0x110000 and not _NO_CHARACTERS.match(chr(number))
    return f"&#{number};" if is_character else ""


class _Reader:
    """Reads a document in pieces, and keeps the open record between two pieces."""

    def __init__(self, names_by_root: Mapping[str, frozenset[str]], label: str) -> None:
        self._names_by_root = names_by_root
        self._label = label
        self._root = ""
        self._record_names: frozenset[str] = frozenset()  #: names of records
        self._depth = 0
        self._record: Record | None = None
        self._record_depth = 0
        self._record_prefix = ""  #: of the record's name
        self._field_texts: list[str] | None = None  #: of the open field
        self._bases: list[tuple[int, str]] = []  #: `xml:base` of open elements, with their depths
        self._declared_count = 0  #: attributes
        self._free_characters = 0  #: left for the record
        self._ended_records: list[Record] = []
        self._bytes_read = 0  #: bytes
        # The parser ignores namespaces, because documents often do not declare the prefixes that
        # they use.
        self._parser = parser = expat.ParserCreate("utf-8")
        parser.buffer_text = True
        parser.specified_attributes = True  # ignore default values from a DTD
        parser.EntityDeclHandler = self._entity_declared
        parser.AttlistDeclHandler = self._attribute_declared
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text

    def feed(self, piece: str, *, last: bool = False) -> None:
        """Read the next piece of the document; raises `XmlError`."""
        content = piece.encode("utf-8", "replace")
        self._bytes_read += len(content)
        try:
            self._parser.Parse(content, last)
        except expat.ExpatError as error:
            raise XmlError(Reason.PARSE_ERROR, f"it is not well-formed XML: {error}") from None
        if self._bytes_read - self._parser.CurrentByteIndex > _LONGEST_TOKEN:
            raise XmlError(
                Reason.XML_UNSAFE, f"a tag in it is longer than {_LONGEST_TOKEN >> 20} MiB"
            )

    def take_records(self) -> list[Record]:
        """Return the records that have ended since the last `take_records`."""
        ended_records, self._ended_records = self._ended_records, []
        return ended_records

    @property
    def _base(self) -> str:
        return self._bases[-1][1] if self._bases else ""

    def _entity_declared(self, *_: object) -> None:
        raise XmlError(Reason.XML_UNSAFE, "its DTD declares an entity")

    def _attribute_declared(self, *_: object) -> None:
        self._declared_count += 1
        if self._declared_count > _MAX_DECLARED:
            raise XmlError(
                Reason.XML_UNSAFE, f"its DTD declares more than {_MAX_DECLARED} attributes"
            )

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise XmlError(Reason.XML_UNSAFE, f"it has more than {_DEEPEST} levels")
        tag = tag.lower()  # tags may be in upper case
        prefix, _, name = tag.rpartition(":")
        if self._record is None and BASE in attributes:
            self._bases.append((self._depth, joined(self._base, attributes[BASE])))
        if self._depth == 1:
            if name not in self._names_by_root:
                raise XmlError(Reason.PARSE_ERROR, f"it is <{tag}>, not a {self._label}")
            self._root, self._record_names = name, self._names_by_root[name]
        elif self._record is None:
            if name in self._record_names:
                self._record = Record(
                    name=name, root=self._root, attributes=attributes, base=self._base
                )
                self._record_depth, self._record_prefix = self._depth, prefix
                self._free_characters = _LONGEST_RECORD
                self._field_texts = []
        elif self._depth == self._record_depth + 1:
            self._field_texts = None
            self._free_characters -= sum(
                len(text) for text in (tag, *attributes, *attributes.values())
            )
            if self._free_characters > 0 and len(self._record.fields) < _MAX_FIELDS:
                field_name = name if prefix == self._record_prefix else tag
                self._record.fields.append(Field(name=field_name, attributes=attributes))
                self._field_texts = []

    def _end(self, _tag: str) -> None:
        if self._record is not None:
            if self._depth == self._record_depth:
                self._record.content = "".join(self._field_texts or ())
                self._field_texts = None
                self._ended_records.append(self._record)
                self._record = None
            elif self._depth == self._record_depth + 1 and self._field_texts is not None:
                self._record.fields[-1].text = "".join(self._field_texts)
                self._field_texts = None
        if self._bases and self._bases[-1][0] == self._depth:
            self._bases.pop()
        self._depth -= 1

    def _text(self, text: str) -> None:
        if self._field_texts is None:
            return
        self._free_characters -= len(text)
        if self._free_characters >= 0:
            self._field_texts.append(text)
        else:
            # Drop the whole text over the limit, because the first part of a URL would be a
            # different URL.
            self._field_texts = None
