"""The hosts of one process: begun, served and left, and their state in the ledger."""

import logging
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from crawlcw.api.host_limits import HostLimit
from crawlcw.api.request import Request
from crawlcw.api.settings import Settings
from crawlcw.crawl.causes import PageAttempt
from crawlcw.crawl.host_queues import AHEAD
from crawlcw.crawl.hosts import HeldHost, Phase
from crawlcw.errors import Defer, FetchError, Reason
from crawlcw.fetch.proxies import ProxyPool
from crawlcw.model.health import Cause, Origin
from crawlcw.model.hosts import Host, RobotsRecord
from crawlcw.model.standstill import Standstill
from crawlcw.model.task import Lease
from tests.support.frontiers import HOST, USABLE, Process, lease_of
from tests.support.ledgers import START, make_task, visit

GOOD_PAGE = f"http://{HOST}/good"
ROBOTS = RobotsRecord(origin="http://example.com", body="", expires=START + timedelta(days=1))


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
    process.part()
    assert HOST not in process.frontier.hosts
    assert not process.may_ask()


def test_a_host_is_looked_at_when_it_is_open():
    """Tasks that were read before that are not claimed."""
    process = Process()
    host = process.begin(robots=ROBOTS)
    host.look = False

    process.open()

    assert host.opened
    assert host.look
    assert host.state.robots == ROBOTS, "as the ledger has it"
    assert process.idle() == []


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


def test_the_delay_counts_from_when_a_request_was_sent():
    """The turn was earlier if connecting took long or the loop was busy."""
    process = Process(delay=2)
    process.serve(finished=100)
    process.claim(2)
    assert process.take() is not None

    process.now += 1.5
    process.frontier.sent(HOST, at=process.now - 0.5)

    assert process.resting() == 1.5
    process.now += 1.5
    assert process.take() is not None
    process.frontier.sent(HOST, at=process.now - 10)
    assert process.resting() == 2, "an old time brings no turn forward"


def test_a_host_without_delay_does_not_rest_when_a_request_was_sent():
    process = Process()
    process.serve()

    process.frontier.sent(HOST, at=process.now)

    assert process.resting() == 0


def test_the_delay_of_a_host_that_is_not_here_is_that_of_its_limits():
    process = Process(delay=2)
    process.begin()
    process.open(crawl_delay=3)

    assert process.frontier.delay(HOST) == 3
    assert process.frontier.delay("other.example") == 2


def test_a_host_that_rests_in_the_ledger_rests_here():
    process = Process(delay=1)
    process.serve(not_before=process.at(4))
    process.claim()

    process.now += 3.9
    assert process.take() is None
    process.now += 0.1
    assert process.take() is not None


def test_a_rest_that_is_over_holds_nothing_up():
    process = Process()

    process.serve(not_before=process.at(-50))
    process.claim()

    assert process.take() is not None


def test_a_host_that_was_asked_for_its_robots_txt_rests_one_delay():
    process = Process(delay=2)
    process.begin()
    process.now += 7
    process.open(crawl_delay=3, asked=True)
    process.claim()

    assert process.resting() == 3
    process.now += 2.9
    assert process.take() is None
    process.now += 0.1
    assert process.take() is not None


def test_a_host_whose_robots_txt_is_not_known_is_not_served_for_a_look_at_those_that_are_opened():
    process = Process()
    process.begin()
    process.claim()

    assert process.frontier.reopen() == []
    assert process.take() is None


def test_a_host_that_failed_its_owner_before_is_asked_for_a_good_page_first():
    process = Process()

    host = process.begin(origins={"http": Origin(good_url=GOOD_PAGE, failures=1)}, failures=1)

    assert process.frontier.reopen() == [host]
    host.busy = True
    assert process.frontier.reopen() == [], "it is being asked"


@pytest.mark.parametrize("clean", [True, False])
def test_what_was_not_released_rests_one_delay_first(clean: bool):
    """Its previous owner may have sent a request just now."""
    process = Process(delay=2)

    process.serve(clean=clean)
    process.claim()

    assert process.resting() == (0 if clean else 2)
    assert (process.take() is None) == (not clean)


def test_what_was_not_released_rests_as_long_as_its_robots_txt_asks_for():
    process = Process(delay=1)
    process.begin(clean=False)
    process.now += 0.5

    process.open(crawl_delay=4)

    assert process.resting() == 3.5


@pytest.mark.parametrize(
    ("state", "leaves"),
    [
        ({"not_before": START + timedelta(seconds=5)}, False),
        ({"not_before": START + timedelta(seconds=5.1)}, True),
        ({"delay": 30.0}, False),
        ({"delay": 30.0, "clean": False}, True),
        ({"given_up": Reason.HOST_UNREACHABLE}, True),
        ({"failures": 3}, False),
    ],
)
def test_a_host_that_cannot_be_asked_soon_is_left_at_once(state: dict[str, Any], leaves: bool):
    process = Process()

    host = process.begin(**state)

    assert (host.phase is Phase.LEAVING) == leaves
    assert process.idle() == ([HOST] if leaves else [])


