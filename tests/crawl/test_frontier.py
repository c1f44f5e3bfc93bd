"""The hosts of one process: begun, served and left, and their state in the ledger."""

from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from crawlcw.api.request import Request
from crawlcw.api.settings import Settings
from crawlcw.crawl.causes import PageAttempt
from crawlcw.crawl.hosts import HeldHost, Phase
from crawlcw.errors import Defer, FetchError, Reason
from crawlcw.fetch.proxies import ProxyPool
from crawlcw.model.health import Cause, Origin
from crawlcw.model.hosts import Host
from crawlcw.model.standstill import Standstill
from crawlcw.model.task import Lease
from tests.support.frontiers import HOST, USABLE, Process, lease_of
from tests.support.ledgers import START, make_task

GOOD_PAGE = f"http://{HOST}/good"


@pytest.fixture(autouse=True)
def no_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let hosts rest exactly as long as the policy says."""
    monkeypatch.setattr("crawlcw.crawl.causes.random.random", lambda: 0.0)


# --- taking charge


def test_a_host_is_served_once_it_is_open_until_it_is_left():
    process = Process()
    assert HOST not in process.frontier.hosts
    assert not process.may_ask()

    host = process.begin()

    assert process.frontier.hosts[HOST] is host
    assert HOST in process.frontier.leased
    assert process.frontier.leased == process.frontier.hosts == {HOST: host}
    (lease,) = process.claim()
    assert process.may_ask()
    assert process.take() is None, "its robots.txt is not known"
    process.open()
    assert process.take() is lease
    process.work(lease)
    process.forget()
    assert HOST not in process.frontier.hosts
    assert not process.may_ask()


@pytest.mark.parametrize(
    ("limit", "crawl_delay", "adaptive", "delay"),
    [(3, 1, 2, 3), (1, 3, 2, 3), (1, 2, 3, 3), (0, 0, 0, 0)],
)
def test_the_longest_of_all_delays_counts(
    limit: float, crawl_delay: float, adaptive: float, delay: float
):
    process = Process(delay=limit)
    host = process.begin(delay=adaptive)
    process.open(crawl_delay=crawl_delay)
    process.claim(2)

    assert host.queue.delay == delay
    assert process.take() is not None
    assert process.resting() == delay


def test_a_host_that_rests_in_the_ledger_rests_here():
    process = Process(delay=1)
    process.serve(not_before=process.at(4))
    process.claim()

    process.now += 3.9
    assert process.take() is None
    process.now += 0.1
    assert process.take() is not None


@pytest.mark.parametrize("clean", [True, False])
def test_what_was_not_released_rests_one_delay_first(clean: bool):
    """Its previous owner may have sent a request just now."""
    process = Process(delay=2)

    process.serve(clean=clean)
    process.claim()

    assert process.resting() == (0 if clean else 2)
    assert (process.take() is None) == (not clean)


# --- shared hosts


@pytest.mark.parametrize(
    ("concurrency", "delay", "shared"), [(0, 0.0, True), (8, 0.0, False), (0, 1.0, False)]
)
def test_a_host_without_limits_may_be_shared(concurrency: int, delay: float, shared: bool):
    process = Process(concurrency=concurrency, delay=delay)

    assert process.frontier.shares(HOST) == shared


@pytest.mark.parametrize("renewed_after", [None, USABLE / 2])
def test_a_visitor_asks_as_long_as_it_renews_its_tasks(renewed_after: float | None):
    """One that was frozen past their leases would ask for pages that others have asked for since.

    These are its requests under way as well, whose time limits are over when it goes on.
    """
    process = Process(concurrency=0)
    host = process.frontier.visit(Host(name=HOST))
    process.open()
    process.claim(3)
    if renewed_after is not None:
        process.now += renewed_after
        host.renewed(asked=process.now)

    process.now += USABLE - 1
    assert process.may_ask()
    assert process.take() is not None
    process.now += 1
    assert not process.may_ask()
    assert process.take() is None
    host.renewed(asked=process.now)
    assert process.may_ask()
    assert len(process.take_all()) == 2


@pytest.mark.parametrize("retry_after", [3.0, 60.0])
def test_a_shared_host_that_fails_is_left_alone_by_visitors_for_its_rest(retry_after: float):
    process = Process(concurrency=0)
    host = process.frontier.visit(Host(name=HOST))
    process.open()

    process.failed(reason=Reason.HTTP_STATUS, retry_after=retry_after)

    assert host.phase is Phase.LEAVING
    assert process.frontier.pending.take_unsaved() == set(), "a visitor writes no state of a host"
    process.forget()
    assert process.frontier.shares("other.example")
    process.now += retry_after - 0.1
    assert not process.frontier.shares(HOST)
    process.now += 0.1
    assert process.frontier.shares(HOST)


@pytest.mark.parametrize(
    ("now", "leaves"),
    [({"concurrency": 0}, False), ({"concurrency": 4}, True), ({"delay": 1}, True)],
)
def test_a_visitor_leaves_a_host_that_is_its_owners_alone_by_new_settings(
    now: dict[str, Any], leaves: bool
):
    process = Process(concurrency=0)
    visited = process.frontier.visit(Host(name=HOST))
    owned = process.begin("other.example")

    process.follow(**now)

    assert (visited.phase is Phase.LEAVING) == leaves
    assert owned.phase is Phase.OPENING


# --- requests at once


@pytest.mark.parametrize(
    ("finished", "allowed"),
    [(0, 1), (9, 1), (10, 2), (19, 2), (20, 3), (23, 3), (24, 3), (29, 3), (30, 4), (900, 4)],
)
def test_a_new_host_is_asked_for_one_page_at_a_time_and_for_more_later(finished: int, allowed: int):
    process = Process(concurrency=4)

    host = process.serve(finished=finished)
    process.claim(6)

    assert host.queue.allowed == allowed
    assert len(process.take_all()) == allowed


# --- effects of answers and failures


def test_slow_answers_slow_the_host():
    process = Process()
    host = process.serve()
    process.claim(3)
    assert process.take() is not None

    process.answered(latency=20)

    assert host.queue.delay == host.state.delay == 0.5
    assert (process.frontier.queues.waiting, process.frontier.queues.soon) == (2, 0)
    assert process.resting() == 0.5


def test_pages_that_fail_slow_the_host_and_say_nothing_else_of_it():
    process = Process()
    host = process.serve(finished=100)
    process.claim(3)
    assert process.take() is not None

    for _ in range(10):
        process.causes.page_failed(HOST)

    assert process.resting() == 0.5
    assert (host.answered, host.queue.delay) == (10, 0.5)
    assert ((host.phase is Phase.LEAVING), host.state.failures) == (False, 0)
    assert host not in process.frontier.pending.take_unsaved()


@pytest.mark.parametrize(("retry_after", "leaves"), [(1.0, False), (5.0, False), (5.5, True)])
def test_a_host_that_fails_rests_and_is_left_where_that_takes_long(
    retry_after: float, leaves: bool
):
    process = Process()
    host = process.serve(finished=100)
    process.claim(4)
    lease = process.take()
    assert lease is not None

    process.frontier.poll_wanted.clear()
    process.failed(reason=Reason.HTTP_STATUS, retry_after=retry_after)
    process.fetched(lease)

    assert process.resting() == retry_after
    assert host in process.frontier.pending.take_unsaved(), "other processes must learn it at once"
    assert process.frontier.poll_wanted.is_set()
    assert (host.phase is Phase.LEAVING) == leaves
    assert host.queue.delay == 0.5


def test_failures_that_come_together_are_one():
    process = Process()
    host = process.serve()
    sent = process.ledger_now()

    for _ in range(8):
        process.now += 0.25
        process.failed(sent=sent)

    assert host.state.failures == 1
    assert host.state.not_before == process.at(10 - 7 * 0.25)
    assert process.resting() == 10 - 7 * 0.25


def test_a_host_that_fails_again_and_again_is_given_up_and_left():
    process = Process()
    host = process.serve()
    for _ in range(4):
        process.now += 100
        process.failed(retry_after=0.1)
        assert host.phase is not Phase.LEAVING
    process.now += 100

    fault = process.failed(retry_after=0.1)

    assert host.state.origins["http"].given_up is Reason.HOST_UNREACHABLE
    assert process.given_up == {f"http://{HOST}": "host-unreachable"}
    assert process.frontier.pending.take_losing() == [host]
    assert ((host.phase is Phase.LEAVING), fault.until) == (False, None)
    assert host in process.frontier.pending.take_unsaved()


def test_an_answer_of_a_host_that_was_given_up_takes_that_back():
    process = Process()
    host = process.serve(origins={"http": Origin(failures=4)})
    process.failed()

    process.answered()

    assert (host.state.origins["http"].given_up, host.state.failures) == (None, 0)
    assert process.given_up == {}


# --- state that is saved at once


# --- full hosts


def test_a_host_that_has_had_its_pages_is_full():
    process = Process(max_pages=3)
    host = process.serve(finished=1)

    process.answered()
    process.answered(page=False)
    assert ((host.phase is Phase.LEAVING), host.state.given_up) == (False, None)
    process.answered()

    assert host.phase is Phase.LEAVING
    assert host.state.given_up is Reason.HOST_FULL
    assert process.full == {HOST}
    left = process.forget()
    assert (left.given_up, left.not_before, left.ready_at) == (Reason.HOST_FULL, None, None)


def test_a_host_that_urls_were_started_from_is_never_full():
    process = Process(max_pages=3, unlimited=[HOST])
    host = process.serve(finished=50)

    process.answered()

    assert ((host.phase is Phase.LEAVING), host.state.given_up, process.full) == (
        False,
        None,
        set(),
    )


@pytest.mark.parametrize(
    ("now", "is_full"),
    [
        ({"max_pages": 3}, True),
        ({"max_pages": 4}, False),
        ({"max_pages": None}, False),
        ({"max_pages": 3, "unlimited": [HOST]}, False),
    ],
)
def test_a_full_host_is_served_again_where_the_limit_was_raised(now: dict[str, Any], is_full: bool):
    process = Process(**now)

    host = process.serve(finished=3, given_up=Reason.HOST_FULL)
    process.claim()

    assert (host.phase is Phase.LEAVING) == is_full
    assert host.state.given_up is (Reason.HOST_FULL if is_full else None)


# --- leaving


def test_a_host_is_idle_when_nothing_is_under_way_and_nothing_to_be_looked_at():
    process = Process()
    host = process.serve()
    assert process.idle() == [], "the ledger has not been read yet"

    host.poll(wanted=False)
    assert process.idle() == [HOST]
    (lease,) = process.claim()
    assert process.idle() == []
    assert process.take() is lease
    assert process.idle() == []
    process.answered()
    process.fetched(lease)
    assert process.idle() == [], "it is not committed"
    process.commit(lease)
    assert process.idle() == [HOST]
    process.occupy(host)
    assert process.idle() == []
    process.occupy(host, busy=False)
    process.frontier.poll(HOST)
    assert process.idle() == []


def test_of_hosts_that_are_left_the_waiting_tasks_are_given_back():
    process = Process()
    host = process.serve(finished=10)
    process.serve("other.example")
    process.claim(host="other.example")
    leases = process.claim(5)
    under_way = process.take_all()
    assert process.given_back() == []

    process.leave(host)
    back = process.given_back()

    assert {lease.task.host for lease in back} == {HOST}
    assert len(back) == 3
    assert not {lease.task.id for lease in back} & {lease.task.id for lease in under_way}
    assert process.given_back() == []
    assert process.idle() == []
    process.commit(*leases)
    assert process.idle() == [], "two requests are under way"
    for lease in under_way:
        process.fetched(lease)
    assert process.idle() == [HOST]


def test_a_host_is_not_released_before_what_waits_for_its_lost_origin_is_ignored():
    process = Process()
    host = process.serve(origins={"http": Origin(failures=4)})
    host.poll(wanted=False)
    process.failed()

    assert process.idle() == []
    assert process.frontier.pending.take_losing() == [host]
    assert process.idle() == [HOST]


@pytest.mark.parametrize(
    ("owned", "errback", "told", "loses"),
    [
        (True, None, None, True),
        (False, None, None, False),
        (True, "failed", Reason.HOST_UNREACHABLE, False),
    ],
    ids=["ignored", "ignored by the owner", "told of"],
)
def test_a_task_of_an_origin_that_was_given_up_is_ignored_with_all_others_or_told_of(
    owned: bool, errback: str | None, told: Reason | None, loses: bool
):
    process = Process(concurrency=0)
    state = Host(name=HOST, origins={"http": Origin(given_up=Reason.HOST_UNREACHABLE)})
    host = process.begin(origins=state.origins) if owned else process.frontier.visit(state)
    process.frontier.pending.take_losing()
    task = make_task(errback=errback)

    assert host.obstacle(task) is Reason.HOST_UNREACHABLE
    assert process.frontier.given_up(task) is told
    assert process.frontier.pending.take_losing() == ([host] if loses else [])


# --- leases of hosts


def test_a_host_is_asked_for_the_better_part_of_its_lease():
    process = Process()
    asked = process.now
    process.now += 10
    process.frontier.begin(lease_of(Host(name=HOST)), asked=asked)
    process.open()
    process.claim(2)

    process.now = asked + USABLE - 0.5
    assert process.may_ask()
    lease = process.take()
    assert lease is not None
    process.work(lease)
    process.now = asked + USABLE

    assert not process.may_ask()
    assert process.take() is None


def test_a_host_that_is_lost_is_asked_for_nothing_more():
    process = Process()
    host = process.serve(finished=10)
    process.claim(3)
    assert len(process.take_all()) == 2
    process.frontier.pending.save(host)

    process.lose()

    assert process.frontier.pending.take_unsaved() == set()
    assert not process.may_ask()
    assert HOST not in process.frontier.leased
    assert process.frontier.leased == {}
    assert host.phase is Phase.LEAVING
    assert len(process.given_back()) == 1
    process.fetched(process.claim()[0])
    assert process.take() is None


def test_a_host_that_is_lost_and_leased_again_keeps_what_is_under_way():
    process = Process(concurrency=1, delay=1)
    host = process.serve()
    process.answered()
    host.poll(wanted=False)
    first, second = process.claim(2)
    assert process.take() is first
    process.lose()
    process.commit(*process.given_back())
    process.now += 5

    again = process.begin(finished=3)
    process.claim()

    assert again is host
    assert ((host.phase is Phase.LEAVING), host.is_stale, host.answered, host.since) == (
        False,
        True,
        0,
        process.now,
    )
    assert process.take() is None, "one at a time, and the first one is still under way"
    process.answered()
    process.fetched(first)
    assert process.take() is not None
    assert host.state.finished == 4
    assert second.task.id not in process.held


# --- throttling of one page or of the host


def attempt_at(process: Process, lease: Lease, *, sent: datetime | None = None) -> PageAttempt:
    return PageAttempt(
        lease=lease,
        request=Request.of(lease.task),
        free=lambda: None,
        sent=sent or process.ledger_now(),
        began=process.now,
    )


def throttled(
    process: Process,
    lease: Lease,
    *,
    retry_after: float | None = None,
    sent: datetime | None = None,
) -> Defer | None:
    try:
        process.causes.throttled(
            attempt_at(process, lease, sent=sent),
            FetchError(Reason.HTTP_STATUS, status=429, retry_after=retry_after),
        )
    except Defer as deferred:
        return deferred
    return None


def answered_since(process: Process) -> None:
    process.now += 1
    process.answered(page=False)
    process.now += 1


def test_the_first_throttling_of_a_page_is_its_hosts_and_sends_it_behind_the_others():
    process = Process()
    host = process.serve()
    (lease,) = process.claim()

    fault = throttled(process, lease, retry_after=2)

    rest = host.state.not_before
    assert rest is not None
    assert fault is not None
    assert fault.until is not None
    assert fault.until >= rest + timedelta(seconds=1), (
        "after the rest, and after two turns of others"
    )
    assert host.state.origins["http"].failures == 1


def well(process: Process, **state: Any) -> HeldHost:
    """Serve a host that has answered a page before."""
    process.now += 1
    origins = {"http": Origin(good_at=START.timestamp(), probe_page=GOOD_PAGE)}
    return process.serve(**{"origins": origins, "finished": 100} | state)


def test_at_a_host_that_is_well_a_throttling_is_nobodys_until_another_page_was_asked():
    process = Process(concurrency=4)
    host = well(process)
    lease, _ = process.claim(2)
    assert process.take() is lease
    process.frontier.poll_wanted.clear()

    fault = throttled(process, lease, retry_after=2)

    assert process.frontier.poll_wanted.is_set(), "for the probe"
    assert fault is not None
    assert fault.until is not None
    assert fault.until >= process.ledger_now() + timedelta(seconds=3), "behind the others"
    assert (host.state.failures, host.state.delay, process.resting()) == (0, 0.0, 0.0)
    assert host.probe_url() == GOOD_PAGE
    assert process.take() is None, "the probe goes first"


def test_where_that_page_is_answered_its_host_goes_on_as_before_and_the_throttled_one_pays():
    process = Process(concurrency=4)
    host = well(process)
    first, second, *_ = process.claim(6)
    taken = process.take_all()
    throttled(process, first)
    throttled(process, second)

    answered_since(process)

    assert process.frontier.reopen() == []
    for lease in taken:
        process.fetched(lease)
    assert host.state.delay == 0.0
    assert len(process.take_all()) == 2, "all the others"
    assert throttled(process, first) is None
    assert throttled(process, second) is None
    assert host.state.delay == 0.0, "neither of them was throttled with the other"


def test_where_that_page_is_throttled_too_the_host_rests_as_long_as_any_of_them_asked_for():
    process = Process(concurrency=4)
    host = well(process)
    for seconds, lease in zip([1, 4, None], process.claim(3), strict=True):
        throttled(process, lease, retry_after=seconds)

    process.failed(reason=Reason.HTTP_STATUS, retry_after=2)

    assert host.state.failures == 1
    assert host.state.delay == 0.5
    assert 4 <= process.resting() <= 4.4
    assert host.probe_url() == GOOD_PAGE, "the probe comes after the rest"


def test_a_new_host_has_the_short_rest_that_it_asks_for_before_another_page_is_asked():
    process = Process(concurrency=4)
    host = well(process, finished=20)
    (lease,) = process.claim()

    throttled(process, lease, retry_after=3)
    assert (host.state.failures, process.resting()) == (0, 3)
    process.now += 3
    process.failed(reason=Reason.HTTP_STATUS, retry_after=3)

    assert (host.state.failures, host.state.delay) == (2, 1.0), "the first rest was too short"
    assert 6 <= process.resting() <= 6.6


@pytest.mark.parametrize(("number", "delay"), [(2, 0), (3, 0.5)])
def test_pages_that_are_throttled_one_and_all_slow_their_host_down(number: int, delay: float):
    """The rate limit of the host may admit the next page again."""
    process = Process(concurrency=4)
    host = well(process)
    sent = process.ledger_now()
    process.now += 1
    for lease in process.claim(number):
        throttled(process, lease, sent=sent)

    answered_since(process)

    assert host.state.delay == pytest.approx(delay, rel=0.01)


def test_a_page_pays_where_another_was_answered_well_since_its_last_throttling():
    process = Process()
    host = process.serve()
    (lease,) = process.claim()
    throttled(process, lease)

    assert throttled(process, lease) is not None
    answered_since(process)
    assert throttled(process, lease) is None
    assert throttled(process, lease) is None, "the last one keeps its state"
    assert host.answered == 3
    assert host.queue.delay == host.state.delay > 0.5


def test_the_tasks_of_a_lone_origin_that_rests_are_in_nobodys_way():
    process = Process()
    host = process.serve(origins={"http": Origin(good_at=START.timestamp())})
    secure, plain = make_task(f"https://{HOST}/s"), make_task(f"http://{HOST}/p")
    leases = [Lease(task=t, token="a:1", fence=1, expires=START) for t in (secure, plain)]
    process.held.add(leases)
    for lease in leases:
        process.frontier.queues.add(lease, now=process.now)

    fault = process.failed(reason=Reason.TLS, scheme="https")

    assert fault.until == process.at(11)
    (put_off,) = process.given_back()
    assert (put_off.task.url, put_off.task.due) == (secure.url, process.at(10))
    assert host.obstacle(secure) == process.at(10)
    assert host.obstacle(plain) is None
    assert host.phase is not Phase.LEAVING
    assert process.take_all() == [leases[1]]
    told = process.causes.rests.standstill(process.ledger_now())
    assert told == Standstill(hosts=1, until=process.at(10), why="tls")


@pytest.mark.parametrize(
    ("origin", "cause"),
    [
        ({"probe_page": GOOD_PAGE}, None),
        ({"probe_page": GOOD_PAGE, "failures": 1}, Cause.ORIGIN),
        ({}, Cause.ORIGIN),
    ],
    ids=["known", "failing", "none"],
)
def test_good_pages_that_the_ledger_knows_are_asked_before_a_silent_host_is_to_blame(
    origin: dict[str, Any], cause: Cause | None
):
    """The network may be away when a crawl is taken up again."""
    process = Process()
    for name in ("a.example", "b.example", "c.example"):
        process.begin(name, origins={"http": Origin(**origin)})

    uplink = process.frontier.uplink

    assert uplink.failed("a.example", Reason.CONNECT, began=process.now, now=process.now) is cause


@pytest.mark.parametrize("number", [2, 4, 5])
def test_a_page_that_is_banned_through_every_proxy_or_four_says_nothing_of_them(number: int):
    causes = Process().causes
    causes.proxies = pool = ProxyPool(Settings(proxies=[f"http://p{n}:1" for n in range(number)]))
    page = make_task("http://a.example/")
    asked = pool.proxies[:4]

    found = [causes.banned(page, proxy) for proxy in asked]

    assert found == [False] * (len(asked) - 1) + [True]
    assert all(pool.wait(proxy, "a.example") <= 0 for proxy in asked)


async def refused(process: Process) -> Defer | None:
    """Have the port of the host refuse a request that was sent now."""
    error = FetchError(Reason.CONNECT)
    error.port_closed = True
    return await process.causes.unanswered(
        HOST, f"http://{HOST}/", error, sent=process.ledger_now(), began=process.now
    )


@pytest.mark.parametrize(
    ("others", "failures", "good_at", "rest"),
    [(99, 1, None, 0.5), (100, 1, None, 10), (1, 0, None, 10), (1, 1, 1.0, 10)],
)
async def test_a_port_that_refuses_has_its_long_rests_beside_very_many_silent_hosts_or_another(
    others: int, failures: int, good_at: float | None, rest: float
):
    """Of more hosts than were looked at, some may have work."""
    origins = {"http": Origin(good_at=good_at)}
    names = [f"{number}.example" for number in range(others)]
    known = [Host(name=name, failures=failures, origins=origins) for name in names]

    async def busiest(*, limit: int) -> tuple[list[Host], list[Host]]:
        return [], known[:limit]

    process = Process(ledger=SimpleNamespace(hosts=SimpleNamespace(busiest=busiest)))
    process.serve()

    await refused(process)

    assert process.resting() == rest


@pytest.mark.parametrize("rest", [0, 10])
async def test_a_page_that_its_proxy_may_have_failed_waits_for_another_one(rest: int):
    process = Process()
    pool = ProxyPool(Settings(proxies=["http://one:1", "http://two:1"]), clock=lambda: process.now)
    process.causes.proxies = pool
    error = FetchError(Reason.DISCONNECTED)
    error.proxy, other = pool.proxies
    if rest:
        pool.failed(other, "refused")
    process.serve()
    (lease,) = process.claim()

    with pytest.raises(Defer) as caught:
        await process.causes.failed(attempt_at(process, lease), error)

    assert caught.value.until == (process.at(rest) if rest else None)
