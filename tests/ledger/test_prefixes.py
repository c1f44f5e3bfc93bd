"""Prefixes of URLs: their ranges, and their hosts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlcw.ledger.choosing import beginning_with, simplified
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.protocol import TaskFilter
from crawlcw.model import urls

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
        # The host may be longer than the prefix, or no stored URL has the prefix.
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
    chosen = simplified(TaskFilter(url_prefix=prefix), LedgerKind.SPIDER)

    assert chosen == TaskFilter(url_prefix=prefix, host=host)
    # Tracked tasks have keys instead of URLs, and stages instead of hosts.
    assert simplified(chosen, LedgerKind.USE_CASE) == chosen
    asked = TaskFilter(url_prefix=prefix, host="other.example")
    assert simplified(asked, LedgerKind.SPIDER) == asked


def test_a_prefix_that_every_url_has_is_none():
    for prefix in ("h", "http"):
        assert simplified(TaskFilter(url_prefix=prefix), LedgerKind.SPIDER) == TaskFilter()
    for chosen in (TaskFilter(url_prefix="https"), TaskFilter(url_prefix="ht.")):
        assert simplified(chosen, LedgerKind.SPIDER) == chosen
    assert simplified(TaskFilter(url_prefix="http"), LedgerKind.USE_CASE).url_prefix == "http"


_label = st.text("ab0-z", min_size=1, max_size=3).map(lambda text: f"x{text}y")
_name = st.one_of(
    st.lists(_label, min_size=1, max_size=3).map(".".join),
    st.sampled_from(["[::1]", "[2001:db8::1]", "192.0.2.1", "münchen.example", "UPPER.example"]),
)


@given(
    scheme=st.sampled_from(["http", "https"]),
    name=_name,
    dot=st.sampled_from(["", "", "."]),
    port=st.sampled_from(["", ":80", ":443", ":8080"]),
    path=st.sampled_from(["", "/", "/a/b", "/?q=/", "?q"]),
)
def test_every_beginning_of_a_url_leaves_its_host(
    scheme: str, name: str, dot: str, port: str, path: str
):
    # An IP address may not end with a dot.
    end = dot if name[-1].isalpha() else ""
    location = urls.locate(f"{scheme}://{name}{end}{port}{path}")

    for length in range(1, len(location.url) + 1):
        chosen = TaskFilter(url_prefix=location.url[:length])
        same = simplified(chosen, LedgerKind.SPIDER)
        assert same.host in (None, location.host)
