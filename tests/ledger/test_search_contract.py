"""Searches for tasks in bounded time, on every store: results, and the cursor to continue."""

from dataclasses import replace
from datetime import timedelta

import pytest

from crawlcw.errors import Reason
from crawlcw.ledger.protocol import Cursor, Ledger, TaskFilter
from crawlcw.model.task import Status
from tests.support.ledgers import START, FakeClock, claimed, failure, make_task, make_tasks


async def _all(ledger: Ledger, wanted: TaskFilter, *, limit: int, scan_limit: int) -> list[str]:
    """Return the URLs of all results, search by search; each search must end."""
    urls: list[str] = []
    after: Cursor | None = None
    for _ in range(100):
        found = await ledger.queries.page(wanted, limit=limit, scan_limit=scan_limit, cursor=after)
        assert len(found.records) <= limit
        urls += [record.task.url for record in found.records]
        after = found.cursor
        if after is None:
            return urls
    raise AssertionError("it has no end")


@pytest.mark.parametrize(("limit", "scan_limit"), [(2, 3), (100, 7), (1, 1), (100, 100)])
async def test_a_search_goes_on_where_it_has_come_to(
    ledger: Ledger, clock: FakeClock, limit: int, scan_limit: int
):
    # Two tasks at each time, so that a cursor falls between equal times.
    for n in range(10):
        clock.advance(seconds=n % 2)
        url = f"http://example.com/{'a' if n % 3 else 'b'}/{n}"
        await ledger.tasks.add([make_task(url, update_time=clock.time)])

    urls = await _all(ledger, TaskFilter(containing="/b/"), limit=limit, scan_limit=scan_limit)

    assert len(urls) == len(set(urls))
    assert sorted(urls) == [f"http://example.com/b/{n}" for n in (0, 3, 6, 9)]
    assert urls[0].endswith("/9")


async def test_a_search_says_that_it_has_looked_at_so_many_and_found_nothing(
    ledger: Ledger,
):
    await ledger.tasks.add(make_tasks(5))

    nowhere = TaskFilter(containing="nowhere")
    found = await ledger.queries.page(nowhere, limit=2, scan_limit=3)
    rest = await ledger.queries.page(nowhere, limit=2, scan_limit=3, cursor=found.cursor)

    assert (found.records, rest.records) == ((), ())
    assert found.cursor is not None
    assert rest.cursor is None


async def test_tasks_are_found_by_status_reason_host_and_time(ledger: Ledger, clock: FakeClock):
    tasks = [make_task(f"http://{host}/{n}") for host in ("a.com", "b.com") for n in range(2)]
    await ledger.tasks.add(tasks)
    clock.advance(seconds=5)
    first, second, third, _ = await claimed(ledger)
    await ledger.outcomes.commit(
        [failure(ledger, first, Reason.TLS), failure(ledger, second, Reason.CONNECT)]
    )

    async def urls(**options: object) -> set[str]:
        return set(await _all(ledger, TaskFilter(**options), limit=10, scan_limit=10))

    assert await urls(reason=Reason.TLS) == {first.task.url}
    assert await urls(reasons=[Reason.TLS, Reason.CONNECT]) == {first.task.url, second.task.url}
    assert await urls(reasons=[Reason.DNS_TEMPORARY]) == set()
    assert third.task.url in await urls(statuses=[Status.PROCESSING])
    assert await urls(url_prefix="http://a.com/") == {task.url for task in tasks[:2]}
    assert await urls(callback="other") == set()
    assert await urls(host="b.com") == {task.url for task in tasks[2:]}
    assert await urls(changed_before=clock.time) == set()
    assert len(await urls(changed_since=START + timedelta(seconds=5))) == 4
    assert await urls(statuses=[]) == set()


@pytest.mark.parametrize("text", ["%", "_", ".*", "a'b", "$", "\\", "[", "ü", "http://x.com/(+)?"])
async def test_what_somebody_types_is_no_pattern(ledger: Ledger, text: str):
    await ledger.tasks.add([make_task("http://example.com/plain")])
    odd = replace(make_task("http://example.com/odd"), url=f"http://example.com/{text}")
    await ledger.tasks.add([odd])

    assert await _all(ledger, TaskFilter(containing=text), limit=9, scan_limit=9) == [odd.url]
