"""Order of changes to a spider's state: each page counts once, also after repeated runs."""

import random
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest

from crawlcw.errors import SpiderError
from crawlcw.model import spider_state
from crawlcw.model.spider_state import History, Kind, Page, Run, StoredState
from crawlcw.model.values import frozen

pytestmark = pytest.mark.quick

A, B, C = (bytes([number]) * 16 for number in (1, 2, 3))


def history(stored: StoredState | None = None) -> History:
    ticks = count(1)
    made = History(clock=lambda: next(ticks))
    if stored is not None:
        made.load(stored)
    return made


def value(of: History, name: str, page: Page | None = None) -> Any:
    found = of.get(page, name)
    return None if found is None else found.value


def count_on(of: History, page: Page) -> None:
    """Count as spiders do: read the value, and assign one more."""
    of.change(page, "n", Kind.SET, (value(of, "n", page) or 0) + 1)


def written(of: History) -> StoredState:
    after = of.next()
    of.wrote(after)
    return after


def test_what_a_page_changes_is_seen_by_the_next_one_at_once():
    one = history()
    a, b = one.begin((A, 1), settled=0), one.begin((B, 1), settled=0)

    count_on(one, a)
    count_on(one, b)
    count_on(one, a)

    assert value(one, "n") == 3


def test_a_failed_page_changes_nothing():
    one = history()
    a = one.begin((A, 1), settled=0)
    count_on(one, a)
    one.change(a, "other", Kind.SET, 1)
    b = one.begin((B, 1), settled=0)
    one.change(b, "more", Kind.SET, 1)

    one.undo(a)

    assert list(one.names(None)) == ["more"]
    assert written(one).pending.keys() == {(B, 1)}


def test_a_page_that_fails_after_it_was_written_is_taken_away_before_its_outcome():
    one = history()
    a = one.begin((A, 1), settled=0)
    count_on(one, a)
    assert written(one).pending.keys() == {(A, 1)}
    assert not one.is_dirty

    one.undo(a)

    assert one.is_dirty
    assert written(one).pending == {}
    assert not one.is_dirty


def test_an_errback_changes_the_state_where_its_callback_has_failed():
    one = history()
    callback = one.begin((A, 1), settled=0)
    count_on(one, callback)
    written(one)
    one.undo(callback)
    errback = one.begin((A, 1), settled=0)
    one.change(errback, "failed", Kind.ADD, 1)
    one.end(errback)

    after = written(one)

    assert after.pending[A, 1].keys() == {"failed"}
    one.settle((A, 1))
    assert {name: each.value for name, each in written(one).values.items()} == {"failed": 1}


def test_a_page_that_runs_again_counts_once_and_finds_what_it_found():
    crashed = history()
    for task in (A, B, C):
        count_on(crashed, crashed.begin((task, 1), settled=0))
    left = written(crashed)

    again = history(left)
    assert value(again, "n") == 3, "the pages below need the value"
    again.settle((B, 1))
    new = again.begin((bytes(15) + b"x", 1), settled=0)
    count_on(again, new)
    rerun = again.begin((A, 2), settled=0)
    assert value(again, "n", rerun) is None
    count_on(again, rerun)
    assert value(again, "n", rerun) == 1
    again.end(rerun)

    assert value(again, "n") == 4
    assert {run for run in written(again).pending if run[0] == A} == {(A, 2)}


def test_a_page_that_runs_again_and_changes_nothing_has_changed_nothing():
    crashed = history()
    crashed.change(crashed.begin((A, 1), settled=0), "n", Kind.ADD, 5)
    again = history(written(crashed))
    assert value(again, "n") == 5

    rerun = again.begin((A, 2), settled=0)
    again.end(rerun)
    again.over((A, 2), settled=0)

    assert value(again, "n") is None
    assert written(again).pending == {}


