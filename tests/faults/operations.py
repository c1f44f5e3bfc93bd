"""Every operation of a ledger, as a crawl uses it, in the setting of `world`."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from crawlcw.errors import Reason
from crawlcw.ledger.protocol import Added, Cursor, TaskFilter
from crawlcw.model.hosts import HostLease
from crawlcw.model.loans import Loan, LoanReport
from crawlcw.model.rates import Point, Vitals
from crawlcw.model.task import ChangedTask, Lease, Status
from crawlcw.model.transitions import too_deep
from tests.faults.world import COUNTERS, LARGE, NOW, World, learned, worker
from tests.support.ledgers import LEASE, changed_task, failure, make_task, success

LOAN = Loan("b:1", host="example.com", slots=4, expires=NOW)
POINT = Point(worker="a", started=NOW, time=NOW, vitals=Vitals(finished=3))


def _same(answer: Any, expected: Any) -> bool:
    return bool(answer == expected)


def _no_more(answer: Any, expected: Any) -> bool:
    """Accept a smaller number: it counts only the effects of the last sending."""
    return bool(0 <= answer <= expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation: the call, and the check of its answer."""

    name: str
    act: Callable[[World], Awaitable[Any]]  #: sends it until it is answered
    answers: Callable[[Any, Any], bool] = _same  #: compares with the answer without a fault
    writes: bool = True
    deletes: bool = False
    wakes: bool = False  #: if repeated later, it may wake hosts again, which is harmless
    claims: str = "each"


async def _claim(world: World) -> list[Lease]:
    """Claim all due tasks; the read of their page does not fail."""
    page = await world.far.tasks.page(limit=50)
    claimed = await world.send(
        lambda: world.near.leases.claim(page, worker="w", lease=LEASE, max_lost=3)
    )
    assert claimed.missed == 0
    return list(claimed.leases)


def _same_leases(answer: list[Lease], expected: list[Lease]) -> bool:
    shown = [
        sorted((lease.task.id, lease.fence, lease.expires, str(lease.task)) for lease in leases)
        for leases in (answer, expected)
    ]
    return shown[0] == shown[1]


def _same_host_leases(answer: list[HostLease], expected: list[HostLease]) -> bool:
    shown = [
        [replace(lease, token="", host=replace(lease.host, owner=None)) for lease in leases]
        for leases in (answer, expected)
    ]
    return shown[0] == shown[1]


async def _lease_hosts(world: World) -> list[HostLease]:
    """Lease all ready hosts."""
    leases = await world.send(
        lambda: world.near.host_leases.lease(worker="w", limit=10, lease=LEASE)
    )
    # After a lost reply, the ledger does not know which of them was ready first.
    return sorted(leases, key=lambda lease: lease.host.name)


def _same_added(answer: Added, expected: Added) -> bool:
    return answer.new + answer.existing == expected.new + expected.existing


def _simple(send: Callable[[World], Awaitable[Any]], **more: Any) -> Operation:
    return Operation(act=lambda world: world.send(lambda: send(world)), **more)


def _read(name: str, send: Callable[[World], Awaitable[Any]]) -> Operation:
    return _simple(send, name=name, writes=False)


async def _collected(rows: Any) -> list[Any]:
    return [row async for row in rows]


def _settlements(world: World) -> list[Any]:
    ledger, (one, other) = world.near, world.setting.leases
    return [
        success(ledger, one, {"n": 1}, {"large": LARGE}),
        failure(ledger, other, Reason.DISCONNECTED),
        success(ledger, world.setting.stale, {"n": "stale"}),
    ]


def _links() -> list[Any]:
    known, *new = (make_task(f"http://{host}/", due=NOW) for host in ("p.com/4", "new.com"))
    return [known, *new]


def _too_deep() -> list[Any]:
    return [too_deep(make_task(f"http://{host}/", depth=9)) for host in ("p.com/9", "new.com")]


def _changed(world: World) -> list[ChangedTask]:
    """Return a changed task for every page of the ledger."""
    urls = [each["url"] for each in world.documents()["books"].values()]
    return [changed_task(url, changed=NOW) for url in urls]


