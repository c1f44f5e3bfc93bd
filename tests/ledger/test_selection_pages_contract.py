"""Pages of chosen tasks, on every store: the same as listing and filtering all tasks."""

from datetime import timedelta
from itertools import product

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from crawlcw.errors import Reason
from crawlcw.ledger.protocol import Count, Cursor, Ledger, TaskFilter
from crawlcw.model.task import Record, Status
from crawlcw.model.transitions import RETRY
from tests.support.ledgers import START, FakeClock, claimed, failure, make_task, success

HOSTS = (
    "shop.example",
    "shop.example:8080",
    "shop2.example",
    "shop.example.",
    "shop.example.:8080",
    "a.shop.example",
    "m\u00fcnchen.example",
    "[::1]",
    "[::1]:8080",
)
URLS = [
    f"{scheme}://{host}/{path}"
    for scheme, host, path in product(("http", "https"), HOSTS, ("", "a", "b/c"))
]


@pytest.fixture(
    params=[
        pytest.param(50_000, id="by_index"),
        pytest.param(2, id="by_status", marks=pytest.mark.thorough),
    ]
)
def scan_limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Force one of the two ways of reading for a small ledger."""
    monkeypatch.setattr("crawlcw.ledger.queries.SCAN_LIMIT", request.param)
    return int(request.param)


async def filled(ledger: Ledger, clock: FakeClock) -> list[Record]:
    """Return tasks of many hosts, four statuses and several times, many at the same time."""
    everything = await ledger.queries.find(TaskFilter(), limit=1_000)
    if everything:
        return everything
    await ledger.tasks.add([make_task(url, callback=f"page{n % 2}") for n, url in enumerate(URLS)])
    leases = sorted(await claimed(ledger, limit=40), key=lambda each: each.task.id)
    for n, lease in enumerate(leases):
        # The second half changes at the same time.
        clock.advance(seconds=n % 3 if n < len(leases) // 2 else 0)
        if n % 4:
            done = success(ledger, lease) if n % 4 == 1 else failure(ledger, lease, Reason.TLS)
            await ledger.outcomes.commit([done])
    return await ledger.queries.find(TaskFilter(), limit=1_000)


async def pages(ledger: Ledger, chosen: TaskFilter, *, limit: int) -> list[Record]:
    """Return all results, page by page."""
    found: list[Record] = []
    after: Cursor | None = None
    while some := await ledger.queries.find(chosen, limit=limit, cursor=after):
        found += some
        last = some[-1].task
        after = Cursor(update_time=last.update_time, id=last.id)
        if len(some) < limit:
            break
    return found


def matches(record: Record, chosen: TaskFilter) -> bool:
    """Return whether a task is chosen: the filter in plain Python."""
    task = record.task
    return (
        task.status in chosen.statuses
        and task.url.startswith(chosen.url_prefix or "")
        and chosen.callback in (None, task.callback)
        and chosen.reason in (None, task.reason)
        and (chosen.changed_since is None or task.update_time >= chosen.changed_since)
    )


_beginnings = st.sampled_from([make_task(url).url for url in URLS]).flatmap(
    lambda url: st.integers(len("http:"), len(url)).map(lambda length: url[:length])
)
_odd = st.one_of(
    st.tuples(_beginnings, st.sampled_from(["x", ".", ":", "/", "?", "@", "S"])).map("".join),
    st.sampled_from(["ftp://shop", ".*", "/", "HTTPS://", "https://u:p@shop", "\u00fc"]),
)
_prefixes = st.one_of(
    st.sampled_from(["http", "http:", "https", "http://", "https://", "http://shop", "https://s"]),
    _beginnings,
    _odd,
)
_choices = st.builds(
    TaskFilter,
    url_prefix=_prefixes,
    statuses=st.sampled_from(
        [tuple(Status), tuple(Status), (Status.TODO,), RETRY.from_statuses, (Status.FINISHED,)]
    ),
    callback=st.sampled_from([None, None, None, "page1"]),
    reason=st.sampled_from([None, None, None, Reason.TLS]),
    changed_since=st.sampled_from([None, None, None, START + timedelta(seconds=5)]),
)


@pytest.mark.representative("sqlite")
# The ledger is only read after this.
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@example(chosen=TaskFilter(url_prefix="https://"), limit=1)
@example(chosen=TaskFilter(url_prefix="http://shop"), limit=7)
@example(chosen=TaskFilter(url_prefix="https://shop.", reason=Reason.TLS), limit=2)
@given(chosen=_choices, limit=st.integers(1, 30))
async def test_pages_of_a_prefix_are_those_of_all_tasks_filtered(
    ledger: Ledger, clock: FakeClock, scan_limit: int, chosen: TaskFilter, limit: int
):
    everything = await filled(ledger, clock)
    expected = [record for record in everything if matches(record, chosen)]

    assert await pages(ledger, chosen, limit=limit) == expected
    assert await ledger.queries.count(chosen) == Count(number=len(expected))
    failures = [record for record in expected if record.task.status in RETRY.from_statuses]
    assert await ledger.admin.count_failed(chosen) == Count(number=len(failures))


@pytest.mark.representative("sqlite")
async def test_a_page_of_any_size_is_found(ledger: Ledger, clock: FakeClock, scan_limit: int):
    everything = await filled(ledger, clock)
    chosen = TaskFilter(url_prefix="http://shop")

    found = await ledger.queries.find(chosen, limit=1 << 30)

    assert found == [record for record in everything if matches(record, chosen)]
