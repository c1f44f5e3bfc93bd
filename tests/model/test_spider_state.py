"""Changes to a spider's state: what each page adds counts once, also after repeated runs."""

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from crawlcw.errors import SpiderError
from crawlcw.model import spider_state
from crawlcw.model.spider_state import History, Page, PageSums, Run, StoredState

pytestmark = pytest.mark.quick

A, B = bytes([1]) * 16, bytes([2]) * 16


def history(stored: StoredState | None = None) -> History:
    made = History()
    if stored is not None:
        made.load(stored)
    return made


def begun(of: History, task: bytes, fence: int = 1, *, recorded: int = 0) -> Page:
    page = Page((task, fence), recorded)
    of.begin(page)
    return page


def ended(of: History, page: Page) -> None:
    page.is_kept = True
    of.end(page)


def added(of: History, task: bytes, fence: int = 1, *, recorded: int = 0) -> None:
    page = begun(of, task, fence, recorded=recorded)
    of.add(page, "n", 1)
    ended(of, page)


def view(of: History) -> dict[str, Any]:
    return dict(of.view)


def written(of: History) -> StoredState:
    after = of.next(of.unwritten())
    of.wrote(after)
    return after


def test_what_a_page_changes_is_seen_at_once_and_written_when_it_has_ended():
    one = history()
    page = begun(one, A)

    one.assign(page, "a", 1)

    assert (view(one), one.unwritten()) == ({"a": 1}, [])
    ended(one, page)
    assert written(one).values == {"a": 1}
    assert one.unwritten() == []


def test_a_page_that_fails_changes_nothing():
    one = history(StoredState(revision=1, values={"n": 1, "kept": 1}))
    page = begun(one, A)
    one.assign(page, "a", 1)
    one.add(page, "n", 1)
    one.delete(page, "kept")

    one.end(page)

    assert view(one) == {"n": 1, "kept": 1}
    assert one.unwritten() == []


def test_what_a_page_adds_is_pending_until_its_outcome_is_recorded():
    one = history()
    added(one, A)
    first = written(one)
    one.settle((A, 1), recorded=0)
    added(one, B)

    assert (first.values, first.pending) == ({}, {A: PageSums(1, {"n": 1})})
    assert written(one) == StoredState(
        revision=2, values={"n": 1}, pending={B: PageSums(1, {"n": 1})}
    )
    assert view(one) == {"n": 2}


def test_what_a_page_has_added_that_is_put_back_is_taken_away():
    one = history()
    added(one, A)
    written(one)

    one.undo((A, 1))

    assert view(one) == {}
    assert written(one) == StoredState(revision=2)


def test_a_page_that_is_put_back_while_it_is_written_is_taken_away():
    one = history()
    added(one, A)
    after = one.next(one.unwritten())

    one.undo((A, 1))
    one.wrote(after)

    assert view(one) == {}
    assert written(one) == StoredState(revision=2)


def test_an_errback_takes_the_place_of_its_callback():
    one = history()
    callback = begun(one, A)
    one.add(callback, "n", 1)
    one.wrote(one.next(one.unwritten(callback)))  # with the links of a slice
    one.end(callback)
    ended(one, begun(one, A))

    one.settle((A, 1), recorded=0)

    assert view(one) == {}
    assert written(one) == StoredState(revision=2)


def test_a_page_that_runs_again_counts_once():
    crashed = history()
    added(crashed, A)
    again = history(written(crashed))
    assert view(again) == {"n": 1}

    page = begun(again, A, 2)

    assert view(again) == {}
    again.add(page, "n", 5)
    ended(again, page)
    again.settle((A, 2), recorded=0)
    assert written(again).pending == {A: PageSums(2, {"n": 5})}


def test_a_page_that_runs_again_and_changes_nothing_has_changed_nothing():
    crashed = history()
    added(crashed, A)
    again = history(written(crashed))

    again.settle((A, 2), recorded=0)

    assert view(again) == {}
    assert written(again) == StoredState(revision=2)


