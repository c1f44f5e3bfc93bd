"""Define the spider state (`self.state`), the values that all pages of a crawl share. No I/O.

The crawl writes a page's state changes before the page's outcome. If the process crashes between
these two writes, the page runs again and makes the changes again. A repeated assignment does no
harm. Until a page's outcome is recorded, the numbers that the page adds are stored as pending,
separate from the values. If the page runs again, the numbers of the new run replace the pending
numbers of the earlier run.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from crawlcw.errors import InvalidItemError, SpiderError
from crawlcw.model.sanitize import printable
from crawlcw.model.values import check, clean, frozen, size, text

#: The size limit of all names and values of a spider state together, in bytes.
LARGEST = 1 << 20
#: The task id of state changes that no page makes. The numbers of such changes are never pending.
NO_PAGE = bytes(16)
_LARGEST_INTEGER = (1 << 63) - 1
_DELETED = object()

#: One run of a page: the id of its task, and the fence of its lease.
Run = tuple[bytes, int]


@dataclass(frozen=True, slots=True)
class PageSums:
    """The numbers that one run of a page has added to the named values of a spider state."""

    fence: int
    sums: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState:
    """The spider state as the ledger stores it."""

    revision: int = 0  #: number of writes so far
    values: Mapping[str, Any] = field(default_factory=dict)
    pending: Mapping[bytes, PageSums] = field(default_factory=dict)  #: pending numbers by task id


def is_number(value: object) -> bool:
    """Return whether *value* is a number to which `State.add` can add another number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def visible_values(state: StoredState | None) -> dict[str, Any]:
    """Return the values of a spider state, with its pending numbers added."""
    if state is None:
        return {}
    values = dict(state.values)
    for page_sums in state.pending.values():
        _add_sums(values, page_sums.sums)
    return values


def _add_sums(values: dict[str, Any], sums: Mapping[str, float]) -> None:
    for name, number in sums.items():
        # Drop *number* if another process has assigned a value that is not a number.
        if is_number(value := values.get(name, 0)):
            values[name] = value + number


@dataclass(slots=True, eq=False)
class Page:
    """The changes that a page makes in the spider state when its callback runs once."""

    run: Run
    recorded: int  #: fence of the task's last run with a recorded outcome
    url: str = ""
    values: dict[str, Any] = field(default_factory=dict)  #: `_DELETED`: the name is deleted
    sums: dict[str, float] = field(default_factory=dict)
    is_kept: bool = False  #: whether the callback ended without an error
    has_ended: bool = False

    @property
    def names(self) -> set[str]:
        """The names that the run has changed."""
        return self.values.keys() | self.sums.keys()

    def write_to(self, values: dict[str, Any], pending: dict[bytes, PageSums]) -> None:
        """Apply the changes of this run to *values* and *pending*, the parts of a spider state."""
        task_id, fence = self.run
        earlier_sums = pending.get(task_id)
        if earlier_sums is not None and earlier_sums.fence > fence:
            return  # a newer run of the task has changed the state already
        if earlier_sums is not None and earlier_sums.fence == self.recorded:
            _add_sums(values, earlier_sums.sums)
        pending.pop(task_id, None)
        for name, value in self.values.items():
            # The new value replaces all numbers that pages have added to this name. This page's old
            # sums are removed above.
            for other_id in [other_id for other_id, added in pending.items() if name in added.sums]:
                other_sums = {
                    n: number for n, number in pending[other_id].sums.items() if n != name
                }
                pending[other_id] = PageSums(pending[other_id].fence, other_sums)
            if value is _DELETED:
                values.pop(name, None)
            else:
                values[name] = value
        if task_id == NO_PAGE:
            _add_sums(values, self.sums)
        elif self.sums:
            pending[task_id] = PageSums(fence, dict(self.sums))


