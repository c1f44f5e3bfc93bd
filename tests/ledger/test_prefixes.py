"""The range of the texts that begin alike."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlcw.ledger.prefixes import beginning_with

pytestmark = pytest.mark.quick
LAST = "\U0010ffff"


@given(prefix=st.text(min_size=1, max_size=3), text=st.text(max_size=6))
def test_a_text_is_in_the_range_where_it_begins_with_the_prefix(prefix: str, text: str):
    first, end = beginning_with(prefix)

    for each in (text, prefix + text):
        within = first <= each and (end is None or each < end)
        assert within == each.startswith(prefix)


def test_the_end_is_a_text_that_can_be_stored():
    assert beginning_with("a") == ("a", "b")
    assert beginning_with("a" + LAST) == ("a" + LAST, "b")
    assert beginning_with("\ud7ff") == ("\ud7ff", "\ue000")
    assert beginning_with(LAST) == (LAST, None)
