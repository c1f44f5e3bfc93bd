"""Commands to running crawls, on every store."""

from tests.support.ledgers import LedgerFactory


async def test_it_is_the_same_for_all_and_each_part_by_itself(store: LedgerFactory):
    one, two = await store.open(), await store.open()
    assert await one.notes.control() == {}

    await one.notes.set_control({"paused": "noon", "$a.b": "1"})
    await two.notes.set_control({"delay": "1s"})
    await one.notes.set_state({"seeds": {"hosts": []}})

    assert await one.notes.control() == {"paused": "noon", "$a.b": "1", "delay": "1s"}
    await two.notes.set_control({"paused": None, "never": None})
    await two.notes.set_control({})
    assert await one.notes.control() == {"$a.b": "1", "delay": "1s"}
    assert await one.notes.state() == {"seeds": {"hosts": []}}