DATA = {"$a.b": 1}

OPERATIONS = [
    _simple(
        lambda w: w.near.tasks.add([*w.setting.todo, *_links()]), name="add", answers=_same_added
    ),
    _simple(lambda w: w.near.tasks.add(_too_deep()), name="add-too-deep", answers=_same_added),
    _simple(
        lambda w: w.near.tasks.admit_nearer(w.setting.nearer), name="admit_nearer", answers=_no_more
    ),
    _simple(
        lambda w: w.near.tasks.reopen_changed(_changed(w)),
        name="reopen_changed",
        answers=_no_more,
    ),
    _simple(
        lambda w: w.near.admin.admit_to_depth(7),
        name="admit_to_depth",
        answers=_no_more,
        wakes=True,
    ),
    _simple(
        lambda w: w.near.notes.set_state({"depth": {"limit": 3}, "seeds": None}), name="set_state"
    ),
    Operation(name="claim", act=_claim, answers=_same_leases),
    Operation(name="claim-batch", act=_claim, answers=_same_leases, claims="batch"),
    _simple(
        lambda w: w.near.leases.renew([*w.setting.leases, w.setting.stale], lease=LEASE),
        name="renew",
    ),
    _simple(lambda w: w.near.leases.begin(w.setting.leases[0]), name="begin"),
    _simple(lambda w: w.near.leases.begin(w.setting.stale), name="begin-stale"),
    _simple(lambda w: w.near.outcomes.commit(_settlements(w)), name="commit"),
    _simple(
        lambda w: w.near.outcomes.release([*w.setting.leases, w.setting.stale]),
        name="release",
        answers=_no_more,
    ),
    _simple(
        lambda w: w.near.admin.retry_failed(TaskFilter()),
        name="retry_failed",
        answers=_no_more,
        wakes=True,
    ),
    _simple(
        lambda w: w.near.admin.retry_failed(TaskFilter(ids=_everything(w))),
        name="retry_failed-ids",
        answers=_no_more,
        wakes=True,
    ),
    _simple(
        lambda w: w.near.admin.withdraw(TaskFilter(changed_before=NOW), reason=Reason.WITHDRAWN),
        name="withdraw",
        answers=_no_more,
    ),
    _simple(
        lambda w: w.near.admin.reopen(
            TaskFilter(changed_before=NOW), stage="again", deletes_results=True
        ),
        name="reopen",
        answers=_no_more,
        wakes=True,
    ),
    _simple(
        lambda w: w.near.admin.revisit(TaskFilter(changed_before=NOW)),
        name="revisit",
        answers=_no_more,
        wakes=True,
    ),
    _simple(lambda w: w.near.admin.revisit_due(), name="revisit_due", answers=_no_more, wakes=True),
    _simple(
        lambda w: w.near.admin.prioritise(dict.fromkeys(_everything(w), 9)),
        name="prioritise",
        answers=_no_more,
    ),
    _simple(
        lambda w: w.near.admin.purge(
            TaskFilter(statuses=[Status.FINISHED, Status.IGNORED], changed_before=NOW)
        ),
        name="purge",
        answers=_no_more,
        deletes=True,
    ),
    _simple(
        lambda w: w.near.leases.save(w.setting.leases[0], data=DATA, duration=LEASE), name="save"
    ),
    _simple(
        lambda w: w.near.leases.save(w.setting.stale, data=DATA, duration=LEASE), name="save-stale"
    ),
    _simple(lambda w: w.near.workers.join(worker("w")), name="join"),
    _simple(lambda w: w.near.workers.beat("a", COUNTERS, idle=True), name="beat"),
    _simple(lambda w: w.near.workers.lend(worker("a"), LOAN), name="lend"),
    _simple(lambda w: w.near.workers.report("a", LoanReport("b:1", finished=3)), name="report"),
    _simple(lambda w: w.near.rates.record(POINT), name="record"),
    _simple(lambda w: w.near.workers.leave("dead"), name="leave", answers=_no_more),
    Operation(name="lease_hosts", act=_lease_hosts, answers=_same_host_leases),
    _simple(
        lambda w: w.near.host_leases.renew([*w.setting.hosts, *stale_hosts(w)], lease=LEASE),
        name="renew_hosts",
    ),
    _simple(
        lambda w: w.near.host_leases.save(
            [learned(lease) for lease in (*w.setting.hosts, *stale_hosts(w))]
        ),
        name="save_hosts",
    ),
    _simple(
        lambda w: w.near.host_leases.release(
            [learned(lease) for lease in (*w.setting.hosts, *stale_hosts(w))]
        ),
        name="release_hosts",
        wakes=True,
    ),
    _simple(
        lambda w: w.near.hosts.wake(
            dict.fromkeys(("p.com", "q.com", "s.com", "t.com", "new.com"), NOW)
        ),
        name="wake_hosts",
        wakes=True,
    ),
    _simple(lambda w: w.near.hosts.wake_all(), name="wake_all_hosts", answers=_no_more, wakes=True),
    _simple(
        lambda w: w.near.hosts.give_up("q.com", reason=Reason.HOST_UNREACHABLE),
        name="give_up_host",
        answers=_no_more,
    ),
    _simple(
        lambda w: w.near.notes.set_control({"paused": "2026-01-01T00:00:00Z", "fed": None}),
        name="set_control",
    ),
    _read("control", lambda w: w.near.notes.control()),
    _read("state", lambda w: w.near.notes.state()),
    _read("page", lambda w: w.near.tasks.page(limit=50, hosts=["p.com", "q.com"])),
    _read("page_each", lambda w: w.near.tasks.page_each({"p.com": 1, "q.com": 9})),
    _read("find", lambda w: w.near.queries.find(TaskFilter(), limit=3, cursor=_place(w))),
    _read("leases_of", lambda w: w.near.leases.leases_of("a")),
    _read("next_due", lambda w: w.near.queries.next_due()),
    _read("has", lambda w: w.near.queries.has([Status.FINISHED])),
    _read("counts", lambda w: w.near.queries.counts()),
    _read(
        "count",
        lambda w: w.near.queries.count(TaskFilter(host="p.com", url_prefix="https://p.com/")),
    ),
    _read("item_count", lambda w: w.near.queries.item_count()),
    _read("items_among", lambda w: w.near.queries.item_count_within(scan_limit=1)),
    _read("find_of_host", lambda w: w.near.queries.find(TaskFilter(host="p.com"), limit=3)),
    _read("reasons", lambda w: w.near.queries.reasons()),
    _read("items", lambda w: _collected(w.near.queries.items())),
    _read("chosen_items", lambda w: _collected(w.near.queries.items(TaskFilter()))),
    _read("versions", lambda w: _collected(w.near.queries.versions())),
    _read("workers", lambda w: w.near.workers.all()),
    _read("counters", lambda w: w.near.workers.counters()),
    _read("loan", lambda w: w.near.workers.loan("a")),
    _read("hosts", lambda w: _collected(w.near.hosts.all())),
    _read("host_counts", lambda w: w.near.hosts.counts()),
    _read("get_hosts", lambda w: w.near.hosts.get(["p.com", "q.com", "none.com"])),
    _read("next_ready", lambda w: w.near.hosts.next_ready()),
    _read("due_hosts", lambda w: w.near.hosts.due(last_host="", limit=5)),
    _read("earliest_due", lambda w: w.near.hosts.earliest_due("q.com")),
    _read("get", lambda w: w.near.tasks.get(w.setting.leases[0].task.id)),
]


def _everything(world: World) -> list[bytes]:
    return list(world.before["books"])


def _place(world: World) -> Cursor:
    task = world.setting.leases[0].task
    return Cursor(update_time=NOW, id=task.id)


def stale_hosts(world: World) -> list[HostLease]:
    """Return a lease that its owner has lost to a later one of the same host."""
    lease = world.setting.other_hosts[0]
    return [replace(lease, epoch=lease.epoch - 1, expires=NOW - timedelta(seconds=1))]
