"""Adding of known tasks: due again at most once in a run."""

from datetime import timedelta

from crawlcw.api.request import EACH_RUN
from crawlcw.crawl.committer import TaskAdder
from crawlcw.crawl.seeder import RunStart
from crawlcw.engine.stats import Stats
from crawlcw.engine.workers import this_worker
from crawlcw.errors import Reason
from crawlcw.ledger.protocol import Ledger
from crawlcw.model.task import Status
from tests.support.ledgers import (
    LEASE,
    FakeClock,
    changed_task,
    claimed_one,
    make_task,
    success,
)


async def nobody(_: object) -> None:
    """Wake no host."""


def adder_of(ledger: Ledger, *, max_depth: int | None = None) -> TaskAdder:
    return TaskAdder(ledger=ledger, stats=Stats(), announce=nobody, max_depth=max_depth)


async def test_a_page_is_done_once_in_a_run_whatever_is_said_of_it(
    ledger: Ledger, clock: FakeClock
):
    run, adder = RunStart(ledger, lease=LEASE), adder_of(ledger)
    page = changed_task("http://a.com/", changed=EACH_RUN)

    numbers = []
    for _ in range(2):
        clock.advance(seconds=1)
        adder.run_started_at = await run.find(await ledger.notes.state())
        for _ in range(2):
            clock.advance(seconds=1)
            number = await adder.add([page])
            numbers.append(number)
            if number:
                await ledger.outcomes.commit([success(ledger, await claimed_one(ledger))])
        await run.end()

    assert numbers == [1, 0, 1, 0]


async def test_a_run_is_that_of_all_processes_that_started_before_it(
    ledger: Ledger, clock: FakeClock
):
    """A process that has died is still among them."""
    numbers = []
    for seconds in (0, 0, 10 * LEASE.total_seconds()):
        clock.advance(seconds=seconds)
        await ledger.workers.join(this_worker(now=ledger.now()))
        run = RunStart(ledger, lease=LEASE)
        await run.find(await ledger.notes.state())
        await run.end()
        numbers.append(run.number)

    assert numbers == [1, 1, 2]


async def test_a_change_before_the_last_visit_is_none(ledger: Ledger, clock: FakeClock):
    run, adder = RunStart(ledger, lease=LEASE), adder_of(ledger)
    adder.run_started_at = await run.find({})
    page = changed_task("http://a.com/", changed=clock.time - timedelta(days=1))
    await adder.add([page])
    await ledger.outcomes.commit([success(ledger, await claimed_one(ledger))])
    clock.advance(seconds=9)
    await run.end()
    adder.run_started_at = await run.find(await ledger.notes.state())

    number = await adder.add([page])

    assert number == 0


async def test_a_link_that_lies_too_deep_in_two_places_is_kept_only(ledger: Ledger):
    refused = {"due": None, "status": Status.IGNORED, "reason": Reason.REFUSED_DEPTH}

    for depth in (4, 3):
        link = make_task("http://a.com/deep", depth=depth, **refused)
        assert await adder_of(ledger, max_depth=2).add([], [link]) == 0

    assert (await ledger.queries.counts()).by_status == {Status.IGNORED: 1}


async def test_the_first_of_equal_new_links_counts_except_before_one_that_says_of_a_change(
    ledger: Ledger, clock: FakeClock
):
    url = "http://a.com/"
    links = [make_task(url, callback=name) for name in ("first", "second")]

    await adder_of(ledger).add(links)
    await ledger.outcomes.commit([success(ledger, await claimed_one(ledger))])
    clock.advance(seconds=9)
    adder = adder_of(ledger)
    adder.run_started_at = clock.time
    changed = changed_task(url, changed=clock.time)
    reopened_count = await adder.add([links[0], changed, links[1]])

    assert (await claimed_one(ledger)).task.callback == "first"
    assert reopened_count == 1
