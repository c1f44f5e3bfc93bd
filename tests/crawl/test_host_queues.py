"""HostQueues: the order of turns, without a clock and without an event loop."""

from collections.abc import Sequence

import pytest

from crawlcw.crawl.host_queues import HostQueue, HostQueues
from crawlcw.model.task import Lease
from tests.support.ledgers import START, make_task

pytestmark = pytest.mark.quick

FOREVER = float("inf")
A, B = "a.example", "b.example"


def lease(url: str, *, priority: int = 0) -> Lease:
    return Lease(task=make_task(url, priority=priority), token="a:1", fence=1, expires=START)


def begin(
    queues: HostQueues,
    host: str,
    *,
    limit: int = 0,
    delay: float = 0.0,
    next_start: float = 0.0,
    deadline: float = FOREVER,
) -> HostQueue:
    """Begin a host at its full concurrency."""
    queue = queues.begin(host, limit=limit, next_start=next_start, deadline=deadline)
    queues.pace(host, delay=delay, allowed=limit, now=0)
    return queue


def queues_of(
    *urls: str,
    limit: int = 0,
    delay: float = 0.0,
    deadline: float = FOREVER,
    half_lease: float = 1800,
) -> HostQueues:
    """Return HostQueues of open hosts, host A among them, with a lease for each URL at time 0."""
    queues = HostQueues(half_lease=half_lease)
    leases = [lease(url) for url in urls]
    for host in dict.fromkeys([A, *(each.task.host for each in leases)]):
        begin(queues, host, limit=limit, delay=delay, deadline=deadline)
        queues.open(host, now=0)
    for each in leases:
        queues.add(each, now=0)
    return queues


def numbered(number: int, *, host: str = A) -> list[str]:
    return [f"http://{host}/{n}" for n in range(number)]


def taken(queues: HostQueues, *, now: float) -> list[str]:
    """Take all leases whose turn has come; return their URLs."""
    urls = []
    while (found := queues.take(now=now)) is not None:
        urls.append(found.task.url)
    return urls


def taken_one(queues: HostQueues, *, now: float) -> str | None:
    """Take the next lease, as for one free fetcher; return its URL."""
    found = queues.take(now=now)
    return None if found is None else found.task.url


def urls_of(leases: Sequence[Lease]) -> list[str]:
    return [each.task.url for each in leases]


# --- turns


def test_a_host_waits_until_it_is_opened():
    queues = HostQueues(half_lease=1800)
    begin(queues, A)
    for url in numbered(2):
        queues.add(lease(url), now=0)

    assert taken(queues, now=100) == []
    assert queues.next_turn() is None

    queues.open(A, now=100)

    assert queues.next_turn() == 100
    assert taken(queues, now=100) == numbered(2)
    queues.add(lease(f"http://{A}/2"), now=100)
    assert taken(queues, now=100) == [f"http://{A}/2"]


def test_a_host_is_served_no_earlier_than_it_was_begun_for():
    queues = HostQueues(half_lease=1800)
    begin(queues, A, next_start=7)
    queues.open(A, now=0)
    queues.add(lease(f"http://{A}/"), now=0)

    assert queues.next_turn() == 7
    assert taken(queues, now=6.9) == []
    assert taken(queues, now=7) == [f"http://{A}/"]


def test_two_requests_of_a_host_are_its_delay_apart():
    queues = queues_of(*numbered(3), delay=2)

    assert taken(queues, now=0) == [f"http://{A}/0"]
    assert queues.next_turn() == 2
    assert taken(queues, now=1.9) == []
    assert taken(queues, now=3) == [f"http://{A}/1"]
    assert queues.next_turn() == 5, "counted from the start, not from the turn that was missed"


def test_hosts_take_turns():
    queues = queues_of(*numbered(2), *numbered(2, host=B))

    assert taken(queues, now=0) == [
        f"http://{A}/0",
        f"http://{B}/0",
        f"http://{A}/1",
        f"http://{B}/1",
    ]


