"""A page's place at its host is given back once, however often it is freed."""

from crawlcw.crawl.outcomes import Slot


def test_a_slot_is_freed_once():
    freed: list[str] = []
    slot = Slot(lambda: freed.append("freed"))

    slot.free()
    slot.free()

    assert freed == ["freed"]
