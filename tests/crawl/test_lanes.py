"""Lanes: whose turn it is, decided without a clock and without a loop."""

from collections.abc import Sequence

import pytest

from crawlcw.crawl.lanes import Lane, Lanes
from crawlcw.model.task import Lease
from tests.support.ledgers import START, make_task

pytestmark = pytest.mark.quick

FOREVER = float("inf")
A, B = "a.example", "b.example"


def lease(url: str, *, priority: int = 0) -> Lease:
    return Lease(task=make_task(url, priority=priority), token="a:1", fence=1, expires=START)


def begin(
    lanes: Lanes,
    host: str,
    *,
    limit: int = 0,
    delay: float = 0.0,
    next_start: float = 0.0,
    deadline: float = FOREVER,
) -> Lane:
    """Begin a host that may have as many requests at once as it ever may."""
    return lanes.begin(
        host, limit=limit, allowed=limit, delay=delay, next_start=next_start, deadline=deadline
    )


def lanes_of(
    *urls: str,
    limit: int = 0,
    delay: float = 0.0,
    deadline: float = FOREVER,
    half_lease: float = 1800,
) -> Lanes:
    """Lanes of open hosts, host A among them, which hold a lease for each URL since time 0."""
    lanes = Lanes(half_lease=half_lease)
    leases = [lease(url) for url in urls]
    for host in dict.fromkeys([A, *(each.task.host for each in leases)]):
        begin(lanes, host, limit=limit, delay=delay, deadline=deadline)
        lanes.open(host, now=0)
    for each in leases:
        lanes.add(each, now=0)
    return lanes


def numbered(number: int, *, host: str = A) -> list[str]:
    return [f"http://{host}/{n}" for n in range(number)]


def taken(lanes: Lanes, *, now: float) -> list[str]:
    """The URLs of all leases whose turn has come."""
    urls = []
    while (found := lanes.take(now=now)) is not None:
        urls.append(found.task.url)
    return urls


def taken_one(lanes: Lanes, *, now: float) -> str | None:
    """The URL of the next lease, as if one fetcher were free."""
    found = lanes.take(now=now)
    return None if found is None else found.task.url


def urls_of(leases: Sequence[Lease]) -> list[str]:
    return [each.task.url for each in leases]


# --- turns


def test_a_host_waits_until_it_is_opened():
    lanes = Lanes(half_lease=1800)
    begin(lanes, A)
    for url in numbered(2):
        lanes.add(lease(url), now=0)

    assert taken(lanes, now=100) == []
    assert lanes.next_turn() is None

    lanes.open(A, now=100)

    assert lanes.next_turn() == 100
    assert taken(lanes, now=100) == numbered(2)
    lanes.add(lease(f"http://{A}/2"), now=100)
    assert taken(lanes, now=100) == [f"http://{A}/2"]


def test_a_host_is_served_no_earlier_than_it_was_begun_for():
    lanes = Lanes(half_lease=1800)
    begin(lanes, A, next_start=7)
    lanes.open(A, now=0)
    lanes.add(lease(f"http://{A}/"), now=0)

    assert lanes.next_turn() == 7
    assert taken(lanes, now=6.9) == []
    assert taken(lanes, now=7) == [f"http://{A}/"]


def test_two_requests_of_a_host_are_its_delay_apart():
    lanes = lanes_of(*numbered(3), delay=2)

    assert taken(lanes, now=0) == [f"http://{A}/0"]
    assert lanes.next_turn() == 2
    assert taken(lanes, now=1.9) == []
    assert taken(lanes, now=3) == [f"http://{A}/1"]
    assert lanes.next_turn() == 5, "counted from the start, not from the turn that was missed"


def test_hosts_take_turns():
    lanes = lanes_of(*numbered(2), *numbered(2, host=B))

    assert taken(lanes, now=0) == [
        f"http://{A}/0",
        f"http://{B}/0",
        f"http://{A}/1",
        f"http://{B}/1",
    ]


def test_within_a_host_the_higher_priority_goes_first_and_then_the_older():
    lanes = lanes_of(f"http://{A}/first")
    for url, priority in (("low", -1), ("high", 5), ("second", 0), ("high-too", 5)):
        lanes.add(lease(f"http://{A}/{url}", priority=priority), now=0)

    urls = [url.rpartition("/")[2] for url in taken(lanes, now=0)]

    assert urls == ["high", "high-too", "first", "second", "low"]