def test_within_a_host_the_higher_priority_goes_first_and_then_the_older():
    queues = queues_of(f"http://{A}/first")
    for url, priority in (("low", -1), ("high", 5), ("second", 0), ("high-too", 5)):
        queues.add(lease(f"http://{A}/{url}", priority=priority), now=0)

    urls = [url.rpartition("/")[2] for url in taken(queues, now=0)]

    assert urls == ["high", "high-too", "first", "second", "low"]


def test_a_host_gets_no_more_than_its_concurrency():
    """HOSTILE 1.17."""
    queues = queues_of(*numbered(4), limit=2)

    assert len(taken(queues, now=0)) == 2
    assert taken(queues, now=1000) == []
    assert queues.next_turn() is None

    queues.finished(A, now=1000)

    assert queues.next_turn() == 1000
    assert taken(queues, now=1000) == [f"http://{A}/2"]


def test_a_slow_host_holds_up_nobody_else():
    """HOSTILE 1.17."""
    queues = queues_of(*numbered(2), f"http://{B}/0", limit=1)

    assert taken(queues, now=0) == [f"http://{A}/0", f"http://{B}/0"]


def test_where_nothing_waits_there_is_no_turn():
    queues = queues_of()

    assert queues.next_turn() is None
    assert queues.take(now=1000) is None


def test_a_turn_that_no_fetcher_was_free_for_is_there_at_once():
    queues = queues_of(*numbered(1), *numbered(1, host=B))

    assert taken_one(queues, now=5) == f"http://{A}/0"

    turn = queues.next_turn()
    assert turn is not None
    assert turn <= 5


# --- rests, deadlines and paces


def test_a_host_that_rests_is_left_alone_until_then():
    queues = queues_of(*numbered(1), *numbered(1, host=B))

    queues.rest(A, until=30)

    assert taken(queues, now=29.9) == [f"http://{B}/0"]
    assert queues.next_turn() == 30
    assert taken(queues, now=30) == [f"http://{A}/0"]


def test_a_shorter_rest_ends_no_longer_one():
    queues = queues_of(*numbered(1))
    queues.rest(A, until=30)

    queues.rest(A, until=10)

    assert taken(queues, now=29) == []


def test_a_host_whose_turn_was_missed_rests_all_the_same():
    queues = queues_of(*numbered(1), *numbered(1, host=B))
    assert taken_one(queues, now=0) == f"http://{A}/0"

    queues.rest(B, until=30)

    assert queues.take(now=29) is None
    assert queues.next_turn() == 30
    assert taken_one(queues, now=30) == f"http://{B}/0"


def test_a_turn_comes_earlier_where_the_delay_has_become_shorter():
    queues = queues_of(*numbered(4), delay=300)
    assert taken_one(queues, now=0) == f"http://{A}/0"
    assert queues.next_turn() == 300

    queues.pace(A, delay=10, allowed=0, limit=0, now=5)

    assert queues.next_turn() == 10
    assert taken(queues, now=9) == []
    assert taken(queues, now=10) == [f"http://{A}/1"]
    assert taken(queues, now=300) == [f"http://{A}/2"]
    assert taken(queues, now=305) == []


def test_a_shorter_delay_ends_no_rest():
    queues = queues_of(*numbered(2), delay=300)
    assert taken_one(queues, now=0) == f"http://{A}/0"
    queues.rest(A, until=60)
    queues.rest(A, until=30)

    queues.pace(A, delay=1, allowed=0, limit=0, now=5)

    assert taken(queues, now=59) == []
    assert taken(queues, now=60) == [f"http://{A}/1"]


def test_a_shorter_delay_of_the_user_counts_from_the_answer_that_brought_a_longer_one():
    """The request that it answered may be the last of several redirects."""
    queues = queues_of(*numbered(2))
    assert taken_one(queues, now=0) == f"http://{A}/0"
    queues.pace(A, delay=300, allowed=0, now=5)

    queues.pace(A, delay=10, allowed=0, limit=0, now=6)

    assert taken(queues, now=14) == []
    assert taken(queues, now=15) == [f"http://{A}/1"]


def test_a_longer_delay_of_the_user_counts_from_the_last_request():
    queues = queues_of(*numbered(2), delay=1)
    assert taken_one(queues, now=0) == f"http://{A}/0"
    queues.finished(A, now=0.5)

    queues.pace(A, delay=60, allowed=0, limit=0, now=0.8)

    assert taken(queues, now=59) == []
    assert taken(queues, now=60) == [f"http://{A}/1"]