def test_what_is_left_at_once_is_ready_when_its_rest_is_over():
    process = Process()
    process.begin(not_before=process.at(60))

    left = process.part()

    assert left.not_before == left.ready_at == process.at(60)


# --- shared hosts


@pytest.mark.parametrize(
    ("concurrency", "delay", "shared"), [(0, 0.0, True), (8, 0.0, False), (0, 1.0, False)]
)
def test_a_host_without_limits_may_be_shared(concurrency: int, delay: float, shared: bool):
    process = Process(concurrency=concurrency, delay=delay)

    assert process.frontier.shares(HOST) == shared


def test_hosts_are_shared_where_a_limit_of_the_spider_lets_one_be():
    no_limit = HostLimit(concurrency=0, delay=0.0)

    assert Process(limits={HOST: no_limit}).frontier.may_share
    assert not Process().frontier.may_share


@pytest.mark.parametrize(
    ("most", "unlimited", "shared"), [(3, [], False), (3, [HOST], True), (None, [], True)]
)
def test_a_host_whose_pages_are_limited_is_its_owners_alone(
    most: int | None, unlimited: list[str], shared: bool
):
    """A limit on pages counts those of one process only."""
    process = Process(concurrency=0, max_pages=most, unlimited=unlimited)

    assert process.frontier.shares(HOST) == shared


def test_a_visitor_asks_without_owning():
    process = Process(concurrency=0)
    process.frontier.visit(Host(name=HOST))
    process.open()
    process.claim(3)

    assert HOST not in process.frontier.leased
    assert process.frontier.leased == {}
    assert process.may_ask()
    assert len(process.take_all()) == 3


@pytest.mark.parametrize("renewed_after", [None, USABLE / 2])
def test_a_visitor_asks_as_long_as_it_renews_its_tasks(renewed_after: float | None):
    """One that was frozen past their leases would ask for pages that others have asked for since.

    These are its requests under way as well, whose time limits are over when it goes on.
    """
    process = Process(concurrency=0)
    process.frontier.visit(Host(name=HOST))
    process.open()
    process.claim(3)
    if renewed_after is not None:
        process.now += renewed_after
        process.frontier.tasks_renewed(asked=process.now)

    process.now += USABLE - 1
    assert process.may_ask()
    assert process.take() is not None
    process.now += 1
    assert not process.may_ask()
    assert process.take() is None
    process.frontier.tasks_renewed(asked=process.now)
    assert process.may_ask()
    assert len(process.take_all()) == 2


@pytest.mark.parametrize("lost", [True, False])
def test_a_host_of_ones_own_is_not_asked_for_longer_because_its_tasks_are_renewed(lost: bool):
    process = Process()
    process.serve()
    process.claim(3)
    if lost:
        process.lose()

    process.now += 0 if lost else USABLE
    process.frontier.tasks_renewed(asked=process.now)

    assert not process.may_ask()


def test_a_shared_host_becomes_owned_with_what_is_under_way():
    process = Process(concurrency=0)
    host = process.frontier.visit(Host(name=HOST))
    process.open()
    process.claim(3)
    under_way = process.take()
    assert under_way is not None

    assert process.begin(finished=40) is host

    assert HOST in process.frontier.leased
    assert host.state.finished == 40
    assert len(process.take_all()) == 2
    process.now += USABLE
    assert not process.may_ask(), "from now on the host needs a lease"


@pytest.mark.parametrize(("state", "seconds"), [({"delay": 3.0}, 3), ({"failures": 1}, 0), ({}, 0)])
def test_a_shared_host_that_becomes_owned_is_served_as_the_ledger_says(
    state: dict[str, Any], seconds: float
):
    process = Process(concurrency=0)
    process.frontier.visit(Host(name=HOST))
    process.open()

    process.begin(**state)
    process.claim(3)

    at_once = len(process.take_all())
    assert at_once == (1 if state else 3)
    assert process.resting() == seconds


@pytest.mark.parametrize("retry_after", [3.0, 60.0])
def test_a_shared_host_that_fails_is_left_alone_by_visitors_for_its_rest(retry_after: float):
    process = Process(concurrency=0)
    host = process.frontier.visit(Host(name=HOST))
    process.open()

    process.failed(reason=Reason.HTTP_STATUS, retry_after=retry_after)

    assert host.phase is Phase.LEAVING
    assert process.frontier.unsaved == set(), "a visitor writes no state of a host"
    process.part()
    assert process.frontier.shares("other.example")
    process.now += retry_after - 0.1
    assert not process.frontier.shares(HOST)
    process.now += 0.1
    assert process.frontier.shares(HOST)


