"""Text of servers reaches a terminal only as one line of visible characters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlcw.model.sanitize import printable, printable_block

pytestmark = pytest.mark.quick

ANY_TEXT = st.text(st.characters(codec=None), max_size=50)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a title", "a title"),
        ("Zażółć 東京 🐍", "Zażółć 東京 🐍"),
        ("\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
        ("two\nlines\r", r"two\nlines\r"),
        ("a\u202eb", r"a\u202eb"),
        ("\ud800", r"\ud800"),
        ("\x00", r"\x00"),
        (12, "12"),
    ],
)
def test_control_characters_are_written_out(text: object, shown: str):
    assert printable(text) == shown


def test_a_long_text_ends_in_an_ellipsis():
    assert printable("abcdef", limit=5) == "abcd…"
    assert printable("abcde", limit=5) == "abcde"
    assert printable("\n\n\n", limit=5) == r"\n\n…"


def test_a_huge_text_is_not_read_to_its_end():
    assert len(printable("\x00" * 10_000_000)) == 200


@given(ANY_TEXT, st.integers(1, 60))
def test_any_text_comes_out_printable_and_no_longer_than_the_limit(text: str, limit: int):
    shown = printable(text, limit=limit)

    assert shown.isprintable()
    assert len(shown) <= limit


@given(ANY_TEXT)
def test_printable_text_stays_as_it_is(text: str):
    if text.isprintable():
        assert printable(text) == text


@given(ANY_TEXT)
def test_a_block_keeps_its_lines_and_nothing_else_that_is_not_visible(text: str):
    block = printable_block(text)

    assert all(line.isprintable() for line in block.split("\n"))
    assert len(block.split("\n")) == len(text.removesuffix("\n").split("\n"))


def test_a_block_is_cut():
    assert printable_block("abc\ndef\nghi", limit=5) == "abc\nd"