def test_a_lane_past_its_deadline_has_no_turn_and_gets_it_back():
    queues = queues_of(*numbered(2), deadline=10)

    assert taken_one(queues, now=9.9) == f"http://{A}/0"
    assert queues.take(now=10) is None
    assert queues.next_turn() is None

    queues.extend(A, deadline=20, now=12)

    assert queues.next_turn() == 12
    assert taken(queues, now=12) == [f"http://{A}/1"]


def test_a_deadline_that_passes_while_no_fetcher_is_free_counts():
    queues = queues_of(*numbered(1), *numbered(1, host=B), deadline=10)
    assert taken_one(queues, now=9) == f"http://{A}/0"

    assert queues.take(now=11) is None
    assert queues.next_turn() is None

    queues.extend(B, deadline=20, now=12)

    assert taken_one(queues, now=12) == f"http://{B}/0"


def test_what_happens_to_a_lane_past_its_deadline_gives_it_no_turn():
    queues = queues_of(*numbered(2), limit=1, deadline=10)
    assert taken_one(queues, now=9) == f"http://{A}/0"
    assert queues.take(now=11) is None

    queues.finished(A, now=11)
    queues.add(lease(f"http://{A}/2"), now=11)
    queues.pace(A, delay=0, allowed=2, now=11)

    assert queues.take(now=12) is None


def test_a_deadline_may_be_brought_forward():
    queues = queues_of(*numbered(1))

    queues.extend(A, deadline=float("-inf"), now=5)

    assert queues.take(now=5) is None


def test_a_longer_delay_counts_from_the_answer_that_brought_it():
    queues = queues_of(*numbered(3), delay=1)
    assert taken_one(queues, now=0) == f"http://{A}/0"

    queues.pace(A, delay=4, allowed=0, now=0.5)
    queues.finished(A, now=0.5)

    assert taken(queues, now=4.4) == []
    assert taken(queues, now=4.5) == [f"http://{A}/1"]
    assert queues.next_turn() == 8.5


def test_a_longer_delay_ends_no_rest():
    queues = queues_of(*numbered(2))
    assert taken_one(queues, now=0) == f"http://{A}/0"
    queues.rest(A, until=30)

    queues.pace(A, delay=4, allowed=0, now=1)

    assert taken(queues, now=29) == []
    assert taken(queues, now=30) == [f"http://{A}/1"]


def test_an_answer_that_changes_no_delay_moves_no_turn():
    queues = queues_of(*numbered(2), delay=2)
    assert taken_one(queues, now=0) == f"http://{A}/0"

    queues.pace(A, delay=2, allowed=0, now=1.5)

    assert taken(queues, now=2) == [f"http://{A}/1"]


@pytest.mark.parametrize("delay", [1, 0])
def test_a_shorter_delay_counts_from_the_next_request_on(delay: float):
    queues = queues_of(*numbered(3), delay=4)
    assert taken_one(queues, now=0) == f"http://{A}/0"

    queues.pace(A, delay=delay, allowed=0, now=3.5)

    assert taken(queues, now=3.9) == []
    assert taken_one(queues, now=4) == f"http://{A}/1"
    assert taken_one(queues, now=4 + delay) == f"http://{A}/2"


def test_more_requests_at_once_are_allowed_at_once():
    queues = queues_of(*numbered(4), limit=1)
    assert len(taken(queues, now=0)) == 1

    queues.pace(A, delay=0, allowed=3, now=1)

    assert queues.next_turn() == 1
    assert len(taken(queues, now=1)) == 2


def test_fewer_requests_at_once_wait_for_those_under_way():
    queues = queues_of(*numbered(4), limit=2)
    assert len(taken(queues, now=0)) == 2

    queues.pace(A, delay=0, allowed=1, now=1)
    queues.finished(A, now=1)
    assert taken(queues, now=1) == []
    queues.finished(A, now=2)

    assert len(taken(queues, now=2)) == 1


