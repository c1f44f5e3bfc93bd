"""Encoding of a page."""

import codecs
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlcw.api.charset import choose, decode, named

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("content_type", "body", "encoding"),
    [
        (None, b"", "utf-8"),
        (None, "ü".encode(), "utf-8"),
        (None, b"\xfc", "cp1252"),
        (None, "üü".encode()[:3], "utf-8"),
        ("text/html; charset=utf-8", b"\xfc", "utf-8"),
        ("text/html; charset=ISO-8859-1", b"\xfc", "cp1252"),
        ("text/html; charset=gb2312", b"a", "gb18030"),
        ('text/html; charset="koi8-r"', b"a", "koi8-r"),
        ("text/html", b"<meta charset=windows-1251>", "cp1251"),
        ("text/html; charset=utf-8", b"<meta charset=windows-1251>", "utf-8"),
        (None, b"<meta charset=utf-16>", "utf-8"),
        (None, b" " * 1024 + b"<meta charset=windows-1251>", "utf-8"),
        ("text/html; charset=koi8-r", codecs.BOM_UTF8 + b"a", "utf-8"),
        ("text/html; charset=koi8-r", codecs.BOM_UTF16_LE, "utf-16-le"),
        ("text/html; charset=koi8-r", codecs.BOM_UTF16_BE, "utf-16-be"),
    ],
)
def test_the_encoding_is_the_one_a_browser_would_choose(content_type, body, encoding):
    assert choose(content_type, body) == encoding


#: Labels of the Encoding Standard that Python does not know, or maps to another encoding.
LABELS = {
    "x-gbk": "gb18030",
    "cn-big5": "big5hkscs",
    "x-euc-jp": "euc_jp",
    "windows-31j": "cp932",
    "ks_c_5601-1989": "cp949",
    "iso-8859-8-i": "iso8859-8",
    "koi8-ru": "koi8-u",
    "iso-8859-11": "cp874",
    "x-mac-ukrainian": "mac-cyrillic",
    "unicode-1-1-utf-8": "utf-8",
    "latin5": "cp1254",
    # Names that `named` returns itself.
    "cp932": "cp932",
    "big5hkscs": "big5hkscs",
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
    assert choose("text/html; charset=unicode", b"a\0") == "utf-16-le"


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
    assert choose(None, text.encode() + b"\xc1") == "cp1252"


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
