"""Encoding of a page, and its bytes as text."""

import codecs
import time
from collections.abc import Iterable
from hashlib import sha256
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlcw.api.charset import choose, content_type, decode, decoded, named, python_name
from crawlcw.model.urls import encoded

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("content_type", "body", "encoding"),
    [
        (None, b"", "utf-8"),
        (None, "ü".encode(), "utf-8"),
        (None, b"\xfc", "windows-1252"),
        (None, "üü".encode()[:3], "utf-8"),
        ("text/html; charset=utf-8", b"\xfc", "utf-8"),
        ("text/html; charset=ISO-8859-1", b"\xfc", "windows-1252"),
        ("text/html; charset=gb2312", b"a", "gbk"),
        ('text/html; charset="koi8-r"', b"a", "koi8-r"),
        ("text/html", b"<meta charset=windows-1251>", "windows-1251"),
        ("text/html; charset=utf-8", b"<meta charset=windows-1251>", "utf-8"),
        (None, b"<meta charset=utf-16>", "utf-8"),
        (None, b" " * 1024 + b"<meta charset=windows-1251>", "utf-8"),
        ("text/html; charset=koi8-r", codecs.BOM_UTF8 + b"a", "utf-8"),
        ("text/html; charset=koi8-r", codecs.BOM_UTF16_LE, "utf-16le"),
        ("text/html; charset=koi8-r", codecs.BOM_UTF16_BE, "utf-16be"),
    ],
)
def test_the_encoding_is_the_one_a_browser_would_choose(content_type, body, encoding):
    assert choose(content_type, body) == encoding


#: Labels of the Encoding Standard that Python does not know, or maps to another encoding.
LABELS = {
    "x-gbk": "gbk",
    "cn-big5": "big5",
    "x-euc-jp": "euc-jp",
    "windows-31j": "shift_jis",
    "ks_c_5601-1989": "euc-kr",
    "iso-8859-8-i": "iso-8859-8-i",
    "koi8-ru": "koi8-u",
    "iso-8859-11": "windows-874",
    "x-mac-ukrainian": "x-mac-cyrillic",
    "unicode-1-1-utf-8": "utf-8",
    "latin5": "windows-1254",
    "hz-gb-2312": "replacement",
    # Names that `python_name` returns.
    "cp932": "shift_jis",
    "big5hkscs": "big5",
}


@pytest.mark.parametrize("label", LABELS)
def test_a_label_means_what_it_means_on_the_web(label: str):
    assert choose(f"text/html;charset={label}", b"\xff") == LABELS[label]
    assert choose(f'text/html; a="; charset=x"; Charset="{label}"; b', b"\xff") == LABELS[label]
    assert choose(None, b"<meta charset=' " + label.encode() + b" '>\xff") == LABELS[label]
    assert (
        choose(None, b"<?xml version='1.0' encoding='" + label.encode() + b"'?>\xff")
        == (LABELS[label])
    )
    assert named(label) == LABELS[label]


def test_a_utf_16_that_could_be_read_is_none():
    for label in b"utf-16", b"UCS-2", b"unicodefffe":
        assert choose(None, b"<meta charset=" + label + b">") == "utf-8"
        assert choose(None, b'<?xml encoding="' + label + b'"?>\xff') == "utf-8"
    assert choose("text/html; charset=unicode", b"a\0") == "utf-16le"


# --- HTML standard, "prescan a byte stream to determine its encoding"

PRAGMA = b"<meta http-equiv=Content-Type content='text/html; charset=koi8-r'>"


@pytest.mark.parametrize(
    "head",
    [
        PRAGMA,
        b"<META/CONTENT='charset = \"koi8-r\"'\nHTTP-EQUIV=content-type>",
        b"<meta charset=bogus><meta charset=koi8-r>",
        b"<meta charset=><meta name=charset content=utf-8><meta charset=koi8-r>",
        b"<meta content='text/html; charset=utf-8'><meta charset=koi8-r>",
        b"<?xml encoding='bogus'?><meta charset=koi8-r>",
        b"<!-- <meta charset=utf-8> --><meta charset=koi8-r>",
        b"<!--><meta charset=koi8-r>-->",
        b"<a title='<meta charset=utf-8>'><meta charset=koi8-r>",
        b"<metadata charset=utf-8><meta charset=koi8-r charset=utf-8>",
        b"<? <meta charset=utf-8 ?><meta charset=koi8-r>",
        b"<body><p><meta charset=koi8-r>",
    ],
)
@pytest.mark.parametrize("before", [0, 2000, 200_000])
def test_the_first_meta_with_a_charset_counts_wherever_it_stands(head: bytes, before: int):
    assert choose(None, b" " * before + head + b"\xc1") == "koi8-r"