def test_a_visitor_that_becomes_the_owner_knows_of_its_rest():
    """The ledger does not know the rest: a visitor writes no state of a host."""
    process = Process(concurrency=0)
    process.frontier.visit(Host(name=HOST))
    process.open()
    process.failed(reason=Reason.HTTP_STATUS, retry_after=60)
    process.part()
    process.now += 10

    assert process.begin().phase is Phase.LEAVING

    assert process.part().not_before == process.at(50)


def test_a_host_that_its_owner_gave_back_rests_as_the_ledger_says():
    """A user may have had it tried again meanwhile."""
    process = Process()
    process.serve()
    process.failed()
    process.part()

    process.begin()

    assert process.resting() == 0


def test_a_visited_host_is_idle_when_nothing_of_it_is_under_way():
    """The next visit reads its state again: the owner may have slowed the host down."""
    process = Process(concurrency=0)
    process.frontier.visit(Host(name=HOST))
    process.open()
    (lease,) = process.claim()
    assert process.take() is lease
    assert process.idle() == []

    process.work(lease)
    process.frontier.look(HOST)

    assert process.idle() == [HOST]


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


def test_a_host_keeps_its_new_limit_when_it_answers():
    process = Process(concurrency=8)
    process.serve(finished=100)
    process.claim(8)

    process.follow(concurrency=2)
    process.answered()

    assert len(process.take_all()) == 2


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


@pytest.mark.parametrize(
    ("latency", "expected"),
    [(0.1, [1, 2, *[3] * 7, 4, 4]), (3.0, [*[1] * 10, *[2] * 5, *[3] * 4])],
)
def test_each_answer_counts_at_once(latency: float, expected: list[int]):
    process = Process(concurrency=4)
    process.serve()
    process.claim(32)
    at_once = []

    while leases := process.take_all():
        at_once.append(len(leases))
        for lease in leases:
            process.work(lease, latency=latency)

    # A slow host rises a step every ten pages; any host stays at three until 24 are finished.
    assert at_once == expected


def test_where_there_is_no_limit_there_is_no_first_step():
    process = Process(concurrency=0)

    host = process.serve()
    process.claim(50)

    assert host.queue.allowed == 0
    assert len(process.take_all()) == 50


@pytest.mark.parametrize("concurrency", [0, 8])
def test_a_host_that_failed_is_asked_for_one_page_until_it_is_back(concurrency: int):
    process = Process(concurrency=concurrency)
    process.serve(finished=100, failures=2)
    process.claim(6)

    assert len(process.take_all()) == 1
    process.now += 10
    assert process.take() is None
    process.answered(page=False)

    assert len(process.take_all()) == 5


def test_a_host_that_was_fast_and_failed_is_not_asked_for_as_many_pages_as_before():
    process = Process(concurrency=8)
    host = process.serve(finished=30)
    for _ in range(4):
        process.answered(page=False)
    assert host.queue.allowed == 8

    process.failed()
    process.now += 10
    process.answered(page=False)

    assert host.queue.allowed == 5


# --- effects of answers and failures


def test_an_answer_counts():
    process = Process()
    host = process.serve()

    process.answered()
    process.answered(page=False)

    assert (host.answered, host.state.finished) == (2, 1)
    assert host not in process.frontier.unsaved
    assert host.phase is not Phase.LEAVING


def test_slow_answers_slow_the_host():
    process = Process()
    host = process.serve()
    process.claim(3)
    assert process.take() is not None

    process.answered(latency=20)

    assert host.queue.delay == host.state.delay == 0.5
    assert (process.frontier.queues.waiting, process.frontier.queues.soon) == (2, 0)
    assert process.resting() == 0.5


def test_a_host_whose_delay_was_forgotten_is_served_without():
    process = Process()
    host = process.serve(finished=100, delay=0.0625)
    process.claim(3)
    assert process.take() is not None

    process.answered()
    process.now += 0.0625

    assert host.queue.delay == 0
    assert process.take() is not None
    assert process.resting() == 0


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
    assert host not in process.frontier.unsaved


@pytest.mark.parametrize(("retry_after", "leaves"), [(1.0, False), (5.0, False), (5.5, True)])
def test_a_host_that_fails_rests_and_is_left_where_that_takes_long(
    retry_after: float, leaves: bool
):
    process = Process()
    host = process.serve(finished=100)
    process.claim(4)
    lease = process.take()
    assert lease is not None

    process.frontier.look_wanted.clear()
    process.failed(reason=Reason.HTTP_STATUS, retry_after=retry_after)
    process.fetched(lease)

    assert process.resting() == retry_after
    assert host in process.frontier.unsaved, "other processes must learn it at once"
    assert process.frontier.look_wanted.is_set()
    assert (host.phase is Phase.LEAVING) == leaves
    assert host.queue.delay == 0.5