def test_a_host_gets_no_more_than_its_concurrency():
    """HOSTILE 1.17."""
    lanes = lanes_of(*numbered(4), limit=2)

    assert len(taken(lanes, now=0)) == 2
    assert taken(lanes, now=1000) == []
    assert lanes.next_turn() is None

    lanes.finished(A, now=1000)

    assert lanes.next_turn() == 1000
    assert taken(lanes, now=1000) == [f"http://{A}/2"]


def test_a_slow_host_holds_up_nobody_else():
    """HOSTILE 1.17."""
    lanes = lanes_of(*numbered(2), f"http://{B}/0", limit=1)

    assert taken(lanes, now=0) == [f"http://{A}/0", f"http://{B}/0"]


def test_where_nothing_waits_there_is_no_turn():
    lanes = lanes_of()

    assert lanes.next_turn() is None
    assert lanes.take(now=1000) is None


def test_a_turn_that_no_fetcher_was_free_for_is_there_at_once():
    lanes = lanes_of(*numbered(1), *numbered(1, host=B))

    assert taken_one(lanes, now=5) == f"http://{A}/0"

    turn = lanes.next_turn()
    assert turn is not None
    assert turn <= 5


# --- rests, deadlines and paces


def test_a_host_that_rests_is_left_alone_until_then():
    lanes = lanes_of(*numbered(1), *numbered(1, host=B))

    lanes.rest(A, until=30)

    assert taken(lanes, now=29.9) == [f"http://{B}/0"]
    assert lanes.next_turn() == 30
    assert taken(lanes, now=30) == [f"http://{A}/0"]


def test_a_shorter_rest_ends_no_longer_one():
    lanes = lanes_of(*numbered(1))
    lanes.rest(A, until=30)

    lanes.rest(A, until=10)

    assert taken(lanes, now=29) == []


def test_a_host_whose_turn_was_missed_rests_all_the_same():
    lanes = lanes_of(*numbered(1), *numbered(1, host=B))
    assert taken_one(lanes, now=0) == f"http://{A}/0"

    lanes.rest(B, until=30)

    assert lanes.take(now=29) is None
    assert lanes.next_turn() == 30
    assert taken_one(lanes, now=30) == f"http://{B}/0"


def test_a_turn_comes_earlier_where_the_delay_has_become_shorter():
    lanes = lanes_of(*numbered(4), delay=300)
    assert taken_one(lanes, now=0) == f"http://{A}/0"
    assert lanes.next_turn() == 300

    lanes.pace(A, delay=10, allowed=0, limit=0, now=5)

    assert lanes.next_turn() == 10
    assert taken(lanes, now=9) == []
    assert taken(lanes, now=10) == [f"http://{A}/1"]
    assert taken(lanes, now=300) == [f"http://{A}/2"]
    assert taken(lanes, now=305) == []


def test_a_shorter_delay_ends_no_rest():
    lanes = lanes_of(*numbered(2), delay=300)
    assert taken_one(lanes, now=0) == f"http://{A}/0"
    lanes.rest(A, until=60)

    lanes.pace(A, delay=1, allowed=0, limit=0, now=5)

    assert taken(lanes, now=59) == []
    assert taken(lanes, now=60) == [f"http://{A}/1"]


def test_a_lane_past_its_deadline_has_no_turn_and_gets_it_back():
    lanes = lanes_of(*numbered(2), deadline=10)

    assert taken_one(lanes, now=9.9) == f"http://{A}/0"
    assert lanes.take(now=10) is None
    assert lanes.next_turn() is None

    lanes.extend(A, deadline=20, now=12)

    assert lanes.next_turn() == 12
    assert taken(lanes, now=12) == [f"http://{A}/1"]


def test_a_deadline_that_passes_while_no_fetcher_is_free_counts():
    lanes = lanes_of(*numbered(1), *numbered(1, host=B), deadline=10)
    assert taken_one(lanes, now=9) == f"http://{A}/0"

    assert lanes.take(now=11) is None
    assert lanes.next_turn() is None

    lanes.extend(B, deadline=20, now=12)

    assert taken_one(lanes, now=12) == f"http://{B}/0"


def test_what_happens_to_a_lane_past_its_deadline_gives_it_no_turn():
    lanes = lanes_of(*numbered(2), limit=1, deadline=10)
    assert taken_one(lanes, now=9) == f"http://{A}/0"
    assert lanes.take(now=11) is None

    lanes.finished(A, now=11)
    lanes.add(lease(f"http://{A}/2"), now=11)
    lanes.pace(A, delay=0, allowed=2, now=11)

    assert lanes.take(now=12) is None