def test_a_turn_is_lost_when_fewer_requests_at_once_are_allowed():
    queues = queues_of(*numbered(3), limit=2)
    assert taken_one(queues, now=0) == f"http://{A}/0"

    queues.pace(A, delay=0, allowed=1, now=1)

    assert taken(queues, now=1) == []
    queues.finished(A, now=2)
    assert taken(queues, now=2) == [f"http://{A}/1"]


def counts(queues: HostQueues) -> tuple[int, int]:
    return queues.waiting, queues.soon


def test_what_waits_for_hosts_with_a_delay_is_counted_apart():
    queues = queues_of(*numbered(3), *numbered(2, host=B))

    assert counts(queues) == (5, 5)
    queues.pace(A, delay=1, allowed=0, now=0)
    assert counts(queues) == (5, 2)
    queues.pace(A, delay=2, allowed=0, now=0)
    assert counts(queues) == (5, 2)
    assert len(taken(queues, now=0)) == 3
    assert counts(queues) == (2, 0)
    queues.pace(A, delay=0, allowed=0, now=0)
    assert counts(queues) == (2, 2)


def test_of_each_host_one_turn_comes_soon():
    """Its further tasks occupy no fetcher."""
    queues = queues_of(*numbered(5), *numbered(2, host=B), limit=3)

    assert counts(queues) == (7, 5)
    queues.pace(A, delay=0, allowed=1, now=0)
    assert counts(queues) == (7, 3)
    queues.pace(A, delay=0, allowed=0, now=0)
    assert counts(queues) == (7, 7)
    queues.pace(A, delay=0, allowed=2, now=0)
    assert taken_one(queues, now=0) == f"http://{A}/0"
    assert counts(queues) == (6, 4), "the fetcher of the first may take the next one"


# --- order of turns


@pytest.mark.parametrize(
    ("old", "new", "seconds", "first"),
    [
        (0, 0, 0.1, A),
        (0, 3, 2.9, B),
        (0, 3, 3.1, A),
        (0, 10, 9.9, B),
        (0, 100, 9.9, B),  # at most ten seconds count
        (0, 100, 10.1, A),
        (-3, 0, 2.9, B),
        (-3, 0, 3.1, A),
        (-100, 0, 10.1, A),
        (-100, 100, 19.9, B),
        (-100, 100, 20.1, A),
    ],
)
def test_a_priority_is_worth_as_many_seconds_of_waiting_up_to_ten(
    old: int, new: int, seconds: float, first: str
):
    queues = queues_of()
    begin(queues, B)
    queues.open(B, now=0)
    queues.add(lease(f"http://{A}/", priority=old), now=100)

    queues.add(lease(f"http://{B}/", priority=new), now=100 + seconds)

    assert taken_one(queues, now=100 + seconds) == f"http://{first}/"
    assert taken_one(queues, now=100 + seconds) is not None


@pytest.mark.parametrize(
    ("delay", "seconds", "first"), [(3, 2, B), (3, 4, A), (60, 4, B), (60, 6, A)]
)
def test_a_hosts_delay_counts_as_waiting_up_to_what_is_held_for_it(
    delay: float, seconds: float, first: str
):
    queues = HostQueues(half_lease=1800)
    for host, pause in ((A, 0), (B, delay)):
        begin(queues, host, delay=pause)
        queues.open(host, now=0)
    queues.add(lease(f"http://{A}/"), now=100)
    queues.add(lease(f"http://{B}/"), now=100 + seconds)

    found = queues.take(now=200)

    assert found is not None
    assert found.task.host == first


def test_the_best_task_of_a_host_counts_for_it():
    queues = queues_of()
    begin(queues, B)
    queues.open(B, now=0)
    queues.add(lease(f"http://{A}/", priority=1), now=0)
    for priority in (-5, 2, 0):
        queues.add(lease(f"http://{B}/{priority}", priority=priority), now=0)

    urls = taken(queues, now=0)

    assert urls == [f"http://{B}/2", f"http://{A}/", f"http://{B}/0", f"http://{B}/-5"]