@pytest.mark.parametrize("tag", ["script", "STYLE", "textarea", "title", "noframes"])
def test_behind_the_first_kilobyte_a_text_that_looks_like_a_meta_is_none(tag: str):
    text = f"<{tag} id='>'>" + "x" * 2000 + f"</head><meta charset=utf-8></{tag[:3]}>"
    end = f"</{tag.upper()}><meta charset=koi8-r>"

    assert choose(None, text.encode() + end.encode() + b"\xc1") == "koi8-r"
    assert choose(None, text.encode() + b"\xc1") == "windows-1252"


@pytest.mark.parametrize(
    "unit",
    [
        *(b"<meta ", b"<meta charset=", b"<meta charset='", b"<!--", b'<a b="', b"<script>", b"<"),
        *(b"<meta content=charset= http-equiv=content-type>", b"</script", b"=\t", b"charset"),
    ],
)
def test_no_page_takes_long(unit: bytes):
    body = b"\xff" + unit * (2_000_000 // len(unit)) + b"<meta charset=koi8-r>"
    began = time.process_time()

    choose(None, body)

    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    "label",
    [
        "utf-7", "punycode", "unicode_escape", "raw_unicode_escape", "idna", "rot13", "base64",
        "zlib", "hex", "undefined", "mbcs", "oem", "nonsense", "../../etc", "x" * 100, "\0",
        "\ud800", "utf-8\0", "cp037", "utf-32",
    ],
)  # fmt: skip
def test_an_encoding_of_pythons_own_is_never_used(label: str):
    assert choose(f"text/html; charset={label}", b"a") == "utf-8"
    assert choose(None, b"<meta charset=" + label.encode(errors="replace") + b">") == "utf-8"


@given(st.none() | st.text().map(lambda label: f"text/html; charset={label}"), st.binary())
def test_whatever_is_chosen_decodes(content_type, body):
    text = decode(body, choose(content_type, body))

    text.encode()


# --- WHATWG Encoding: indexes and decoders


def table(encoding: str, leads: Iterable[int], trails: Iterable[int], before: bytes = b"") -> str:
    """Return the characters of all pairs of bytes that are one character."""
    pairs = (decode(bytes((*before, *pair)), encoding) for pair in product(leads, trails))
    return "".join(text for text in pairs if len(text) == 1 and text != "\ufffd")


EUC = range(0xA1, 0xFF)
TRAILS = [*range(0x40, 0x7F), *range(0x80, 0xFF)]
#: Of each index as published (index-jis0208.txt and so on, of 2024-09-18): characters, SHA-256.
INDEXES = {
    "jis0208": (("euc-jp", EUC, EUC), 7336, "a217d8755e0832bc"),
    "jis0212": (("euc-jp", EUC, EUC, b"\x8f"), 6067, "6ad3bfa0c33c357e"),
    "big5": (("big5", range(0x81, 0xFF), TRAILS), 18590, "ab08ade293c35517"),
    "euc-kr": (("euc-kr", range(0x81, 0xFF), range(0x41, 0xFF)), 17048, "f49bf642f090c1ce"),
    "gb18030": (("gb18030", range(0x81, 0xFF), TRAILS), 23940, "85373408efe24c65"),
}
SINGLE_BYTE = """ibm866 iso-8859-2 iso-8859-3 iso-8859-4 iso-8859-5 iso-8859-6 iso-8859-7 iso-8859-8
iso-8859-10 iso-8859-13 iso-8859-14 iso-8859-15 iso-8859-16 koi8-r koi8-u macintosh windows-874
windows-1250 windows-1251 windows-1252 windows-1253 windows-1254 windows-1255 windows-1256
windows-1257 windows-1258 x-mac-cyrillic"""


def digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]


@pytest.mark.parametrize("index", INDEXES)
def test_all_characters_are_those_of_the_published_index(index: str):
    arguments, count, checksum = INDEXES[index]
    text = table(*arguments)

    assert (len(text), digest(text)) == (count, checksum)


def test_the_tables_of_one_byte_are_those_of_the_published_indexes():
    text = "".join(decode(bytes(range(128, 256)), name) for name in SINGLE_BYTE.split())

    assert digest(text) == "d1249ec9189e2cc9"


