"""Which encoding a page is in."""

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlcw.api.charset import choose, decode

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("content_type", "body", "encoding"),
    [
        (None, b"", "utf-8"),
        (None, b"plain", "utf-8"),
        (None, "ü".encode(), "utf-8"),
        (None, b"\xfc", "cp1252"),
        (None, "üü".encode()[:3], "utf-8"),
        (None, b"caf\xe9", "cp1252"),
        ("text/html; charset=utf-8", b"\xfc", "utf-8"),
        ("text/html; charset=ISO-8859-1", b"\xfc", "cp1252"),
        ("text/html; charset=us-ascii", b"a", "cp1252"),
        ("text/html; charset=gb2312", b"a", "gb18030"),
        ("text/html; charset=Shift_JIS", b"a", "cp932"),
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


def test_the_mark_is_no_part_of_the_text():
    assert decode(codecs.BOM_UTF8 + b"a", "utf-8") == "a"
    assert decode(b"\xffa", "utf-8") == "\ufffda"


@given(st.none() | st.text().map(lambda label: f"text/html; charset={label}"), st.binary())
def test_whatever_is_chosen_decodes(content_type, body):
    text = decode(body, choose(content_type, body))

    text.encode()