def test_after_its_rest_a_host_is_asked_for_one_page():
    process = Process()
    process.serve(finished=100)
    process.claim(4)
    lease = process.take()
    assert lease is not None

    process.failed(retry_after=1)
    process.fetched(lease)
    process.now += 1

    assert len(process.take_all()) == 1


def test_a_failure_without_retry_after_is_a_rest_of_ten_seconds():
    process = Process()
    host = process.serve()

    process.failed()

    assert process.resting() == 10
    assert host.phase is Phase.LEAVING
    assert host.state.not_before == process.at(10)
    told = process.causes.rests.standstill(process.ledger_now())
    assert told == Standstill(hosts=1, until=process.at(10), why="connect")


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
    assert process.frontier.losing == {host}
    assert ((host.phase is Phase.LEAVING), fault.until) == (False, None)
    assert host in process.frontier.unsaved


def test_an_answer_of_a_host_that_was_given_up_takes_that_back():
    process = Process()
    host = process.serve(origins={"http": Origin(failures=4)})
    process.failed()

    process.answered()

    assert (host.state.origins["http"].given_up, host.state.failures) == (None, 0)
    assert process.given_up == {}


async def test_a_host_that_was_parted_with_is_told_nothing():
    process = Process()
    process.serve()
    (lease,) = process.claim()
    assert process.take() is lease
    process.part()

    process.answered()
    process.causes.page_failed(HOST)
    process.failed()
    assert throttled(process, lease) is not None
    assert await refused(process) is not None
    process.lose()
    process.frontier.sent(HOST, at=process.now)
    process.frontier.look(HOST)

    assert HOST not in process.frontier.hosts
    assert process.frontier.shares(HOST) is False


@pytest.mark.parametrize("owned", [True, False])
def test_failures_of_hosts_are_counted_by_reason(owned: bool):
    process = Process()
    if owned:
        process.serve()

    process.failed()
    process.failed(reason=Reason.HTTP_STATUS)
    process.failed()

    assert process.failures == {Reason.CONNECT: 2, Reason.HTTP_STATUS: 1}


# --- state that is saved at once


def test_a_robots_txt_is_told_at_once_where_others_may_take_part():
    process = Process(concurrency=0)
    host = process.begin()

    process.open(robots=ROBOTS, asked=True)

    assert host.state.robots == ROBOTS
    assert host in process.frontier.unsaved


@pytest.mark.parametrize(
    ("limits", "crawl_delay"), [({"concurrency": 8}, 0), ({"delay": 1}, 0), ({"concurrency": 0}, 1)]
)
def test_where_nobody_may_take_part_a_robots_txt_can_wait(
    limits: dict[str, Any], crawl_delay: float
):
    process = Process(**limits)
    host = process.begin()

    process.open(robots=ROBOTS, crawl_delay=crawl_delay, asked=True)

    assert host.state.robots == ROBOTS
    assert host not in process.frontier.unsaved


def test_that_a_host_answers_again_is_told_at_once():
    process = Process()
    host = process.serve()
    process.failed()
    process.frontier.unsaved.clear()
    process.now += 11

    process.answered()

    assert host in process.frontier.unsaved


def test_opening_a_host_makes_no_failure_known():
    process = Process()
    host = process.begin()
    process.failed(reason=Reason.HTTP_STATUS, retry_after=1)
    process.now += 1

    process.open(robots=ROBOTS, asked=True)

    assert host in process.frontier.unsaved


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
    left = process.part()
    assert (left.given_up, left.not_before, left.ready_at) == (Reason.HOST_FULL, None, None)


@pytest.mark.parametrize("late", ["answer", "no-page", "page-failure", "host-failure"])
def test_what_comes_late_does_not_make_a_full_host_less_full(late: str):
    process = Process(max_pages=3)
    host = process.serve(finished=2)
    process.answered()

    if late in ("answer", "no-page"):
        process.answered(page=late == "answer")
    elif late == "page-failure":
        process.causes.page_failed(HOST)
    else:
        process.failed()

    assert host.phase is Phase.LEAVING
    assert host.state.given_up is Reason.HOST_FULL


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


def test_a_raised_limit_revives_no_host_that_is_dead():
    process = Process(max_pages=4)

    assert process.begin(finished=3, given_up=Reason.DNS_NXDOMAIN).phase is Phase.LEAVING


# --- leaving


def test_a_host_is_idle_when_nothing_is_under_way_and_nothing_to_be_looked_at():
    process = Process()
    host = process.serve()
    assert process.idle() == [], "the ledger has not been read yet"

    host.look = False
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
    host.busy = True
    assert process.idle() == []
    host.busy = False
    process.frontier.look(HOST)
    assert process.idle() == []