class History:
    """The state that the ledger stores, plus the changes of the pages that this process runs."""

    def __init__(self) -> None:
        self.stored = StoredState()
        self._pages: dict[Run, Page] = {}  #: running pages, and ended pages with unwritten changes
        #: Maps each ended run to whether its pending numbers are kept (True) or dropped (False).
        self._ends: dict[Run, bool] = {}
        self._writing: list[Page] = []
        self._page_of_outside_changes: Page | None = None  #: changes outside of pages
        self._outside_change_count = 0
        self.view: dict[str, Any] = {}  #: the values that callbacks see
        self._view_size = 0

    # Calls from callbacks.

    def begin(self, page: Page) -> None:
        """Record that a page uses the spider state."""
        if self._pages.get(page.run) is page:
            return
        self._pages[page.run] = page
        self._ends.pop(page.run, None)
        if page.run[0] in self.stored.pending:
            # A crash interrupted an earlier run of the page. Remove that run's numbers from `view`.
            self._rebuild()

    def assign(self, page: Page | None, name: str, value: Any) -> None:
        """Assign a value to a name of the state; *page* is None for a change outside of pages.

        Raises `SpiderError` if the spider state would become too large.
        """
        self._show(name, value)
        page = page or self._outside_page()
        page.values[name] = value
        page.sums.pop(name, None)

    def delete(self, page: Page | None, name: str) -> None:
        """Delete a name."""
        self.assign(page, name, _DELETED)

    def add(self, page: Page | None, name: str, number: float) -> None:
        """Add a number to the value of a name; an absent value counts as 0."""
        self._show(name, self.view.get(name, 0) + number)
        page = page or self._outside_page()
        if name in page.values:
            page_value = page.values[name]
            page.values[name] = number if page_value is _DELETED else page_value + number
        else:
            page.sums[name] = page.sums.get(name, 0) + number

    def end(self, page: Page) -> None:
        """Record that a callback has ended, and undo the page's changes if the callback failed."""
        page.has_ended = True
        if self._pages.get(page.run) is not page:
            return
        if not page.is_kept:
            self.undo(page.run)
            return
        del self._pages[page.run]
        if page.values or page.sums:
            self._pages[page.run] = page  # keep `_pages` in the order in which pages end
        elif self._is_pending(page.run):
            # Drop the numbers of a failed callback if its errback made no changes.
            self._ends[page.run] = False

    # The ends of pages.

    def undo(self, run: Run) -> None:
        """Undo the changes of a page, except assignments that were already written."""
        page = self._pages.pop(run, None)
        if self._is_pending(run) or (page is not None and page.names):
            self._ends[run] = False
            self._rebuild()

    def settle(self, run: Run, *, recorded: int) -> None:
        """Keep or drop the task's pending numbers after the ledger recorded an outcome of *run*.

        *recorded* is the fence of the lease that ended with the outcome before this outcome.
        """
        added = self.stored.pending.get(run[0])
        if added is None:
            return
        if added.fence == run[1]:
            self._ends.setdefault(run, True)
        elif added.fence < run[1]:
            # The numbers are of an earlier run. Keep them if that run's outcome was recorded.
            self._ends[run[0], added.fence] = added.fence == recorded
            self._rebuild()

    def unknown(self) -> list[Run]:
        """Return each run that has pending numbers and whose outcome this process does not know."""
        runs = [(task_id, added.fence) for task_id, added in self.stored.pending.items()]
        return [run for run in runs if run not in self._pages and run not in self._ends]

    def _is_pending(self, run: Run) -> bool:
        added = self.stored.pending.get(run[0])
        return added is not None and added.fence == run[1]

    # The writes.

    def unwritten(self, running: Page | None = None) -> list[Page]:
        """Return the pages with unwritten changes among all ended pages and the page *running*."""
        pages = [page for page in self._pages.values() if page.has_ended or page is running]
        return [page for page in pages if page.values or page.sums]

    def next(self, pages: Collection[Page]) -> StoredState:
        """Return the spider state to write, with the changes of *pages*."""
        self._writing, self._page_of_outside_changes = [*pages], None
        return self._with(self._writing, revision=self.stored.revision + 1)

    def wrote(self, new_state: StoredState) -> None:
        """Record that the ledger has stored *new_state*, the result of `next`."""
        self._set_stored(new_state)
        for page in self._writing:
            if self._pages.get(page.run) is not page:
                self._rebuild()  # the page's changes were undone during the write
            elif page.has_ended:
                del self._pages[page.run]

    def load(self, stored: StoredState) -> None:
        """Replace the stored state, because other processes have changed it in the ledger."""
        self._set_stored(stored)
        self._rebuild()

    def _set_stored(self, stored: StoredState) -> None:
        self.stored = stored
        self._ends = {run: counts for run, counts in self._ends.items() if self._is_pending(run)}

    def _with(self, pages: Collection[Page], *, revision: int) -> StoredState:
        values, pending = dict(self.stored.values), dict(self.stored.pending)
        for run, counts in self._ends.items():
            if self._is_pending(run):
                added = pending.pop(run[0])
                if counts:
                    _add_sums(values, added.sums)
        for page in pages:
            page.write_to(values, pending)
        return StoredState(revision=revision, values=values, pending=pending)

    # The view.

    def _rebuild(self) -> None:
        pages = sorted(self._pages.values(), key=lambda page: not page.has_ended)
        self.view = visible_values(self._with(pages, revision=self.stored.revision))
        self._view_size = sum(len(name) + 8 + size(value) for name, value in self.view.items())

    def _show(self, name: str, value: Any) -> None:
        new_size = self._view_size
        if (old_value := self.view.get(name, _DELETED)) is not _DELETED:
            new_size -= len(name) + 8 + size(old_value)
        if value is _DELETED:
            del self.view[name]
        else:
            new_size += len(name) + 8 + size(value)
            if new_size > max(LARGEST, self._view_size):
                raise SpiderError(
                    f"self.state would take {new_size:,} bytes with {name!r}, and {LARGEST:,} are "
                    "allowed: keep only values that pages share in it, and pass values from one "
                    "page to another by `Request(context=...)`"
                )
            self.view[name] = value
        self._view_size = new_size

    def _outside_page(self) -> Page:
        if self._page_of_outside_changes is None:
            self._outside_change_count += 1
            self._page_of_outside_changes = Page(
                (NO_PAGE, self._outside_change_count), 0, has_ended=True
            )
            self._pages[self._page_of_outside_changes.run] = self._page_of_outside_changes
        return self._page_of_outside_changes