def test_a_page_that_is_visited_again_adds_to_its_earlier_visit():
    first = history()
    added(first, A)
    later = history(written(first))

    added(later, A, 3, recorded=1)

    assert written(later) == StoredState(
        revision=2, values={"n": 1}, pending={A: PageSums(3, {"n": 1})}
    )


def test_a_page_whose_lease_is_lost_does_not_change_what_the_newer_holder_has_added():
    stored = StoredState(revision=1, pending={A: PageSums(2, {"n": 1})})
    late = history(stored)

    page = begun(late, A)
    late.assign(page, "n", 7)
    ended(late, page)

    assert written(late) == StoredState(revision=2, pending=stored.pending)


def test_an_assignment_is_in_the_place_of_all_that_was_added_before():
    one = history()
    added(one, A)
    written(one)
    page = begun(one, B)
    one.assign(page, "n", 0)
    one.add(page, "n", 2)
    ended(one, page)
    one.settle((A, 1), recorded=0)

    assert view(one) == {"n": 2}
    assert spider_state.visible_values(written(one)) == {"n": 2}


def test_changes_of_no_page_are_kept_beside_what_others_have_written():
    one, other = history(), history()
    one.add(None, "n", 1)
    added(other, A)
    refused = one.next(one.unwritten())
    one.add(None, "n", 1)

    one.load(written(other))

    assert refused.values == {"n": 1}
    assert view(one) == {"n": 3}
    assert written(one).values == {"n": 2}


def test_the_size_is_that_of_what_is_seen(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(spider_state, "LARGEST", 60)
    one = history()
    page = begun(one, A)
    one.assign(page, "a", 1)
    with pytest.raises(SpiderError, match="60 are allowed"):
        one.assign(page, "x" * 50, 1)
    one.end(page)

    one.assign(begun(one, B), "y" * 40, 1)

    assert view(one) == {"y" * 40: 1}


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
        for run in one.unknown():
            if self.settled.get(run[0]) == run[1]:
                one.settle(run, recorded=run[1])
        running: list[Page] = []
        done: list[Run] = []
        waiting = [task for task in tasks if task not in self.settled]
        while waiting or running or done:
            step = self.chance.random()
            if step < 0.02:
                return  # killed
            if step < 0.4 and waiting and len(running) < 4:
                task = waiting.pop(self.chance.randrange(len(waiting)))
                self.fences[task] = self.fences.get(task, 0) + 1
                page = begun(one, task, self.fences[task], recorded=self.settled.get(task, 0))
                one.add(page, "n", 1)
                one.assign(page, task.hex(), True)
                running.append(page)
            elif step < 0.7 and running:
                page = running.pop(self.chance.randrange(len(running)))
                ended(one, page)
                done.append(page.run)
            elif done:
                self._commit(one, done)
        self.stored = written(one)

    def _commit(self, one: History, done: list[Run]) -> None:
        group, done[:] = done[:], []
        if one.unwritten():
            self.stored = written(one)
        if self.chance.random() < 0.1:
            group = self.chance.sample(group, self.chance.randint(0, len(group)))
            self.settled |= dict(group)
            raise KilledError
        for run in group:
            one.settle(run, recorded=self.settled.get(run[0], 0))
        self.settled |= dict(group)


class KilledError(Exception):
    """The process is killed in the middle of a write of outcomes."""


@pytest.mark.parametrize(
    "seed",
    [pytest.param(n, marks=() if n < 100 else pytest.mark.thorough) for n in range(300)],
)
def test_any_order_of_pages_and_kills_counts_as_one_without_kills(seed: int):
    world = World(random.Random(seed))
    tasks = [bytes([number]) * 16 for number in range(1, 25)]

    while len(world.settled) < len(tasks):
        try:
            world.live(tasks)
        except KilledError:
            continue
    last = history(world.stored)
    for run in last.unknown():
        last.settle(run, recorded=run[1])

    after = written(last)
    assert after.pending == {}
    assert after.values == {"n": 24, **{task.hex(): True for task in tasks}}