def test_tasks_of_a_host_are_wanted_some_seconds_before_its_turn():
    process = Process(delay=8)
    host, other = process.serve(), process.serve("other.example")
    assert {*process.frontier.wanted()[0]} == {host, other}

    process.frontier.sent(HOST, at=process.now - 1)
    process.frontier.sent("other.example", at=process.now)

    assert process.frontier.wanted() == ([], process.now + 8 - 1 - AHEAD)
    process.now += 2
    assert process.frontier.wanted()[0] == [host]
    host.look = False
    assert process.frontier.wanted() == ([], process.now + 1)


def test_a_host_of_which_a_lost_task_is_still_asked_for_is_not_idle():
    """The next owner would send requests beside this one."""
    process = Process(concurrency=1)
    host = process.serve()
    host.look = False
    (lease,) = process.claim()
    assert process.take() is lease

    process.held.lose([lease.task.id])
    assert process.idle() == []
    process.fetched(lease)

    assert process.idle() == [HOST]


def test_a_host_of_which_a_lost_task_is_settled_unasked_is_not_idle():
    """Leased again meanwhile, it would be asked for one page too many at once."""
    process = Process(concurrency=1)
    host = process.serve()
    host.look = False
    lease = Lease(task=make_task(f"http://{HOST}/"), token="a:1", fence=1, expires=START)
    process.held.add([lease])
    process.frontier.queues.add(lease, now=process.now, asks=False)
    assert process.idle() == []
    assert process.take() is lease

    process.held.lose([lease.task.id])
    assert process.idle() == []
    process.fetched(lease)

    assert process.idle() == [HOST]


def test_more_tasks_of_a_slow_host_are_wanted_as_soon_as_one_is_begun_with():
    process = Process(delay=5)
    host = process.serve()
    assert process.frontier.wanted()[0] == [host]

    process.claim()
    assert process.frontier.wanted()[0] == []
    process.take()

    assert process.frontier.wanted()[0] == [host]


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


def test_a_host_that_is_left_rests_for_the_next_owner_too():
    process = Process(delay=3)
    host = process.serve()
    (lease,) = process.claim()
    assert process.take() is lease
    process.now += 1
    process.work(lease)
    host.look = False

    left = process.part()

    assert (left.not_before, left.ready_at) == (process.at(2), None)
    assert left.finished == 1
    assert HOST not in process.frontier.hosts


@pytest.mark.parametrize("rest", [0, 2])
def test_a_host_that_may_have_more_is_ready_when_it_may_be_asked(rest: float):
    process = Process()
    host = process.serve(not_before=process.at(rest))
    host.look = True

    left = process.part()

    assert left.not_before == (process.at(2) if rest else None)
    assert left.ready_at == process.at(rest)


def test_a_host_is_not_released_before_what_waits_for_its_lost_origin_is_ignored():
    process = Process()
    host = process.serve(origins={"http": Origin(failures=4)})
    host.look = False
    process.failed()

    assert process.idle() == []
    assert process.frontier.losing == {host}

    process.frontier.losing.clear()

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
    process.frontier.losing.clear()
    task = make_task(errback=errback)

    assert host.obstacle(task) is Reason.HOST_UNREACHABLE
    assert process.frontier.given_up(task) is told
    assert process.frontier.losing == ({host} if loses else set())


def test_a_task_of_an_origin_that_was_not_given_up_is_told_of_nothing():
    process = Process()
    process.begin()

    assert process.frontier.given_up(make_task(errback="failed")) is None
    assert process.frontier.given_up(make_task("http://other.example/")) is None, "not held"


def test_what_waits_for_a_host_that_was_parted_with_is_out_of_its_lane():
    process = Process()
    process.serve()
    process.claim(2)

    process.part()

    assert process.frontier.queues.waiting == 0
    assert process.take() is None


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


def test_a_renewal_counts_from_when_it_was_asked_for():
    process = Process()
    process.serve()
    process.claim()
    process.now += 90
    assert process.take() is None

    process.frontier.hosts[HOST].renewed(asked=process.now - 5)

    assert process.take() is not None
    process.now += USABLE - 5
    assert not process.may_ask()