def test_a_deadline_may_be_brought_forward():
    lanes = lanes_of(*numbered(1))

    lanes.extend(A, deadline=float("-inf"), now=5)

    assert lanes.take(now=5) is None
    assert not lanes.may_ask(A, now=5)


def test_a_host_may_be_asked_from_its_beginning_to_its_deadline():
    lanes = Lanes(half_lease=1800)
    assert not lanes.may_ask(A, now=0)

    begin(lanes, A, deadline=10)

    assert lanes.may_ask(A, now=9.9)
    assert not lanes.may_ask(A, now=10)
    lanes.end(A)
    assert not lanes.may_ask(A, now=0)


def test_a_longer_delay_counts_from_the_answer_that_brought_it():
    lanes = lanes_of(*numbered(3), delay=1)
    assert taken_one(lanes, now=0) == f"http://{A}/0"

    lanes.pace(A, delay=4, allowed=0, now=0.5)
    lanes.finished(A, now=0.5)

    assert taken(lanes, now=4.4) == []
    assert taken(lanes, now=4.5) == [f"http://{A}/1"]
    assert lanes.next_turn() == 8.5


def test_a_longer_delay_ends_no_rest():
    lanes = lanes_of(*numbered(2))
    assert taken_one(lanes, now=0) == f"http://{A}/0"
    lanes.rest(A, until=30)

    lanes.pace(A, delay=4, allowed=0, now=1)

    assert taken(lanes, now=29) == []
    assert taken(lanes, now=30) == [f"http://{A}/1"]


def test_an_answer_that_changes_no_delay_moves_no_turn():
    lanes = lanes_of(*numbered(2), delay=2)
    assert taken_one(lanes, now=0) == f"http://{A}/0"

    lanes.pace(A, delay=2, allowed=0, now=1.5)

    assert taken(lanes, now=2) == [f"http://{A}/1"]


@pytest.mark.parametrize("delay", [1, 0])
def test_a_shorter_delay_counts_from_the_next_request_on(delay: float):
    lanes = lanes_of(*numbered(3), delay=4)
    assert taken_one(lanes, now=0) == f"http://{A}/0"

    lanes.pace(A, delay=delay, allowed=0, now=3.5)

    assert taken(lanes, now=3.9) == []
    assert taken_one(lanes, now=4) == f"http://{A}/1"
    assert taken_one(lanes, now=4 + delay) == f"http://{A}/2"


def test_more_requests_at_once_are_allowed_at_once():
    lanes = lanes_of(*numbered(4), limit=1)
    assert len(taken(lanes, now=0)) == 1

    lanes.pace(A, delay=0, allowed=3, now=1)

    assert lanes.next_turn() == 1
    assert len(taken(lanes, now=1)) == 2


def test_fewer_requests_at_once_wait_for_those_under_way():
    lanes = lanes_of(*numbered(4), limit=2)
    assert len(taken(lanes, now=0)) == 2

    lanes.pace(A, delay=0, allowed=1, now=1)
    lanes.finished(A, now=1)
    assert taken(lanes, now=1) == []
    lanes.finished(A, now=2)

    assert len(taken(lanes, now=2)) == 1


def counts(lanes: Lanes) -> tuple[int, int, int]:
    return lanes.waiting, lanes.waiting_slow, lanes.soon


def test_what_waits_for_hosts_with_a_delay_is_counted_apart():
    lanes = lanes_of(*numbered(3), *numbered(2, host=B))

    assert counts(lanes) == (5, 0, 5)
    lanes.pace(A, delay=1, allowed=0, now=0)
    assert counts(lanes) == (5, 3, 2)
    lanes.pace(A, delay=2, allowed=0, now=0)
    assert counts(lanes) == (5, 3, 2)
    assert len(taken(lanes, now=0)) == 3
    assert counts(lanes) == (2, 2, 0)
    lanes.pace(A, delay=0, allowed=0, now=0)
    assert counts(lanes) == (2, 0, 2)


def test_of_each_host_one_turn_comes_soon():
    """What more it has waiting keeps no fetcher busy."""
    lanes = lanes_of(*numbered(5), *numbered(2, host=B), limit=3)

    assert counts(lanes) == (7, 0, 5)
    lanes.pace(A, delay=0, allowed=1, now=0)
    assert counts(lanes) == (7, 0, 3)
    lanes.pace(A, delay=0, allowed=0, now=0)
    assert counts(lanes) == (7, 0, 7)
    lanes.pace(A, delay=0, allowed=2, now=0)
    assert taken_one(lanes, now=0) == f"http://{A}/0"
    assert counts(lanes) == (6, 0, 4), "the fetcher that took it may take the next one"


