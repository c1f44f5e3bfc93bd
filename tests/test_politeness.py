"""Lanes: whose turn it is, decided without a clock and without a loop."""

from collections import Counter, defaultdict
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlcw import politeness
from crawlcw.politeness import Lanes
from crawlcw.task import Lease
from tests.ledgers import START, make_task

LONG = timedelta(hours=1)


def lease(url: str, *, priority: int = 0) -> Lease:
    return Lease(task=make_task(url, priority=priority), token="a:1", fence=1, expires=START)


def lanes_of(
    *urls: str, concurrency: int = 0, delay: float = 0.0, lease_time: timedelta = LONG
) -> Lanes:
    """Lanes of open hosts which hold a lease for each URL since time 0."""
    lanes = Lanes(concurrency=concurrency, delay=timedelta(seconds=delay), lease=lease_time)
    for url in urls:
        if lanes.add(lease(url), now=0):
            lanes.open(lease(url).task.host, crawl_delay=0, now=0, asked=False)
    return lanes


def taken(lanes: Lanes, *, now: float) -> list[str]:
    """The URLs of all leases whose turn has come."""
    urls = []
    while (found := lanes.take(now=now)) is not None:
        urls.append(found.task.url)
    return urls


def test_a_host_waits_until_it_is_opened():
    lanes = Lanes(concurrency=0, delay=timedelta(0), lease=LONG)

    assert lanes.add(lease("http://a.example/1"), now=0)
    assert lanes.add(lease("http://a.example/2"), now=0), "it has still to be opened"
    assert taken(lanes, now=100) == []
    assert lanes.next_turn() is None

    lanes.open("a.example", crawl_delay=0, now=100, asked=False)

    assert lanes.next_turn() == 100
    assert taken(lanes, now=100) == ["http://a.example/1", "http://a.example/2"]
    assert not lanes.add(lease("http://a.example/3"), now=100)


def test_a_host_that_was_asked_for_its_robots_txt_rests_first():
    lanes = Lanes(concurrency=0, delay=timedelta(seconds=2), lease=LONG)
    lanes.add(lease("http://a.example/"), now=0)

    lanes.open("a.example", crawl_delay=0, now=10, asked=True)

    assert taken(lanes, now=11.9) == []
    assert taken(lanes, now=12) == ["http://a.example/"]


@pytest.mark.parametrize(("delay", "crawl_delay"), [(3, 1), (1, 3)])
def test_the_longer_delay_counts(delay: float, crawl_delay: float):
    lanes = Lanes(concurrency=0, delay=timedelta(seconds=delay), lease=LONG)
    for n in range(2):
        lanes.add(lease(f"http://a.example/{n}"), now=0)

    lanes.open("a.example", crawl_delay=crawl_delay, now=0, asked=False)

    assert taken(lanes, now=0) == ["http://a.example/0"]
    assert lanes.next_turn() == 3
    assert taken(lanes, now=3) == ["http://a.example/1"]


def test_hosts_take_turns():
    lanes = lanes_of(*(f"http://{host}.example/{n}" for host in "ab" for n in range(2)))

    assert taken(lanes, now=0) == [
        "http://a.example/0",
        "http://b.example/0",
        "http://a.example/1",
        "http://b.example/1",
    ]


def test_within_a_host_the_higher_priority_goes_first_and_then_the_older():
    lanes = lanes_of("http://a.example/first")
    for url, priority in (("low", -1), ("high", 5), ("second", 0), ("high-too", 5)):
        lanes.add(lease(f"http://a.example/{url}", priority=priority), now=0)

    urls = [url.rpartition("/")[2] for url in taken(lanes, now=0)]

    assert urls == ["high", "high-too", "first", "second", "low"]


def test_a_host_gets_no_more_than_its_concurrency():
    lanes = lanes_of(*(f"http://a.example/{n}" for n in range(4)), concurrency=2)

    assert len(taken(lanes, now=0)) == 2
    assert taken(lanes, now=1000) == []
    assert lanes.next_turn() is None

    lanes.finished("a.example", now=1000)

    assert taken(lanes, now=1000) == ["http://a.example/2"]


def test_a_slow_host_holds_up_nobody_else():
    lanes = lanes_of("http://a.example/0", "http://a.example/1", concurrency=1)
    lanes.add(lease("http://b.example/0"), now=0)
    lanes.open("b.example", crawl_delay=0, now=0, asked=False)

    assert taken(lanes, now=0) == ["http://a.example/0", "http://b.example/0"]


def test_lost_leases_are_dropped_from_their_lanes():
    lanes = lanes_of("http://a.example/0", "http://a.example/1", "http://b.example/0")

    lanes.drop({make_task("http://a.example/0").id, make_task("http://b.example/0").id})

    assert lanes.waiting == 1
    assert taken(lanes, now=0) == ["http://a.example/1"]


def test_emptied_lanes_give_up_all_that_waits_and_can_be_filled_again():
    lanes = lanes_of("http://a.example/0", "http://b.example/0")

    emptied = [each.task.url for each in lanes.empty()]

    assert sorted(emptied) == ["http://a.example/0", "http://b.example/0"]
    assert lanes.waiting == 0
    assert taken(lanes, now=0) == []
    lanes.add(lease("http://a.example/1"), now=0)
    assert taken(lanes, now=0) == ["http://a.example/1"]