def test_a_page_that_is_done_without_its_state_takes_back_what_a_crash_has_left():
    crashed = history()
    crashed.change(crashed.begin((A, 1), settled=0), "n", Kind.ADD, 5)
    again = history(written(crashed))

    again.over((A, 2), settled=0)

    assert again.is_dirty
    assert written(again) == StoredState(revision=2)


def test_a_page_that_is_visited_again_adds_to_its_earlier_visit():
    first = history()
    page = first.begin((A, 1), settled=0)
    first.change(page, "n", Kind.ADD, 1)
    first.end(page)
    later = history(written(first))

    visit = later.begin((A, 3), settled=1)
    later.change(visit, "n", Kind.ADD, 1)
    later.end(visit)
    later.settle((A, 3))

    assert written(later).values["n"].value == 2


def test_settled_changes_wait_for_those_before_them_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
):
    one = history()
    pages = [one.begin((bytes(15) + bytes([number]), 1), settled=0) for number in range(5)]
    for page in pages:
        count_on(one, page)
        one.end(page)
    written(one)
    for page in pages[1:]:
        one.settle(page.run)

    assert len(written(one).pending) == 5
    monkeypatch.setattr(spider_state, "MOST_PENDING", 4)
    assert written(one).pending.keys() == {pages[0].run}
    assert value(one, "n") == 5


def test_what_is_changed_outside_of_pages_stays():
    one = history()
    one.change(None, "began", Kind.SET, True)

    assert written(one).values["began"].value is True


def test_what_others_have_written_is_seen_beside_what_is_not_written_yet():
    one = history()
    one.change(one.begin((A, 1), settled=0), "mine", Kind.SET, 1)
    other = history()
    other.change(other.begin((B, 1), settled=0), "theirs", Kind.SET, 2)

    one.load(written(other))

    assert {name: value(one, name) for name in one.names(None)} == {"mine": 1, "theirs": 2}
    assert one.next().pending.keys() == {(A, 1), (B, 1)}


def test_a_state_that_is_forgotten_is_empty():
    one = history()
    page = one.begin((A, 1), settled=0)
    count_on(one, page)
    one.end(page)
    written(one)
    one.settle((A, 1))

    one.load(StoredState(revision=9))

    assert (value(one, "n"), one.is_dirty) == (None, False)


def test_what_grows_is_written_by_what_it_has_more():
    one = history()
    a, b = one.begin((A, 1), settled=0), one.begin((B, 1), settled=0)
    one.change(a, "list", Kind.SET, frozen(["x"] * 1000))
    one.change(b, "list", Kind.SET, frozen([*(["x"] * 1000), "y"]))
    one.change(a, "map", Kind.SET, frozen({"a": 1}))
    one.change(b, "map", Kind.SET, frozen({"b": 2, "a": 1}))
    one.change(a, "list", Kind.SET, frozen(["other"]))

    change = one.next().pending[B, 1]

    assert {name: (each.kind, each.value) for name, each in change.items()} == {
        "list": (Kind.EXTEND, ["y"]),
        "map": (Kind.EXTEND, {"b": 2}),
    }
    assert (value(one, "list"), value(one, "map")) == (["other"], {"a": 1, "b": 2})


def test_what_one_page_makes_longer_stays_where_another_that_did_has_failed():
    one = history()
    a, b = one.begin((A, 1), settled=0), one.begin((B, 1), settled=0)
    one.change(a, "list", Kind.SET, frozen(["a"]))
    one.change(b, "list", Kind.SET, frozen(["a", "b"]))

    one.undo(a)

    assert value(one, "list") == ["b"]