def test_a_host_that_is_lost_is_asked_for_nothing_more():
    process = Process()
    host = process.serve(finished=10)
    process.claim(3)
    assert len(process.take_all()) == 2
    host.save_soon()

    process.lose()

    assert process.frontier.unsaved == set()
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
    host.look = False
    first, second = process.claim(2)
    assert process.take() is first
    process.lose()
    process.commit(*process.given_back())
    process.now += 5

    again = process.begin(finished=3)
    process.claim()

    assert again is host
    assert ((host.phase is Phase.LEAVING), host.look, host.answered, host.since) == (
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


def test_a_host_that_is_lost_and_leased_again_takes_the_pace_of_the_ledger():
    process = Process()
    host = process.serve(finished=100)
    process.lose()

    process.begin(finished=100, delay=2.0)
    process.claim(2)

    assert host.queue.delay == 2
    assert len(process.take_all()) == 1
    assert process.resting() == 2


def test_a_host_that_is_lost_and_leased_again_before_its_robots_txt_is_known_is_opened():
    process = Process()
    host = process.begin()
    process.lose()

    process.begin()
    process.claim()

    assert host.phase is Phase.OPENING
    assert process.take() is None


def test_a_host_that_is_leased_again_before_its_loss_is_known_is_asked_for_a_good_page_first():
    process = Process()
    host = well(process)
    process.failed(reason=Reason.HTTP_STATUS, retry_after=1)
    assert host.phase is Phase.OPENING

    process.frontier.begin(lease_of(host.state), asked=process.now)

    assert process.frontier.reopen() == [host]
    host.busy = True
    assert process.frontier.reopen() == []
    assert host.phase is Phase.OPENING, "until it has answered"


@pytest.mark.parametrize(("not_before", "leaves"), [(3, False), (30, True)])
def test_a_host_that_is_leased_again_rests_as_the_next_owner_has_learned(
    not_before: float, leaves: bool
):
    process = Process()
    host = process.serve()
    process.lose()

    process.begin(not_before=process.at(not_before), clean=False)

    assert process.resting() == not_before
    assert (host.phase is Phase.LEAVING) == leaves


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
    origins = {"http": Origin(good_at=START.timestamp(), good_url=GOOD_PAGE)}
    return process.serve(**{"origins": origins, "finished": 100} | state)


def test_at_a_host_that_is_well_a_throttling_is_nobodys_until_another_page_was_asked():
    process = Process(concurrency=4)
    host = well(process)
    lease, _ = process.claim(2)
    assert process.take() is lease
    process.frontier.look_wanted.clear()

    fault = throttled(process, lease, retry_after=2)

    assert process.frontier.look_wanted.is_set(), "for the probe"
    assert fault is not None
    assert fault.until is not None
    assert fault.until >= process.ledger_now() + timedelta(seconds=3), "behind the others"
    assert (host.state.failures, host.state.delay, process.resting()) == (0, 0.0, 0.0)
    assert host.probe_url() == GOOD_PAGE
    assert process.take() is None, "the probe goes first"


def test_a_host_that_is_left_and_fails_is_left_all_the_same():
    process = Process(concurrency=4)
    host = well(process)
    process.leave(host)

    process.failed(reason=Reason.HTTP_STATUS, retry_after=1)

    assert host.phase is Phase.LEAVING


@pytest.mark.parametrize("owned", [True, False])
def test_a_host_that_is_left_or_that_another_process_has_is_not_asked_for_a_good_page(owned: bool):
    process = Process(concurrency=0)
    state = Host(name=HOST, origins={"http": Origin(good_url=GOOD_PAGE)})
    host = process.begin(origins=state.origins) if owned else process.frontier.visit(state)
    process.open()
    (lease,) = process.claim()
    assert process.take() is lease
    if owned:
        process.leave(host)

    throttled(process, lease)

    assert host.phase is Phase.LEAVING


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


def test_an_answer_to_what_was_sent_before_a_throttling_clears_nobody():
    process = Process(concurrency=4)
    host = well(process)
    (lease,) = process.claim()
    sent = process.ledger_now()
    process.now += 1
    throttled(process, lease)

    process.answered(sent=sent, page=False)

    assert host.probe_url() == GOOD_PAGE


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


def test_a_host_that_has_failed_just_before_pays_at_once():
    process = Process(concurrency=4)
    failed = Origin(good_at=START.timestamp(), good_url=GOOD_PAGE, failures=1)
    host = well(process, failures=1, origins={"http": failed})
    (lease,) = process.claim()

    throttled(process, lease, retry_after=2)

    assert (host.state.failures, host.state.delay) == (2, 0.5)
    assert 4 <= process.resting() <= 4.4


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


@pytest.mark.parametrize(
    ("state", "retry_after"), [({"finished": 20}, 6), ({"finished": 20}, None), ({}, 3)]
)
def test_no_other_host_rests_before_that(state: dict[str, Any], retry_after: float | None):
    process = Process(concurrency=4)
    well(process, **state)
    (lease,) = process.claim()

    throttled(process, lease, retry_after=retry_after)

    assert process.resting() == 0


def test_a_new_host_rests_before_that_until_it_was_cleared_once():
    process = Process(concurrency=4)
    well(process, finished=20)
    first, second = process.claim(2)
    throttled(process, first, retry_after=2)
    process.now += 2
    answered_since(process)
    process.frontier.reopen()

    throttled(process, second, retry_after=2)

    assert process.resting() == 0


def test_a_host_with_a_delay_is_slowed_down_though_another_page_is_answered():
    """A rate limit may be reached now and then: slow down no further than for failed pages."""
    process = Process(concurrency=4)
    host = well(process, delay=1.5)
    (lease,) = process.claim()

    throttled(process, lease, retry_after=3600)
    answered_since(process)

    assert host.state.failures == 0
    assert host.state.delay == pytest.approx(2.0, rel=0.01)
    assert process.resting() < 3


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


def doubted() -> tuple[Process, HeldHost, Lease, Lease]:
    """Return a host that is doubted for the first of two pages, and answers others since."""
    process = Process(concurrency=4)
    host = well(process)
    first, second = process.claim(2)
    throttled(process, first)
    answered_since(process)
    return process, host, first, second


def test_a_page_that_was_under_way_while_another_doubt_ended_is_nobodys_fault_either():
    process, host, _, second = doubted()
    assert host.phase is Phase.OPENING

    throttled(process, second)

    assert (host.state.failures, host.state.delay) == (0, 0.0)
    assert host.probe_url() == GOOD_PAGE


def test_a_page_that_is_slow_while_others_are_not_slows_nobody():
    process = Process(concurrency=4)
    host = process.serve()
    slowly, quickly = process.at(0), process.at(1)

    process.now += 7
    process.answered(latency=0.1, sent=quickly)
    process.answered(latency=7.0, sent=slowly)
    assert host.state.delay == 0.0

    process.answered(latency=6.0, sent=quickly)
    assert host.state.delay == 0.5, "no later request was answered before this one"


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


def test_a_page_is_not_to_blame_any_more_where_others_are_throttled_too():
    process = Process()
    process.serve()
    lease, other = process.claim(2)
    throttled(process, lease)
    answered_since(process)
    assert throttled(process, lease) is None

    process.now += 1
    throttled(process, other)
    process.now += 1

    assert throttled(process, lease) is not None


def limited(process: Process) -> tuple[HeldHost, Lease, Lease]:
    """Serve a host with a delay; two pages were throttled before it answered another one."""
    host = well(process)
    first, second = process.claim(2)
    for lease in (first, second):
        throttled(process, lease)
    process.failed(reason=Reason.HTTP_STATUS, retry_after=2)
    assert host.state.delay == 0.5
    process.now += 3
    process.frontier.reopen()
    answered_since(process)
    return host, first, second


def test_at_a_host_with_a_delay_it_is_open_whether_a_page_pays_until_another_is_asked():
    """Each page in turn may come too early, and each would lose an attempt."""
    process = Process(concurrency=4)
    host, first, second = limited(process)

    assert throttled(process, first) is not None
    assert host.probe_url() == GOOD_PAGE
    process.failed(reason=Reason.HTTP_STATUS, retry_after=2)

    assert host.state.delay == pytest.approx(1.0, rel=0.01), "a throttled probe does as well"
    assert host.state.failures == 1
    assert throttled(process, second) is not None


def test_at_a_host_with_a_delay_a_page_pays_once_another_came_in_time():
    process = Process(concurrency=4)
    host, first, second = limited(process)
    throttled(process, first)
    answered_since(process)
    process.frontier.reopen()

    assert throttled(process, first) is None
    process.now += 1
    assert throttled(process, first) is None, "one probe is enough"
    assert host.state.delay <= 2, "a rate limit may be reached now and then"
    assert throttled(process, second) is not None, "each page needs a probe of its own"


def test_what_was_known_of_a_page_before_its_host_had_a_delay_is_asked_again():
    process = Process(concurrency=4)
    host = well(process)
    (first,) = process.claim()
    throttled(process, first)
    answered_since(process)
    process.frontier.reopen()
    process.failed(reason=Reason.HTTP_STATUS, retry_after=2)
    answered_since(process)
    assert host.state.delay > 0

    assert throttled(process, first) is not None
    assert host.probe_url() == GOOD_PAGE


def test_a_page_that_pays_while_it_is_open_who_is_to_blame_for_another_slows_nobody():
    process, host, first, second = doubted()
    process.frontier.reopen()
    throttled(process, second)

    assert throttled(process, first) is None
    assert host.state.delay == 0.0


def test_a_lane_is_closed_until_a_page_is_asked_that_was_answered_before():
    process = Process()
    good_page = f"http://{HOST}/good"
    host = process.serve(
        origins={"http": Origin(good_at=START.timestamp(), good_url=good_page, failures=1)}
    )
    (lease,) = process.claim()

    process.failed(reason=Reason.HTTP_STATUS, retry_after=1)

    assert host.probe_url() == good_page
    assert process.frontier.reopen() == [host]
    process.now += 50
    assert process.take() is None
    answered_since(process)
    assert process.frontier.reopen() == []
    assert process.take() is lease


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


def test_a_late_failure_of_a_lone_origin_that_has_answered_since_is_no_rest():
    process = Process()
    process.serve(origins={"https": Origin(good_at=START.timestamp())})
    sent = process.ledger_now()
    process.now += 1
    process.failed()
    process.now += 20
    process.answered(page=False)

    fault = process.failed(sent=sent)

    assert (process.resting(), fault.until) == (0, process.at(1))


def test_while_the_network_is_checked_nothing_is_begun_with():
    process = Process()
    process.serve()
    process.frontier.uplink.is_blocked = True

    assert not process.may_ask()


@pytest.mark.parametrize(
    ("origin", "cause"),
    [
        ({"good_url": GOOD_PAGE}, None),
        ({"good_url": GOOD_PAGE, "failures": 1}, Cause.ORIGIN),
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


def test_links_to_a_host_that_was_full_before_are_dropped():
    process = Process(max_pages=3)

    process.begin(finished=3, given_up=Reason.HOST_FULL)

    assert process.full == {HOST}


@pytest.mark.parametrize("number", [2, 4, 5])
def test_a_page_that_is_banned_through_every_proxy_or_four_says_nothing_of_them(number: int):
    causes = Process().causes
    causes.proxies = pool = ProxyPool(Settings(proxies=[f"http://p{n}:1" for n in range(number)]))
    page = make_task("http://a.example/")
    asked = pool.proxies[:4]

    found = [causes.banned(page, proxy) for proxy in asked]

    assert found == [False] * (len(asked) - 1) + [True]
    assert all(pool.wait(proxy, "a.example") <= 0 for proxy in asked)


def test_a_page_that_is_banned_with_four_sessions_pays_and_no_proxy_does(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.INFO)
    causes, page = Process().causes, make_task("http://a.example/")

    assert [causes.banned(page, None) for _ in range(4)] == [False, False, False, True]
    assert caplog.records == []


def test_a_ban_of_the_proxy_that_a_request_has_named_is_its_pages_own():
    causes = Process().causes
    causes.proxies = ProxyPool(Settings(proxies=["http://one:1", "http://two:1"]))
    (named,) = ProxyPool(Settings(proxies=["http://own:1"])).proxies

    assert causes.banned(make_task("http://a.example/"), named)


def test_a_page_that_is_visited_again_is_no_further_one_of_its_host():
    process = Process(max_pages=1)
    host = process.serve()

    again = make_task(f"http://{HOST}/", visit=visit())
    process.causes.finished(again, good_url=None, size=0)

    assert (host.state.finished, host.state.given_up) == (0, None)


def test_no_host_is_full_before_all_start_urls_are_known():
    process = Process(max_pages=1)
    host = process.serve()
    process.frontier.seeded = False

    process.causes.finished(make_task(f"http://{HOST}/"), good_url=None, size=0)

    assert host.state.given_up is None


async def refused(process: Process) -> Defer | None:
    """Have the port of the host refuse a request that was sent now."""
    error = FetchError(Reason.CONNECT)
    error.port_closed = True
    return await process.causes.unanswered(
        HOST, f"http://{HOST}/", error, sent=process.ledger_now(), began=process.now
    )


async def test_an_answer_before_a_check_of_the_network_has_begun_spares_it():
    process = Process()
    frontier = process.frontier
    for name in ("b.example", "c.example"):
        frontier.uplink.learned(name, f"http://{name}/")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(refused, process)
        await anyio.wait_all_tasks_blocked()
        assert frontier.uplink.is_blocked
        frontier.look_wanted.clear()
        process.causes.answered()
        tasks.start_soon(process.causes.watch_uplink)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()

    assert not frontier.uplink.is_blocked
    assert frontier.look_wanted.is_set(), "the tasks that wait may be begun with"


async def test_a_host_that_has_answered_rests_as_long_as_any_though_nothing_else_waits():
    """Else a server that is started anew would be given up before it is back."""
    process = Process()
    process.serve()
    process.answered(page=False)
    process.now += 1

    await refused(process)

    assert process.resting() >= process.frontier.policy.backoff_base.total_seconds()


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


async def test_each_failure_of_a_host_is_logged_with_its_reason(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    process = Process()
    process.serve()
    process.answered(page=False)
    (lease,) = process.claim()

    throttled(process, lease)
    await refused(process)

    told = [(vars(each)["event"], vars(each)["reason"]) for each in caplog.records]
    assert told == [("host_failed", "http-status"), ("host_failed", "connect")]


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
