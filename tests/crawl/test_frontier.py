"""The hosts of one process: begun, served and left, and their state in the ledger."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from crawlcw.api.request import Request
from crawlcw.crawl.causes import PageAttempt
from crawlcw.crawl.hosts import FrontierHost, Phase
from crawlcw.errors import Defer, FetchError, Reason
from crawlcw.model.health import Origin
from crawlcw.model.hosts import Host
from crawlcw.model.loans import Loan
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


# --- requests at once


# --- effects of answers and failures


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


# --- leaving


def test_a_host_is_idle_when_nothing_is_under_way_and_nothing_to_be_looked_at():
    process = Process()
    host = process.serve()
    assert process.idle() == [], "the ledger has not been read yet"

    host.poll(is_stale=False)
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
    host.poll(is_stale=False)
    process.failed()

    assert process.idle() == []
    assert process.frontier.pending.take_to_ignore() == [host]
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
    loan = Loan("b:1", host=HOST, slots=0, expires=process.at(9))
    host = process.begin(origins=state.origins) if owned else process.frontier.borrow(state, loan)
    process.frontier.pending.take_to_ignore()
    task = make_task(errback=errback)

    assert host.obstacle(task) is Reason.HOST_UNREACHABLE
    assert process.frontier.given_up_reason(task) is told
    assert process.frontier.pending.take_to_ignore() == ([host] if loses else [])


# --- leases of hosts


def test_a_host_is_asked_for_the_better_part_of_its_lease():
    process = Process()
    asked = process.now
    process.now += 10
    process.frontier.add_leased(lease_of(Host(name=HOST)), sent_at=asked)
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
    host.poll(is_stale=False)
    first, second = process.claim(2)
    assert process.take() is first
    process.lose()
    process.commit(*process.given_back())
    process.now += 5

    again = process.begin(finished=3)
    process.claim()

    assert again is host
    assert (
        (host.phase is Phase.LEAVING),
        host.is_stale,
        host.slice_responses,
        host.slice_start,
    ) == (
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
        sent=sent or process.ledger_now(),
        started_at=process.now,
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


def test_the_first_throttling_of_a_page_is_its_hosts_and_sends_it_behind_the_others():
    process = Process()
    host = process.serve()
    (lease,) = process.claim()

    fault = throttled(process, lease, retry_after=2)

    rest = host.state.not_before
    assert rest is not None
    assert fault is not None
    assert fault.due is not None
    assert fault.due >= rest + timedelta(seconds=1), "after the rest, and after two turns of others"
    assert host.state.origins["http"].failures == 1


def well(process: Process, **state: Any) -> FrontierHost:
    """Serve a host that has answered a page before."""
    process.now += 1
    origins = {"http": Origin(good_at=START.timestamp(), probes={GOOD_PAGE: 0})}
    return process.serve(**{"origins": origins, "finished": 100} | state)