def test_pending_changes_are_bounded_by_what_later_ones_stand_for(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(spider_state, "LARGEST_PENDING", 500)
    one = history()
    for number in range(9):
        page = one.begin((bytes(15) + bytes([number]), 1), settled=0)
        one.change(page, "text", Kind.SET, str(number) * 100)
        one.change(page, "n", Kind.ADD, 1)

    after = one.next()

    texts = [each["text"].value for each in after.pending.values() if "text" in each]
    assert texts == ["8" * 100]
    assert spider_state.seen(after) == {"text": "8" * 100, "n": 9}


@pytest.mark.parametrize("kind", [Kind.SET, Kind.ADD])
def test_the_size_is_that_of_what_is_seen(kind: Kind, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(spider_state, "LARGEST", 60)
    one = history()
    a = one.begin((A, 1), settled=0)
    one.change(a, "a", kind, 1)
    with pytest.raises(SpiderError, match="60 are allowed"):
        one.change(a, "x" * 50, kind, 1)
    one.undo(a)
    written(one)

    one.change(one.begin((B, 1), settled=0), "y" * 40, kind, 1)


@dataclass(slots=True)
class World:
    """A ledger and successive processes on it; each page counts, in steps."""

    chance: random.Random
    stored: StoredState = field(default_factory=StoredState)
    fences: dict[bytes, int] = field(default_factory=dict)
    settled: dict[bytes, int] = field(default_factory=dict)

    def live(self, tasks: list[bytes]) -> None:
        """Run pages in one process until all are done or it is killed."""
        one = history(self.stored)
        for run in one.unknown:
            if self.settled.get(run[0]) == run[1]:
                one.settle(run)
        open_: list[tuple[Run, Page]] = []
        ended: list[Run] = []
        waiting = [task for task in tasks if task not in self.settled]
        while waiting or open_ or ended:
            step = self.chance.random()
            if step < 0.02:
                return  # killed
            if step < 0.4 and waiting and len(open_) < 4:
                task = waiting.pop(self.chance.randrange(len(waiting)))
                self.fences[task] = self.fences.get(task, 0) + 1
                run = (task, self.fences[task])
                page = one.begin(run, settled=self.settled.get(task, 0))
                count_on(one, page)
                one.change(page, "added", Kind.ADD, 1)
                one.change(page, task.hex(), Kind.SET, value(one, "n", page))
                seen = value(one, "seen", page) or []
                one.change(page, "seen", Kind.SET, frozen([*seen, task.hex()]))
                open_.append((run, page))
            elif step < 0.7 and open_:
                run, page = open_.pop(self.chance.randrange(len(open_)))
                one.end(page)
                ended.append(run)
            elif ended:
                self._commit(one, ended)
        self._write(one)

    def _write(self, one: History) -> None:
        self.stored = one.next()
        one.wrote(self.stored)

    def _commit(self, one: History, ended: list[Run]) -> None:
        group, ended[:] = ended[:], []
        for run in group:
            one.over(run, settled=self.settled.get(run[0], 0))
        if one.is_dirty:
            self._write(one)
        if self.chance.random() < 0.1:
            group = self.chance.sample(group, self.chance.randint(0, len(group)))
            self.settled |= dict(group)
            raise KilledError
        self.settled |= dict(group)
        for run in group:
            one.settle(run)


class KilledError(Exception):
    """The process is killed in the middle of a write of outcomes."""


@pytest.mark.parametrize(
    "seed",
    [pytest.param(n, marks=() if n < 100 else pytest.mark.thorough) for n in range(300)],
)
def test_any_order_of_pages_and_kills_ends_as_one_without_kills(seed: int):
    world = World(random.Random(seed))
    tasks = [bytes([number]) * 16 for number in range(1, 25)]

    while len(world.settled) < len(tasks):
        try:
            world.live(tasks)
        except KilledError:
            continue
    last = history(world.stored)
    for run in last.unknown:
        last.settle(run)
    after = written(last)

    values = {name: each.value for name, each in after.values.items()}
    assert after.pending == {}
    assert (values.pop("n"), values.pop("added")) == (24, 24)
    assert sorted(values.pop("seen")) == [task.hex() for task in tasks]
    assert sorted(values.values()) == list(range(1, 25)), "each page found another count"