class State(MutableMapping[str, Any]):
    """A mapping of names to values that all pages of a spider share.

    - The ledger stores a callback's state changes before it stores the page's outcome. If a
      callback raises an error, the spider state does not change.
    - All processes of a crawl share one spider state.
    - If two pages assign to the same name, the spider state keeps the assignment that the ledger
      stores last. `add` counts exactly, even if a crash makes a page run again.
    - A value has one of the types that an item's values may have. Lists and dictionaries in the
      state are read-only, so assign a new list instead.
    - In a test of a callback without a crawl, the spider state is a mapping in memory.
    """

    def __init__(self) -> None:
        self.keep_in(History(), page=lambda: None)

    def keep_in(self, history: History, *, page: Callable[[], Page | None]) -> None:
        """Store later changes of the state in *history*.

        *page* returns the page whose callback runs.
        """
        self._history = history
        self._page = page

    def __getitem__(self, name: str) -> Any:
        self._page()
        return self._history.view[name]

    def __setitem__(self, name: str, value: Any) -> None:
        try:
            check({name: value})
        except InvalidItemError as error:
            raise TypeError(f"self.state cannot store it: {error}") from None
        self._history.assign(self._page(), _checked(name), frozen(clean(value)))

    def __delitem__(self, name: str) -> None:
        page = self._page()
        if name not in self._history.view:
            raise KeyError(name)
        self._history.delete(page, name)

    def __iter__(self) -> Iterator[str]:
        self._page()
        return iter([*self._history.view])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def add(self, name: str, number: float = 1) -> None:
        """Add *number* to the value of *name*; an absent value counts as 0.

        Concurrent additions are all counted. Raises `TypeError` if the value or *number* is not a
        number, and `OverflowError` if the sum is an integer of more than 64 bits.
        """
        if not is_number(number) or not math.isfinite(number):
            raise TypeError(f"self.state.add() takes a number, not {printable(repr(number))}")
        page, value = self._page(), self.get(name, 0)
        if not is_number(value):
            type_name = type(value).__name__
            raise TypeError(f"self.state[{printable(repr(name))}] is not a number but {type_name}")
        total = value + number
        if isinstance(total, int) and abs(total) > _LARGEST_INTEGER:
            raise OverflowError(f"self.state[{printable(repr(name))}] would have over 64 bits")
        self._history.add(page, _checked(name), number)

    def __repr__(self) -> str:
        return f"State({dict(self)!r})"


def _checked(name: object) -> str:
    if not isinstance(name, str):
        kind = printable(type(name).__name__)
        raise TypeError(f"a name in self.state must be text, but {printable(repr(name))} is {kind}")
    return text(name)
