"""Locations of stored page bodies, and items that replace others without a lease."""

from dataclasses import replace

from crawlcw.errors import Reason
from crawlcw.ledger.protocol import Committed, Ledger, TaskFilter
from crawlcw.model.task import Record, Status, StoredPage, Task
from crawlcw.model.transitions import Failed, Outcome, Settlement, Succeeded, Unchanged, reparse
from tests.ledger.test_revisits_contract import at, ended, record, rows
from tests.support.ledgers import FakeClock, claimed_one, make_task, settled, visit

PLACE = StoredPage(file="books-1.warc.gz", offset=1 << 40, length=5)
LARGE = "x" * (1 << 20)


async def done(ledger: Ledger, outcome: Outcome) -> Record:
    task = make_task()
    await ledger.tasks.add([task])
    await ended(ledger, outcome)
    return await record(ledger, task)


def again(found: Record, *items: dict[str, object], versions: int = 0) -> Settlement:
    settlement = reparse(
        found.task, response=found.response, items=items, now=at(99), kept_versions=versions
    )
    assert settlement is not None
    return settlement


async def given(ledger: Ledger, task: Task) -> list[object]:
    return [item["n"] for item in (await record(ledger, task)).items]


async def test_where_a_body_is_kept_stays_with_its_task(ledger: Ledger):
    found = await done(ledger, Succeeded(stored=PLACE, visit=visit(), items=({"n": 1},)))
    assert found.task.stored == PLACE
    (walked,) = await ledger.queries.find(TaskFilter(), limit=9)
    assert walked.task.stored == PLACE

    await ledger.admin.revisit(TaskFilter(changed_before=at(99)))
    await ended(ledger, Unchanged(visit=visit()))

    assert (await record(ledger, found.task)).task.stored == PLACE


async def test_items_of_a_stored_page_take_the_place_of_the_old_ones(
    ledger: Ledger, clock: FakeClock
):
    clock.time = at(5)
    found = await done(
        ledger,
        Succeeded(stored=PLACE, visit=visit(changed=at(3)), revisit=at(50), items=({"n": 1},)),
    )
    clock.time = at(60)

    assert await ledger.outcomes.replace([again(found, {"n": 2}, {"n": 3})]) == Committed()

    after = await record(ledger, found.task)
    assert [item["n"] for item in after.items] == [2, 3]
    # The page was not visited again: its times for `recrawl` and `export --since` are unchanged.
    assert after.task == replace(found.task, fence=2, settled=2)
    assert await rows(ledger.queries.items()) == [(2, at(3)), (3, at(3))]
    assert (await ledger.queries.counts())[Status.FINISHED] == 1


async def test_a_page_whose_callback_had_raised_is_finished(ledger: Ledger, clock: FakeClock):
    found = await done(ledger, Failed(reason=Reason.PARSE_ERROR, stored=PLACE))
    clock.time = at(99)

    await ledger.outcomes.replace([again(found, {"n": 1})])

    after = await record(ledger, found.task)
    assert (after.task.status, after.task.reason, after.task.due) == (Status.FINISHED, None, None)
    assert after.task.update_time == at(99)
    assert after.task.visit is not None
    assert len(after.errors) == 1  # it happened
    assert await rows(ledger.queries.items()) == [(1, at(0))]


async def test_what_comes_too_late_changes_nothing(ledger: Ledger):
    found = await done(ledger, Succeeded(stored=PLACE, visit=visit(), items=({"n": 1},)))
    late = again(found, {"n": 2})
    await ledger.admin.revisit(TaskFilter(changed_before=at(99)))
    assert await ledger.outcomes.replace([late]) == Committed(lost=(late.lease,))

    lease = await claimed_one(ledger)
    assert await ledger.outcomes.replace([late]) == Committed(lost=(late.lease,))
    outcome = Succeeded(visit=visit(), items=({"n": 3},))
    assert await ledger.outcomes.commit([settled(ledger, lease, outcome)]) == Committed()

    assert await ledger.outcomes.replace([late]) == Committed(lost=(late.lease,))
    assert await given(ledger, found.task) == [3]


async def test_sent_twice_it_is_recorded_once(ledger: Ledger):
    found = await done(ledger, Succeeded(stored=PLACE, visit=visit(), items=({"n": 1},)))
    settlement = again(found, {"n": 2})

    assert await ledger.outcomes.replace([settlement]) == Committed()
    assert await ledger.outcomes.replace([settlement]) == Committed()

    assert await given(ledger, found.task) == [2]
    assert (await record(ledger, found.task)).task.fence == 2


async def test_large_items_are_replaced_and_leave_nothing(ledger: Ledger):
    found = await done(
        ledger, Succeeded(stored=PLACE, visit=visit(), items=({"n": 1, "text": LARGE},))
    )

    await ledger.outcomes.replace([again(found, {"n": 2, "text": LARGE})])
    now = await record(ledger, found.task)
    await ledger.outcomes.replace([again(now, {"n": 3})])

    assert await given(ledger, found.task) == [3]
    assert (await ledger.queries.item_count()) == 1


async def test_versions_are_kept_where_they_are_wanted(ledger: Ledger):
    found = await done(
        ledger, Succeeded(stored=PLACE, visit=visit(), items=({"n": 1},), kept_versions=2)
    )

    await ledger.outcomes.replace([again(found, {"n": 2}, versions=2)])

    assert [n for n, _ in await rows(ledger.queries.versions())] == [1, 2]
    assert await given(ledger, found.task) == [2]


async def test_what_the_store_cannot_hold_leaves_the_page_as_it_was(ledger: Ledger):
    found = await done(ledger, Succeeded(stored=PLACE, visit=visit(), items=({"n": 1},)))
    bad = again(found, {"n": 1 << 70 if "mongo" in type(ledger).__module__ else object()})

    committed = await ledger.outcomes.replace([bad])

    assert [lease for lease, _ in committed.rejected] == [bad.lease]
    assert committed.lost == ()
    assert await given(ledger, found.task) == [1]
    assert (await record(ledger, found.task)).task.fence == 1