# --- whose turn is first


@pytest.mark.parametrize(
    ("old", "new", "seconds", "first"),
    [
        (0, 0, 0.1, A),
        (0, 3, 2.9, B),
        (0, 3, 3.1, A),
        (0, 10, 9.9, B),
        (0, 100, 9.9, B),  # no more than ten count
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
    lanes = lanes_of()
    begin(lanes, B)
    lanes.open(B, now=0)
    lanes.add(lease(f"http://{A}/", priority=old), now=100)

    lanes.add(lease(f"http://{B}/", priority=new), now=100 + seconds)

    assert taken_one(lanes, now=100 + seconds) == f"http://{first}/"
    assert taken_one(lanes, now=100 + seconds) is not None


@pytest.mark.parametrize(
    ("delay", "seconds", "first"), [(3, 2, B), (3, 4, A), (60, 4, B), (60, 6, A)]
)
def test_a_hosts_delay_counts_as_waiting_up_to_what_is_held_for_it(
    delay: float, seconds: float, first: str
):
    lanes = Lanes(half_lease=1800)
    for host, pause in ((A, 0), (B, delay)):
        begin(lanes, host, delay=pause)
        lanes.open(host, now=0)
    lanes.add(lease(f"http://{A}/"), now=100)
    lanes.add(lease(f"http://{B}/"), now=100 + seconds)

    found = lanes.take(now=200)

    assert found is not None
    assert found.task.host == first


def test_the_best_task_of_a_host_counts_for_it():
    lanes = lanes_of()
    begin(lanes, B)
    lanes.open(B, now=0)
    lanes.add(lease(f"http://{A}/", priority=1), now=0)
    for priority in (-5, 2, 0):
        lanes.add(lease(f"http://{B}/{priority}", priority=priority), now=0)

    urls = taken(lanes, now=0)

    assert urls == [f"http://{B}/2", f"http://{A}/", f"http://{B}/0", f"http://{B}/-5"]


def test_where_fetchers_are_few_no_host_starves():
    lanes = lanes_of()
    begin(lanes, B)
    lanes.open(B, now=0)
    for n in range(200):
        lanes.add(lease(f"http://{A}/{n}", priority=-100), now=0)
        lanes.add(lease(f"http://{B}/{n}", priority=100), now=0)

    # One fetcher, which takes a second for each page.
    urls = [taken_one(lanes, now=now) for now in range(200)]

    low = [second for second, url in enumerate(urls) if url and A in url]
    # It waits since its last turn, the other one since a second ago.
    assert low[:3] == [21, 42, 63]
    assert None not in urls
    assert len(low) == 9, "all others were of the higher priority"


# --- what is worth holding


@pytest.mark.parametrize(
    ("limit", "delay", "half_lease", "room"),
    [
        (0, 0, 30, 1 << 30),  # nothing limits it
        (8, 0, 30, 32),  # a few turns
        (1, 0, 30, 4),
        (0, 1, 30, 5),  # what is served in five seconds
        (8, 2, 30, 2),
        (8, 0.1, 30, 32),
        (0, 1, 2, 2),  # or in half a lease
        (8, 100, 30, 1),  # a host slower than that gets one all the same
    ],
)
def test_room_is_what_a_host_can_serve_soon(limit: int, delay: float, half_lease: float, room: int):
    lanes = lanes_of(limit=limit, delay=delay, half_lease=half_lease)

    assert lanes.room(A) == room


@pytest.mark.parametrize(
    ("limit", "allowed", "room"), [(8, 8, 32), (8, 4, 32), (8, 3, 24), (8, 1, 8), (0, 1, 8)]
)
def test_room_is_less_for_a_host_that_may_not_yet_have_its_limit(
    limit: int, allowed: int, room: int
):
    lanes = lanes_of(limit=limit)

    lanes.pace(A, delay=0, allowed=allowed, now=0)

    assert lanes.room(A) == room


def test_room_is_less_by_what_waits_and_never_negative():
    lanes = lanes_of(*numbered(3), limit=1)
    assert lanes.room(A) == 1

    for url in numbered(6)[3:]:
        lanes.add(lease(url), now=0)

    assert lanes.room(A) == 0


def test_room_follows_the_pace():
    lanes = lanes_of(*numbered(1))

    lanes.pace(A, delay=2.5, allowed=0, now=0)

    assert lanes.room(A) == 1


def test_a_host_is_hungry_when_half_of_what_is_worth_holding_is_used_up():
    lanes = lanes_of(*numbered(4), limit=1)
    assert not lanes.is_hungry(A)

    hungry = []
    for now in range(4):
        assert taken_one(lanes, now=now) is not None
        lanes.finished(A, now=now)
        hungry.append(lanes.is_hungry(A))

    assert hungry == [False, True, True, True]


def test_a_host_that_is_worth_one_lease_is_hungry_without_it():
    lanes = lanes_of(*numbered(1), delay=60)
    assert not lanes.is_hungry(A)

    assert taken_one(lanes, now=0) is not None

    assert lanes.is_hungry(A)


# --- what leaves the lanes


def test_lost_leases_are_dropped_from_their_lanes():
    lanes = lanes_of(*numbered(2), *numbered(1, host=B))
    lanes.pace(A, delay=1, allowed=0, now=0)

    dropped = {make_task(f"http://{A}/0").id, make_task(f"http://{B}/0").id}
    lanes.withdraw(unwanted=lambda lease: lease.task.id in dropped)

    assert counts(lanes) == (1, 1, 0)
    assert taken(lanes, now=0) == [f"http://{A}/1"]


def test_after_a_drop_the_highest_priority_is_still_the_first():
    lanes = lanes_of()
    for priority in (9, 1, 8, 2, 7, 3):
        lanes.add(lease(f"http://{A}/{priority}", priority=priority), now=0)

    dropped = {make_task(f"http://{A}/{n}").id for n in (9, 1)}
    lanes.withdraw(unwanted=lambda lease: lease.task.id in dropped)

    assert taken(lanes, now=0) == [f"http://{A}/{n}" for n in (8, 7, 3, 2)]


def test_emptied_lanes_give_up_all_that_waits_and_can_be_filled_again():
    lanes = lanes_of(*numbered(2), *numbered(1, host=B))

    assert sorted(urls_of(lanes.withdraw())) == [*numbered(2), *numbered(1, host=B)]

    assert lanes.waiting == 0
    assert taken(lanes, now=0) == []
    lanes.add(lease(f"http://{A}/2"), now=0)
    assert taken(lanes, now=0) == [f"http://{A}/2"]


def test_clearing_a_host_leaves_the_others_theirs():
    lanes = lanes_of(*numbered(2), *numbered(1, host=B), delay=1)

    assert urls_of(lanes.withdraw(host=A)) == numbered(2)

    assert counts(lanes) == (1, 1, 0)
    assert taken(lanes, now=0) == [f"http://{B}/0"]
    lanes.add(lease(f"http://{A}/2"), now=0)
    assert taken(lanes, now=0) == [f"http://{A}/2"]


def test_a_host_that_ends_gives_back_what_waits_and_has_no_turn():
    lanes = lanes_of(*numbered(2), *numbered(1, host=B), delay=1)

    assert urls_of(lanes.end(A)) == numbered(2)

    assert counts(lanes) == (1, 1, 0)
    assert taken(lanes, now=0) == [f"http://{B}/0"]
    assert len(lanes) == 1
    with pytest.raises(KeyError):
        lanes[A]


def test_a_host_that_ends_while_its_turn_is_missed_has_no_turn():
    lanes = lanes_of(*numbered(1), *numbered(1, host=B))
    assert taken_one(lanes, now=0) == f"http://{A}/0"

    lanes.end(B)

    assert lanes.take(now=1) is None
    assert lanes.next_turn() is None


def test_the_end_of_a_request_of_a_host_that_has_ended_is_no_news():
    lanes = lanes_of(*numbered(1))
    assert taken_one(lanes, now=0) is not None
    lanes.end(A)

    lanes.finished(A, now=1)

    assert lanes.next_turn() is None


def test_a_host_that_begins_again_is_as_good_as_new():
    lanes = lanes_of(*numbered(2), limit=1, delay=60)
    assert taken_one(lanes, now=0) is not None
    lanes.finished(A, now=1)
    lanes.end(A)

    begin(lanes, A, limit=2)
    lanes.add(lease(f"http://{A}/2"), now=1)
    lanes.add(lease(f"http://{A}/3"), now=1)

    assert taken(lanes, now=2) == [], "the turn of the old lane is not that of the new one"
    lanes.open(A, now=2)
    assert taken(lanes, now=2) == [f"http://{A}/2", f"http://{A}/3"]
    assert counts(lanes) == (0, 0, 0)
