"""The texts that begin alike: their range, and their host."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.prefixes import beginning_with, with_host
from crawlcw.ledger.protocol import TaskFilter

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


@pytest.mark.parametrize(
    ("prefix", "host"),
    [
        ("https://a.example/", "a.example"),
        ("https://a.example/shop/?q=http://b.example/", "a.example"),
        ("http://a.example:8080/x", "a.example:8080"),
        ("http://[::1]/", "[::1]"),
        # These may go on, or are none that is stored.
        ("https://a.exam", None),
        ("https://a.example", None),
        ("https://a.example?q=/", None),
        ("HTTPS://A.example/", None),
        ("https://a.example:443/", None),
        ("https://u:p@a.example/", None),
        ("ftp://a.example/", None),
        ("/shop/", None),
        (".*", None),
    ],
)
def test_a_prefix_has_a_host_where_all_urls_that_begin_so_have_it(prefix: str, host: str | None):
    chosen = with_host(TaskFilter(url_prefix=prefix), LedgerKind.SPIDER)

    assert chosen == TaskFilter(url_prefix=prefix, host=host)
    # What is tracked has keys, and its hosts are stages.
    assert with_host(chosen, LedgerKind.USE_CASE) == chosen
    asked = TaskFilter(url_prefix=prefix, host="other.example")
    assert with_host(asked, LedgerKind.SPIDER) == asked