@pytest.mark.parametrize(
    ("concurrency", "delay", "room"),
    [
        (0, 0, 1 << 30),  # nothing limits it
        (8, 0, 32),  # a few turns
        (1, 0, 4),
        (0, 1, 5),  # what is served in five seconds
        (8, 2, 2),
        (8, 100, 1),  # a host slower than that gets one all the same
    ],
)
def test_room_is_what_a_host_can_serve_soon(concurrency: int, delay: float, room: int):
    lanes = Lanes(
        concurrency=concurrency, delay=timedelta(seconds=delay), lease=timedelta(seconds=60)
    )

    lanes.open("a.example", crawl_delay=0, now=0, asked=False)

    assert lanes.room("a.example") == room


@pytest.mark.parametrize(("concurrency", "room"), [(0, 8), (1, 1), (8, 8)])
def test_room_is_one_turn_until_robots_txt_is_known(concurrency: int, room: int):
    lanes = Lanes(concurrency=concurrency, delay=timedelta(0), lease=timedelta(seconds=60))

    assert lanes.room("a.example") == room


def test_room_is_less_by_what_waits_and_never_negative():
    lanes = lanes_of(*(f"http://a.example/{n}" for n in range(3)), concurrency=1)
    assert lanes.room("a.example") == 1

    for n in range(3, 9):
        lanes.add(lease(f"http://a.example/{n}"), now=0)

    assert lanes.room("a.example") == 0
    assert lanes.room("b.example") == 1


def test_what_is_more_than_a_slow_host_is_worth_is_given_back():
    lanes = lanes_of(*(f"http://a.example/{n}" for n in range(5)))

    lanes.open("a.example", crawl_delay=2.5, now=0, asked=True)
    surplus = lanes.trim("a.example")

    assert [each.task.url for each in surplus] == [f"http://a.example/{n}" for n in (2, 3, 4)]
    assert (lanes.waiting, lanes.waiting_slow) == (2, 2)


def test_idle_hosts_are_forgotten_above_a_number_and_busy_ones_are_not(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(politeness, "_KEPT_LANES", 2)
    lanes = lanes_of("http://idle.example/", "http://busy.example/")
    assert len(taken(lanes, now=0)) == 2
    lanes.finished("idle.example", now=0)

    lanes.add(lease("http://new.example/"), now=1)

    assert lanes.add(lease("http://idle.example/2"), now=1), "forgotten: has to be opened again"
    assert not lanes.add(lease("http://busy.example/2"), now=1)
    lanes.finished("busy.example", now=1)


@given(
    concurrency=st.integers(0, 3),
    delay=st.sampled_from([0.0, 0.5, 2.0]),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.sampled_from("abc"), st.integers(-2, 2)),
            st.tuples(st.just("open"), st.sampled_from("abc"), st.sampled_from([0.0, 1.0])),
            st.tuples(st.just("take"), st.just(""), st.just(0)),
            st.tuples(st.just("finish"), st.sampled_from("abc"), st.just(0)),
            st.tuples(st.just("advance"), st.just(""), st.sampled_from([0.25, 1.0, 5.0])),
        ),
        max_size=80,
    ),
)
def test_whatever_happens_hosts_are_served_politely_and_every_lease_once(
    concurrency: int, delay: float, steps: list[tuple[str, str, float]]
):
    lanes = Lanes(concurrency=concurrency, delay=timedelta(seconds=delay), lease=LONG)
    now = 0.0
    added: list[str] = []
    started: dict[str, list[float]] = defaultdict(list)
    active: Counter[str] = Counter()
    delays: dict[str, float] = {}
    came_out: list[str] = []

    def take() -> None:
        found = lanes.take(now=now)
        if found is None:
            return
        host = found.task.host
        assert host in delays, "it was opened"
        if started[host]:
            assert now - started[host][-1] >= delays[host]
        started[host].append(now)
        active[host] += 1
        assert not concurrency or active[host] <= concurrency
        came_out.append(found.task.url)

    for what, name, number in steps:
        host = f"{name}.example"
        if what == "add":
            url = f"http://{host}/{len(added)}"
            assert lanes.add(lease(url, priority=int(number)), now=now) == (host not in delays)
            added.append(url)
        elif what == "open" and host not in delays:
            lanes.open(host, crawl_delay=number, now=now, asked=False)
            delays[host] = max(delay, number)
        elif what == "take":
            take()
        elif what == "finish" and active[host]:
            active[host] -= 1
            lanes.finished(host, now=now)
        elif what == "advance":
            now += number
        assert lanes.waiting == len(added) - len(came_out)

    for host in ("a.example", "b.example", "c.example"):
        lanes.open(host, crawl_delay=0, now=now, asked=False)
        delays[host] = delay
    # Each round is long enough for one more of every host.
    for _ in added:
        for host in list(active):
            while active[host]:
                active[host] -= 1
                lanes.finished(host, now=now)
        now += 2.0
        for _ in range(3):
            take()
    assert sorted(came_out) == sorted(added)
    assert lanes.waiting == 0
