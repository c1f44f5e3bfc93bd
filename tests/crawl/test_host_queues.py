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
    queue = queues.add_host(host, limit=limit, next_start=next_start, deadline=deadline)
    queues.pace(host, delay=delay, slots=limit, now=0)
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
    assert queues.next_start() is None

    queues.open(A, now=100)

    assert queues.next_start() == 100
    assert taken(queues, now=100) == numbered(2)
    queues.add(lease(f"http://{A}/2"), now=100)
    assert taken(queues, now=100) == [f"http://{A}/2"]


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


# --- rests, deadlines and paces


def test_a_turn_comes_earlier_where_the_delay_has_become_shorter():
    queues = queues_of(*numbered(4), delay=300)
    assert taken_one(queues, now=0) == f"http://{A}/0"
    assert queues.next_start() == 300

    queues.pace(A, delay=10, slots=0, limit=0, now=5)

    assert queues.next_start() == 10
    assert taken(queues, now=9) == []
    assert taken(queues, now=10) == [f"http://{A}/1"]
    assert taken(queues, now=300) == [f"http://{A}/2"]
    assert taken(queues, now=305) == []


def test_a_longer_delay_of_the_user_counts_from_the_last_request():
    queues = queues_of(*numbered(2), delay=1)
    assert taken_one(queues, now=0) == f"http://{A}/0"
    queues.request_ended(A, now=0.5)

    queues.pace(A, delay=60, slots=0, limit=0, now=0.8)

    assert taken(queues, now=59) == []
    assert taken(queues, now=60) == [f"http://{A}/1"]


def counts(queues: HostQueues) -> tuple[int, int]:
    return queues.waiting_count, queues.soon_count


def test_of_each_host_one_turn_comes_soon():
    """Its further tasks occupy no fetcher."""
    queues = queues_of(*numbered(5), *numbered(2, host=B), limit=3)

    assert counts(queues) == (7, 5)
    queues.pace(A, delay=0, slots=1, now=0)
    assert counts(queues) == (7, 3)
    queues.pace(A, delay=0, slots=0, now=0)
    assert counts(queues) == (7, 7)
    queues.pace(A, delay=0, slots=2, now=0)
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

    assert queues.free_capacity(A) == room


# --- leases that ask nothing of their hosts


def unasked(*hosts: str) -> HostQueues:
    """Return HostQueues of both hosts, with a lease of each of *hosts* that asks nothing."""
    queues = queues_of(delay=60)
    begin(queues, B)
    for host in hosts:
        queues.add(lease(f"http://{host}/unasked"), now=0, needs_request=False)
    return queues


def test_a_lease_that_asks_nothing_waits_for_no_turn():
    queues = unasked(A)
    queues.rest(A, rest_end=30)

    assert queues.waiting_count == 1
    assert queues.next_start() == float("-inf")
    assert taken(queues, now=0) == [f"http://{A}/unasked"]
    assert queues.waiting_count == 0
    assert queues.next_start() is None


def test_leases_that_ask_nothing_are_withdrawn_by_host_and_by_choice():
    queues = unasked(A, B, B)

    assert urls_of(queues.withdraw(host=A)) == [f"http://{A}/unasked"]
    assert queues.withdraw(is_unwanted=lambda lease: lease.task.host == A) == []
    assert queues.withdraw(host=B, is_unwanted=lambda _: False) == []

    assert queues.waiting_count == 2
    assert urls_of(queues.remove_host(B)) == [f"http://{B}/unasked"] * 2
    assert queues.waiting_count == 0
    assert queues.next_start() is None


# --- removal from the queues