def test_where_fetchers_are_few_no_host_starves():
    queues = queues_of()
    begin(queues, B)
    queues.open(B, now=0)
    for n in range(200):
        queues.add(lease(f"http://{A}/{n}", priority=-100), now=0)
        queues.add(lease(f"http://{B}/{n}", priority=100), now=0)

    # One fetcher; each page takes a second.
    urls = [taken_one(queues, now=now) for now in range(200)]

    low = [second for second, url in enumerate(urls) if url and A in url]
    # It has waited since its last turn, the other one for a second.
    assert low[:3] == [21, 42, 63]
    assert None not in urls
    assert len(low) == 9, "all other pages had the higher priority"


# --- number of tasks held for a host


@pytest.mark.parametrize(
    ("limit", "delay", "half_lease", "room"),
    [
        (0, 0, 30, 1 << 30),  # no limit
        (8, 0, 30, 32),  # a few turns
        (1, 0, 30, 4),
        (0, 1, 30, 5),  # the number served in five seconds
        (8, 2, 30, 2),
        (8, 0.1, 30, 32),
        (0, 1, 2, 2),  # or in half a lease
        (8, 100, 30, 1),  # an even slower host gets one
    ],
)
def test_room_is_what_a_host_can_serve_soon(limit: int, delay: float, half_lease: float, room: int):
    queues = queues_of(limit=limit, delay=delay, half_lease=half_lease)

    assert queues.room(A) == room


@pytest.mark.parametrize(
    ("limit", "allowed", "room"), [(8, 8, 32), (8, 4, 32), (8, 3, 24), (8, 1, 8), (0, 1, 8)]
)
def test_room_is_less_for_a_host_that_may_not_yet_have_its_limit(
    limit: int, allowed: int, room: int
):
    queues = queues_of(limit=limit)

    queues.pace(A, delay=0, allowed=allowed, now=0)

    assert queues.room(A) == room


def test_room_follows_a_new_limit_of_the_user():
    queues = queues_of(limit=1)

    queues.pace(A, delay=0, allowed=1, limit=8, now=0)

    assert queues.room(A) == 8


def test_room_is_less_by_what_waits_and_never_negative():
    queues = queues_of(*numbered(3), limit=1)
    assert queues.room(A) == 1

    for url in numbered(6)[3:]:
        queues.add(lease(url), now=0)

    assert queues.room(A) == 0


def test_room_follows_the_pace():
    queues = queues_of(*numbered(1))

    queues.pace(A, delay=2.5, allowed=0, now=0)

    assert queues.room(A) == 1


def test_a_host_is_hungry_when_half_of_what_is_worth_holding_is_used_up():
    queues = queues_of(*numbered(4), limit=1)
    assert not queues.by_host[A].is_low()

    hungry = []
    for now in range(4):
        assert taken_one(queues, now=now) is not None
        queues.finished(A, now=now)
        hungry.append(queues.by_host[A].is_low())

    assert hungry == [False, True, True, True]


def test_a_host_that_is_worth_one_lease_is_hungry_without_it():
    queues = queues_of(*numbered(1), delay=60)
    assert not queues.by_host[A].is_low()

    assert taken_one(queues, now=0) is not None

    assert queues.by_host[A].is_low()


# --- leases that ask nothing of their hosts


def unasked(*hosts: str) -> HostQueues:
    """Return HostQueues of both hosts, with a lease of each of *hosts* that asks nothing."""
    queues = queues_of(delay=60)
    begin(queues, B)
    for host in hosts:
        queues.add(lease(f"http://{host}/unasked"), now=0, asks=False)
    return queues


def test_a_lease_that_asks_nothing_waits_for_no_turn():
    queues = unasked(A)
    queues.rest(A, until=30)

    assert queues.waiting == 1
    assert queues.next_turn() == float("-inf")
    assert taken(queues, now=0) == [f"http://{A}/unasked"]
    assert queues.waiting == 0
    assert queues.next_turn() is None


def test_a_lease_that_asks_nothing_is_under_way_until_its_end():
    queues = queues_of(f"http://{A}/0", limit=1)
    queues.add(lease(f"http://{A}/unasked"), now=0, asks=False)

    assert taken(queues, now=0) == [f"http://{A}/unasked"]
    queues.finished(A, now=1)
    assert taken(queues, now=1) == [f"http://{A}/0"]


