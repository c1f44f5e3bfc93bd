"""XML that is a list of records, read a record at a time: sitemaps, RSS and Atom.

The reader is expat, and it is given no chance to do harm: nothing is fetched, a DTD
that declares an entity is refused, and nesting, tags, fields and records are bounded.
It forgives what people's generators do wrong: a bare `&`, entities of HTML, control
characters, prefixes that are not declared.

A body comes as text, a piece at a time: unpacked where it is gzip, decoded, and bounded. So a
sitemap of 50 MiB is never in memory as text, and one that was packed not as bytes.
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

#: What sitemaps.org allows for one file, unpacked.
LARGEST = 50 << 20
_GZIP = b"\x1f\x8b"
_PIECE = 1 << 16
#: Bytes in which a text says how it is encoded.
_HEAD = 1024
#: Each takes as long as some kilobytes of content.
_MAX_MEMBERS = 10_000
#: The attribute with the base of the links in an element (XML Base).
BASE = "xml:base"
_DEEPEST = 100
#: Characters of a tag or a comment, which expat reads as one; in older
#: versions each piece costs as much as all before it (CVE-2023-52425).
_LONGEST_TOKEN = 1 << 20
#: Bounds of the texts and attributes of a record, and of its fields: more is left out, and never
#: cut.
_LONGEST_RECORD = 1 << 18
_MOST_FIELDS = 1000
#: Characters of a base, which each link is put behind.
_LONGEST_BASE = 4096
#: Attributes that a DTD may declare: expat goes through those of an element at each of its tags.
_MOST_DECLARED = 100
_OF_XML = frozenset({"amp", "lt", "gt", "quot", "apos"})
#: A `&`, and the entity that it begins, if it begins one.
_AMPERSAND = re.compile(r"&(?:#\d{1,7};|#[xX][0-9a-fA-F]{1,6};|([A-Za-z][A-Za-z0-9]{1,30});)?")
_BEFORE_XML = re.compile(r"\A(?:\s*<!--(?:[^-]|-(?!->))*+-->)++\s*(?=<\?xml\s)")
_CDATA, _CDATA_END = "<![CDATA[", "]]>"
#: The beginning of an entity or of a mark at the end of a piece.
_CUT = re.compile(r"(?:&[#A-Za-z0-9]{0,32}|<!?\[?[A-Z]{0,5}|\]\]?)\Z")
_LONGEST_CUT = 40
_NO_CHARACTERS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def text_pieces(body: bytes, *, content_type: str | None = None) -> Iterator[str]:
    """Yield *body* as text, with U+FFFD for bytes that are not of its encoding.

    The first bytes tell whether it is gzip. A byte order mark, *content_type* or the
    first lines name the encoding, as for a page. Raises `XmlError` where
    the gzip is corrupt or has no end, and, behind the first 50 MiB, where there is more.
    """
    pieces = _bounded(_unpacked(body) if body.startswith(_GZIP) else _cut(body))
    first = next(pieces, b"")
    encoding = charset.choose(content_type, first[:_HEAD], is_xml=True)
    texts = charset.decoded(chain([first], pieces), encoding)
    yield next(texts).removeprefix("\ufeff")
    yield from texts


def _bounded(pieces: Iterable[bytes]) -> Iterator[bytes]:
    room = LARGEST
    for piece in pieces:
        yield piece[:room]
        room -= len(piece)
        if room < 0:
            raise XmlError(Reason.DOCUMENT_TOO_LARGE, f"it has more than {LARGEST >> 20} MiB")


def _cut(body: bytes) -> Iterator[bytes]:
    for start in range(0, len(body), _PIECE):
        yield body[start : start + _PIECE]


def _unpacked(body: bytes) -> Iterator[bytes]:
    inflate = zlib.decompressobj(16 + zlib.MAX_WBITS)
    members = 1
    for packed in _cut(body):
        rest = packed
        while rest:
            if inflate.eof:
                if not rest.startswith(_GZIP[:1]):
                    return  # browsers ignore what follows a member and is not another
                members += 1
                if members > _MAX_MEMBERS:
                    raise XmlError(Reason.CONTENT_ENCODING, "its gzip has too many members")
                inflate = zlib.decompressobj(16 + zlib.MAX_WBITS)
            try:
                piece = inflate.decompress(rest, _PIECE)
            except zlib.error as error:
                raise XmlError(Reason.CONTENT_ENCODING, f"its gzip is corrupt: {error}") from None
            if piece:
                yield piece
            rest = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
    if not inflate.eof:
        raise XmlError(Reason.PAYLOAD_TRUNCATED, "its gzip data is cut off")


@dataclass(slots=True, kw_only=True)
class Field:
    """A child of a record; its text is that of all that is in it."""

    name: str  #: without the prefix that the record's own name has; others stay: `dc:date`
    attributes: Mapping[str, str]
    text: str = ""


@dataclass(slots=True, kw_only=True)
class Record:
    """One record."""

    name: str  #: in lower case, without a prefix
    root: str  #: the name of the root element, likewise
    attributes: Mapping[str, str]
    content: str = ""  #: its text, if it has no fields
    base: str = ""  #: what its links are relative to, by `xml:base`; it may be relative itself
    fields: list[Field] = field(default_factory=list)

    def text(self, *names: str) -> str:
        """Return the text of the first field that has one of *names* and any text, else ""."""
        for name in names:
            for each in self.fields:
                if each.name == name and (text := each.text.strip()):
                    return text
        return ""


def joined(base: str, more: str) -> str:
    """Return *more* as it is relative to *base*; *base* where it is broken, or very long."""
    try:
        # The standard library's own, for a base may have neither scheme nor host.
        found = urljoin(base, more.strip())
    except ValueError:
        return base
    return found if len(found) <= _LONGEST_BASE else base


def records(
    pieces: Iterable[str], *, of: Mapping[str, frozenset[str]], what: str
) -> Iterator[Record]:
    """Yield the records of a document that comes in *pieces*.

    *of* has, for each root element that is known, the names of its records, wherever
    they are in it; *what* the document should be, for messages. Raises `XmlError`: of the
    reason `xml-unsafe` for XML that is built to do harm, `parse-error` for a body that is no
    XML or has another root. The records before that were yielded.
    """
    reader = _Reader(of, what)
    for piece in _mended(pieces):
        try:
            reader.feed(piece)
        except XmlError:
            yield from reader.taken()
            raise
        yield from reader.taken()
    reader.feed("", last=True)


def _mended(pieces: Iterable[str]) -> Iterator[str]:
    """Yield the pieces without the common mistakes that expat would stop at."""
    mending = _Mending()
    rest, begun = "", False
    for piece in pieces:
        text = rest + _NO_CHARACTERS.sub("", piece)
        if not begun:
            text = _BEFORE_XML.sub("", text).lstrip()  # nothing may be before `<?xml`
            begun = bool(text)
        cut = _CUT.search(text, max(0, len(text) - _LONGEST_CUT))
        end = len(text) if cut is None else cut.start()
        yield mending.of(text[:end])
        rest = text[end:]
    yield mending.of(rest)


class _Mending:
    """Makes entities those of XML, but in CDATA, where a `&` is one."""

    def __init__(self) -> None:
        self._in_cdata = False

    def of(self, text: str) -> str:
        """Return *text* mended; neither an entity nor a mark of CDATA may be cut by its end."""
        mended = []
        while text:
            mark = _CDATA_END if self._in_cdata else _CDATA
            part, found, text = text.partition(mark)
            mended += [part if self._in_cdata else _AMPERSAND.sub(_entity, part), found]
            self._in_cdata ^= bool(found)
        return "".join(mended)


def _entity(found: re.Match[str]) -> str:
    """Return an entity as XML has it by itself: a character, or a `&` that stands for no more."""
    text, name = found[0], found[1]
    if name in _OF_XML:
        return text
    if name is not None:
        # As numbers, for some of them are markup.
        characters = "".join(f"&#{ord(c)};" for c in html5.get(f"{name};", ""))
        return characters or f"&amp;{text[1:]}"
    if len(text) == 1:
        return "&amp;"
    number = int(text[3:-1], 16) if text[2] in "xX" else int(text[2:-1])
    is_character = number < 0x110000 and not _NO_CHARACTERS.match(chr(number))
    return f"&#{number};" if is_character else ""


class _Reader:
    """State between two pieces: the place in the document, and the open record."""

    def __init__(self, of: Mapping[str, frozenset[str]], what: str) -> None:
        self._of = of
        self._what = what
        self._root = ""
        self._names: frozenset[str] = frozenset()  #: of records, once the root is known
        self._depth = 0
        self._record: Record | None = None
        self._record_depth = 0
        self._prefix = ""  #: of the record's name
        self._texts: list[str] | None = None  #: of the field that is open
        self._bases: list[tuple[int, str]] = []  #: each with the depth of the element that has it
        self._declared = 0  #: attributes
        self._room = 0  #: characters that the record may still have
        self._found: list[Record] = []
        self._given = 0  #: bytes
        # No namespaces: half of those in use are declared nowhere.
        self._parser = parser = expat.ParserCreate("utf-8")
        parser.buffer_text = True
        parser.specified_attributes = True  # and none that a DTD has a value for
        parser.EntityDeclHandler = self._entity_declared
        parser.AttlistDeclHandler = self._attribute_declared
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text

    def feed(self, piece: str, *, last: bool = False) -> None:
        """Read a piece; raises `XmlError`."""
        content = piece.encode("utf-8", "replace")
        self._given += len(content)
        try:
            self._parser.Parse(content, last)
        except expat.ExpatError as error:
            raise XmlError(Reason.PARSE_ERROR, f"it is no well-formed XML: {error}") from None
        if self._given - self._parser.CurrentByteIndex > _LONGEST_TOKEN:
            raise XmlError(Reason.XML_UNSAFE, f"a tag in it is over {_LONGEST_TOKEN >> 20} MiB")

    def taken(self) -> list[Record]:
        """Return the records that have ended since the last call."""
        found, self._found = self._found, []
        return found

    @property
    def _base(self) -> str:
        return self._bases[-1][1] if self._bases else ""

    def _entity_declared(self, *_: object) -> None:
        raise XmlError(Reason.XML_UNSAFE, "its DTD declares an entity")

    def _attribute_declared(self, *_: object) -> None:
        self._declared += 1
        if self._declared > _MOST_DECLARED:
            raise XmlError(
                Reason.XML_UNSAFE, f"its DTD declares more than {_MOST_DECLARED} attributes"
            )

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise XmlError(Reason.XML_UNSAFE, f"it is nested more than {_DEEPEST} deep")
        tag = tag.lower()  # feeds of any spelling are read
        prefix, _, name = tag.rpartition(":")
        if self._record is None and BASE in attributes:
            self._bases.append((self._depth, joined(self._base, attributes[BASE])))
        if self._depth == 1:
            if name not in self._of:
                raise XmlError(Reason.PARSE_ERROR, f"it is no {self._what}, but <{tag}>")
            self._root, self._names = name, self._of[name]
        elif self._record is None:
            if name in self._names:
                self._record = Record(
                    name=name, root=self._root, attributes=attributes, base=self._base
                )
                self._record_depth, self._prefix = self._depth, prefix
                self._room = _LONGEST_RECORD
                self._texts = []
        elif self._depth == self._record_depth + 1:
            self._texts = None
            self._room -= sum(len(each) for each in (tag, *attributes, *attributes.values()))
            if self._room > 0 and len(self._record.fields) < _MOST_FIELDS:
                shown = name if prefix == self._prefix else tag
                self._record.fields.append(Field(name=shown, attributes=attributes))
                self._texts = []

    def _end(self, _tag: str) -> None:
        if self._record is not None:
            if self._depth == self._record_depth:
                self._record.content = "".join(self._texts or ())
                self._texts = None
                self._found.append(self._record)
                self._record = None
            elif self._depth == self._record_depth + 1 and self._texts is not None:
                self._record.fields[-1].text = "".join(self._texts)
                self._texts = None
        if self._bases and self._bases[-1][0] == self._depth:
            self._bases.pop()
        self._depth -= 1

    def _text(self, text: str) -> None:
        if self._texts is None:
            return
        self._room -= len(text)
        if self._room >= 0:
            self._texts.append(text)
        else:
            # The first part of a URL is another URL.
            self._texts = None
