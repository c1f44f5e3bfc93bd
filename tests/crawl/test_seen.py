"""Bounded memory of tasks that are in the ledger."""

import pytest

from crawlcw.crawl.committer import SeenFilter

pytestmark = pytest.mark.quick


def test_what_was_added_is_known():
    known = SeenFilter()

    known.add([b"a", b"b"])

    assert b"a" in known
    assert b"b" in known
    assert b"c" not in known


def test_only_the_oldest_are_forgotten():
    known = SeenFilter(generation=2)

    for name in (b"1", b"2", b"3", b"4", b"5", b"6"):
        known.add([name])

    assert b"1" not in known
    assert all(name in known for name in (b"4", b"5", b"6"))


def test_it_never_holds_more_than_two_generations():
    known = SeenFilter(generation=10)
    ids = [n.to_bytes(2, "big") for n in range(1000)]

    for each in ids:
        known.add([each])

    assert sum(each in known for each in ids) <= 22
    assert all(each in known for each in ids[-10:])