def test_leases_that_ask_nothing_are_withdrawn_by_host_and_by_choice():
    queues = unasked(A, B, B)

    assert urls_of(queues.withdraw(host=A)) == [f"http://{A}/unasked"]
    assert queues.withdraw(unwanted=lambda lease: lease.task.host == A) == []
    assert queues.withdraw(host=B, unwanted=lambda _: False) == []

    assert queues.waiting == 2
    assert urls_of(queues.end(B)) == [f"http://{B}/unasked"] * 2
    assert queues.waiting == 0
    assert queues.next_turn() is None


# --- removal from the queues


def test_lost_leases_are_dropped_from_their_host_queues():
    queues = queues_of(*numbered(2), *numbered(1, host=B))
    queues.pace(A, delay=1, allowed=0, now=0)

    dropped = {make_task(f"http://{A}/0").id, make_task(f"http://{B}/0").id}
    queues.withdraw(unwanted=lambda lease: lease.task.id in dropped)

    assert counts(queues) == (1, 0)
    assert taken(queues, now=0) == [f"http://{A}/1"]


def test_after_a_drop_the_highest_priority_is_still_the_first():
    queues = queues_of()
    for priority in (9, 1, 8, 2, 7, 3):
        queues.add(lease(f"http://{A}/{priority}", priority=priority), now=0)

    dropped = {make_task(f"http://{A}/{n}").id for n in (9, 1)}
    queues.withdraw(unwanted=lambda lease: lease.task.id in dropped)

    assert taken(queues, now=0) == [f"http://{A}/{n}" for n in (8, 7, 3, 2)]


def test_emptied_lanes_give_up_all_that_waits_and_can_be_filled_again():
    queues = queues_of(*numbered(2), *numbered(1, host=B))

    assert sorted(urls_of(queues.withdraw())) == [*numbered(2), *numbered(1, host=B)]

    assert queues.waiting == 0
    assert taken(queues, now=0) == []
    queues.add(lease(f"http://{A}/2"), now=0)
    assert taken(queues, now=0) == [f"http://{A}/2"]


def test_clearing_a_host_leaves_the_others_theirs():
    queues = queues_of(*numbered(2), *numbered(1, host=B), delay=1)

    assert urls_of(queues.withdraw(host=A)) == numbered(2)

    assert counts(queues) == (1, 0)
    assert taken(queues, now=0) == [f"http://{B}/0"]
    queues.add(lease(f"http://{A}/2"), now=0)
    assert taken(queues, now=0) == [f"http://{A}/2"]


def test_a_host_that_ends_gives_back_what_waits_and_has_no_turn():
    queues = queues_of(*numbered(2), *numbered(1, host=B), delay=1)

    assert urls_of(queues.end(A)) == numbered(2)

    assert counts(queues) == (1, 0)
    assert taken(queues, now=0) == [f"http://{B}/0"]
    assert len(queues.by_host) == 1
    with pytest.raises(KeyError):
        queues.by_host[A]


def test_a_host_that_ends_while_its_turn_is_missed_has_no_turn():
    queues = queues_of(*numbered(1), *numbered(1, host=B))
    assert taken_one(queues, now=0) == f"http://{A}/0"

    queues.end(B)

    assert queues.take(now=1) is None
    assert queues.next_turn() is None


def test_the_end_of_a_request_of_a_host_that_has_ended_is_no_news():
    queues = queues_of(*numbered(1))
    assert taken_one(queues, now=0) is not None
    queues.end(A)

    queues.finished(A, now=1)

    assert queues.next_turn() is None


def test_a_host_that_begins_again_is_as_good_as_new():
    queues = queues_of(*numbered(2), limit=1, delay=60)
    assert taken_one(queues, now=0) is not None
    queues.finished(A, now=1)
    queues.end(A)

    begin(queues, A, limit=2)
    queues.add(lease(f"http://{A}/2"), now=1)
    queues.add(lease(f"http://{A}/3"), now=1)

    assert taken(queues, now=2) == [], "the turn of the old queue is not that of the new one"
    queues.open(A, now=2)
    assert taken(queues, now=2) == [f"http://{A}/2", f"http://{A}/3"]
    assert counts(queues) == (0, 0)