@pytest.mark.parametrize(
    ("encoding", "body", "text"),
    [
        ("shift_jis", b"\x87\x40\xf0\x40\xfc\x4b\x81\x60\x80\xa0", "①\ue000黑\uff5e\x80\ufffd"),
        ("iso-2022-jp", b"\x1b$B-!!A\x1b(I1\x1b(J~\x1b(Ba", "①\uff5eｱ‾a"),
        ("iso-2022-jp", b"\x1b(B\x1b(Ba\x0e", "\ufffda\ufffd"),
        ("big5", b"\xa3\xe1\x88\x62\xa1\x45", "€\xca\u0304‧"),
        ("gbk", b"\x80\xa2\xe3\x81\x30\x81\x30", "€€\x80"),
        ("gb18030", b"\xa6\xd9\x84\x31\x82\x36\x94\x39\xda\x33", "︐︐\U0001f4a9"),
        ("windows-874", b"\x80\xdb", "€\ufffd"),
        ("windows-1252", b"\x80\x81", "€\x81"),
        ("windows-1255", b"\xca", "\u05ba"),
        ("koi8-u", b"\xae", "ў"),
        ("x-user-defined", b"a\x80\xff", "a\uf780\uf7ff"),
        ("replacement", b"<p>", "\ufffd"),
        ("replacement", b"", ""),
        ("utf-16le", b"\xff\xfea\0\x3d\xd8b\0c", "a\ufffdb\ufffd"),
        ("utf-8", b"\xef\xbb\xbf\xf0\x9f\x98<\xc0\x80", "\ufffd<\ufffd\ufffd"),
        # How many bytes make one U+FFFD: a byte of ASCII is never one of them.
        ("shift_jis", b"\x81<\x81\xff\x81", "\ufffd<\ufffd\ufffd"),
        ("euc-jp", b"\xa1<\x8f\xa1<\xa1\x80\x8e\xe0a", "\ufffd<\ufffd<\ufffd\ufffda"),
        ("big5", b"\x81<\x81\xff\x81", "\ufffd<\ufffd\ufffd"),
        ("euc-kr", b"\x81<\x81\xff\xc8<", "\ufffd<\ufffd\ufffd<"),
        ("gb18030", b"\x810\x81<\x81\x30\xffa", "\ufffd0\ufffd<\ufffd0\ufffda"),
        ("iso-2022-jp", b"\x1b$B!\x1b(B<\x1b$", "\ufffd<\ufffd$"),
    ],
)
def test_bytes_are_the_text_that_a_browser_shows(encoding: str, body: bytes, text: str):
    assert decode(body, encoding) == text
    assert python_name(encoding) == codecs.lookup(python_name(encoding)).name


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("encoding", ["euc-jp", "shift_jis", "gb18030", "iso-2022-jp", "koi8-r"])
def test_a_text_that_comes_in_pieces_is_the_same(encoding: str, size: int):
    body = encoded("".join(f"<p>第{n}①\n" for n in range(200)), encoding)
    pieces = [body[start : start + size] for start in range(0, len(body), size)]

    assert "".join(decoded(pieces, encoding)) == decode(body, encoding)


def test_a_text_that_never_ends_a_tag_or_a_line_does_not_fill_the_memory():
    texts = list(decoded([b"\x88\x9f" * 1000] * 1100, "shift_jis"))

    assert len(texts) > 1
    assert {*"".join(texts)} == {"亜"}


# --- Which types have a <meta>, and two types (Fetch, "extract a MIME type")

TEXT = b"<?xml version='1.0' encoding='koi8-r'?><meta charset=koi8-r>"
LATIN = "windows-1252"


@pytest.mark.parametrize(
    ("kind", "of_utf_8", "of_other"),
    [
        *((kind, "koi8-r", "koi8-r") for kind in ("text/html", "TEXT/HTML ;a=b", "", "html")),
        *((kind, "koi8-r", "koi8-r") for kind in ("application/octet-stream", "*/*")),
        *((kind, "koi8-r", "koi8-r") for kind in ("text/xml", "application/atom+xml")),
        *((kind, "utf-8", LATIN) for kind in ("text/plain", "text/csv", "text/javascript")),
        *((kind, "utf-8", LATIN) for kind in ("application/json", "application/ld+json")),
        ("text/csv; charset=big5", "big5", "big5"),
        ("application/json; charset=big5", "utf-8", "big5"),
    ],
)
def test_a_declaration_counts_in_html_and_xml_alone(kind: str, of_utf_8: str, of_other: str):
    assert choose(kind, TEXT + "ü".encode()) == of_utf_8
    assert choose(kind, TEXT + b"\xfc") == of_other
    assert choose(kind, codecs.BOM_UTF8 + TEXT) == "utf-8"


def test_a_meta_within_a_feed_is_none_of_the_feed():
    assert choose("application/rss+xml", b"<rss><![CDATA[<meta charset=koi8-r>]]>") == "utf-8"
    assert choose("text/plain", b"<?xml version='1.0' encoding='koi8-r'?>", is_xml=True) == "koi8-r"


@pytest.mark.parametrize(
    ("header", "kind"),
    [
        ("text/html", "text/html"),
        ("text/html;charset=gbk, text/html; charset=utf-8", "text/html; charset=utf-8"),
        ("text/html;charset=gbk, text/plain", "text/plain"),
        ("text/html;charset=gbk , TEXT/HTML;x=y", 'text/html;x=y;charset="gbk"'),
        ("text/plain, text/html;charset=gbk,*/*", "text/html;charset=gbk"),
        ("text/html;charset=gbk, x, ,text/", "text/html;charset=gbk"),
        ('text/html;x=",text/plain"', 'text/html;x=",text/plain"'),
        ('text/html;x=",text/plain', 'text/html;x=",text/plain'),
        ("html, utf-8", "html, utf-8"),
    ],
)
def test_of_two_types_the_last_valid_one_counts(header: str, kind: str):
    assert content_type(header) == kind
