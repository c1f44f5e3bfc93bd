"""The state that a spider keeps between its pages, and the order of its changes. No I/O.

A change belongs to the run of one page's callback, and each of its operations has a place
in the order of all. It is pending until the outcome of its page is recorded. A page that
runs again after a crash makes its change anew, at the same places: it finds the state as
it was there, and later pages' changes on top of the first one stay right. So
`state["n"] = state["n"] + 1` counts each page once, however often it runs.
"""

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from crawlcw.errors import SpiderError
from crawlcw.model.values import FrozenDict, FrozenList, frozen, size

#: The most that all names and values of a state may amount to, in bytes.
LARGEST = 1 << 20
#: Of more pending changes those are settled that can be, whatever is pending before them.
MOST_PENDING = 1_000
#: Of pending changes of more bytes those are left out that later ones stand for.
LARGEST_PENDING = 4 << 20
#: Stands for a page where something else changes the state: it is settled at once.
NO_PAGE = bytes(16)

#: One run of a page: the id of its task, and the fence of its lease.
Run = tuple[bytes, int]


class Kind(StrEnum):
    """What an operation does to the value of a name."""

    SET = "set"
    ADD = "add"
    EXTEND = "extend"  #: a list by the elements behind it, a dictionary by new keys
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Operation:
    """One change of one name."""

    kind: Kind
    place: int  #: in the order of all operations: microseconds, roughly
    value: Any = None  #: the value that is set or added
    size: int = field(default=0, compare=False)  #: of the value: bytes, roughly


@dataclass(frozen=True, slots=True)
class Value:
    """The value of a name."""

    value: Any
    place: int = 0  #: of the operation that has set it; 0: it came about by adding
    size: int = field(default=0, compare=False)  #: bytes, roughly


Change = Mapping[str, Operation]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState:
    """The state as the ledger has it."""

    revision: int = 0  #: how often it was written; 0: never
    values: Mapping[str, Value] = field(default_factory=dict)
    pending: Mapping[Run, Change] = field(default_factory=dict)


def is_number(value: object) -> bool:
    """Return whether something can be added to *value*."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def sized(value: Any, place: int) -> Value:
    """Return a clean value with its size."""
    return Value(value, place, size(value))


def applied(held: Value | None, operation: Operation) -> Value | None:
    """Return a value after an operation; None: there is none.

    A value that was set at a later place stays, for it is in the place of this one.
    """
    if held is not None and held.place > operation.place:
        return held
    if operation.kind is Kind.DELETE:
        return None
    if operation.kind is Kind.SET:
        return Value(operation.value, operation.place, operation.size)
    if held is None:
        return Value(operation.value, 0, operation.size)
    if operation.kind is Kind.EXTEND:
        if type(held.value) is not type(operation.value):
            return held  # another process has set it meanwhile
        more = _extended(held.value, operation.value)
        return Value(more, held.place, held.size + operation.size)
    return Value(held.value + operation.value, held.place, 8) if is_number(held.value) else held


def joined(before: Operation | None, after: Operation) -> Operation:
    """Return what two operations of one page on one name come to."""
    if before is None or after.kind not in (Kind.ADD, Kind.EXTEND):
        return after
    if before.kind is Kind.DELETE:
        return replace(after, kind=Kind.SET)
    if after.kind is Kind.ADD:
        return replace(after, kind=before.kind, value=before.value + after.value)
    value, both = _extended(before.value, after.value), before.size + after.size
    return Operation(before.kind, after.place, value, both)


def _extended(value: Any, more: Any) -> Any:
    return FrozenDict({**value, **more}) if isinstance(value, dict) else FrozenList([*value, *more])


def _growth(before: Any, after: Any) -> Any:
    """Return what *after* has more than *before*, None where it is no longer list or the like.

    A list that each page makes longer is written once, and not with each of them.
    """
    if type(before) is not type(after) or not isinstance(before, list | dict):
        return None
    if not 0 < len(before) < len(after):
        return None
    if isinstance(before, list):
        return frozen(list(after[len(before) :])) if after[: len(before)] == before else None
    if any(name not in after or after[name] != value for name, value in before.items()):
        return None
    return frozen({name: value for name, value in after.items() if name not in before})


def folded(state: StoredState, *, settled: Container[Run]) -> StoredState:
    """Return the state with the changes of settled pages among its values.

    Those behind one that may be made again stay pending: that page is to find the values of its
    own place. But no more than `MOST_PENDING` wait for that.
    """
    order = sorted(state.pending, key=lambda run: place_of(state.pending[run]))
    is_crowded = len(order) > MOST_PENDING
    done: dict[Run, Change] = {}
    for run in order:
        if run in settled:
            done[run] = state.pending[run]
        elif not is_crowded:
            break
    if not done:
        return state
    values = dict(state.values)
    operations = [each for change in done.values() for each in change.items()]
    for name, operation in sorted(operations, key=lambda each: each[1].place):
        _put(values, name, applied(values.get(name), operation))
    pending = {run: change for run, change in state.pending.items() if run not in done}
    return StoredState(revision=state.revision, values=values, pending=pending)


def seen(state: StoredState | None) -> dict[str, Any]:
    """Return the values of a state, with all that is pending."""
    if state is None:
        return {}
    whole = folded(state, settled=state.pending)
    return {name: each.value for name, each in whole.values.items()}


def _bounded(state: StoredState) -> StoredState:
    """Return the state without large changes that others, of a later place, stand for.

    A page that runs again does not find them then, where it would: a store has bounds.
    """
    changes = state.pending.values()
    if sum(each.size for change in changes for each in change.values()) <= LARGEST_PENDING:
        return state
    last: dict[str, int] = {}
    for change in changes:
        for name, each in change.items():
            if each.kind in (Kind.SET, Kind.DELETE):
                last[name] = max(last.get(name, 0), each.place)
    pending = {
        run: {name: each for name, each in change.items() if each.place >= last.get(name, 0)}
        for run, change in state.pending.items()
    }
    return replace(state, pending=pending)


def place_of(change: Change) -> int:
    """Return the place of the first operation of a change."""
    return min((operation.place for operation in change.values()), default=0)


def _put(values: dict[str, Value], name: str, value: Value | None) -> None:
    if value is None:
        values.pop(name, None)
    else:
        values[name] = value


class Page:
    """What one run of a page changes."""

    def __init__(self, run: Run, *, earlier: Run | None, change: Change) -> None:
        """*earlier* is the run that a crash has cut short, *change* what that had changed."""
        self.run = run
        self.earlier = earlier
        #: Until a name is changed anew, others see its value after the earlier run.
        self.change: dict[str, Operation] = dict(change)
        self.names: set[str] = set()  #: those that this run has changed
        self._places = {name: operation.place for name, operation in change.items()}
        self._first = place_of(change)
        self.is_void = False  #: it has failed: nothing of it counts
        self.has_ended = False
        self.version = 0
        self.writing = -1  #: the version that was last given to the ledger, or is just now
        self.written = 0  #: the last that is durable

    def place(self, name: str) -> int:
        """Return the place that the page has had before, for *name*; 0: none."""
        return self._places.get(name, self._first)

    def own(self, name: str) -> Operation | None:
        """Return what this run has done to a name."""
        return self.change[name] if name in self.names else None


class History:
    """The state as one process sees it: the ledger's, and the changes of its own pages."""

    def __init__(self, *, clock: Callable[[], int]) -> None:
        """*clock* tells the ledger's time in microseconds."""
        self.stored = StoredState()
        self._clock = clock
        self._last = 0
        self._own: dict[Run, Page] = {}
        self._settled: set[Run] = set()
        self._gone: set[Run] = set()  #: pending changes that are to be taken away
        self._outside: Page | None = None
        self._view: dict[str, Value] = {}
        self._size = 0
        #: The pending changes, by name and run.
        self._operations: dict[str, dict[Run, Operation]] = {}
        self._runs: dict[bytes, Run] = {}  #: the last run of each task whose change is pending

    # What callbacks do.

    def begin(self, run: Run, *, settled: int) -> Page:
        """Return a page for a run; *settled* is the fence of the last run that was recorded."""
        earlier = self._cut_short(run, settled=settled)
        change = {} if earlier is None else self.stored.pending[earlier]
        page = Page(run, earlier=earlier, change=change)
        if (failed := self._own.get(run)) is not None:
            # The callback has failed, and this is the errback.
            page.writing, page.written, page.version = failed.writing, -1, failed.version
        if page.earlier is not None:
            self._own[run] = page
            self._rebuild()
        return page

    def _cut_short(self, run: Run, *, settled: int) -> Run | None:
        """Return the run of the same task that a crash has ended before its outcome, if any."""
        earlier = self._runs.get(run[0])
        if earlier is None or earlier == run or earlier in self._own:
            return None
        if earlier[1] == settled:
            self._settled.add(earlier)
            return None
        return earlier

    def get(self, page: Page | None, name: str) -> Value | None:
        """Return the value of a name, as *page* is to find it; None: there is none."""
        if page is None or page.earlier is None:
            return self._view.get(name)
        operations = self._operations.get(name, {})
        place = page.place(name)
        before = [
            operation
            for run, operation in operations.items()
            if operation.place < place and run != page.run
        ]
        value = _value(self.stored.values.get(name), before)
        own = page.own(name)
        return value if own is None else applied(value, own)

    def names(self, page: Page | None) -> Iterator[str]:
        """Yield the names that have a value, as *page* is to find them."""
        if page is None or page.earlier is None:
            yield from list(self._view)
            return
        for name in {**self.stored.values, **self._operations}:
            if self.get(page, name) is not None:
                yield name

    def change(self, page: Page | None, name: str, kind: Kind, value: Any = None) -> None:
        """Change a name; *page* is None where no page does so.

        Raises `SpiderError` where the state would be too large.
        """
        place = page.place(name) if page is not None else 0
        held = self.get(page, name)
        if kind is Kind.SET and held is not None and (more := _growth(held.value, value)):
            kind, value = Kind.EXTEND, more
        operation = Operation(kind, place or self._next_place(), value, size(value))
        self._check_size(held, name, operation)
        page = page or self._no_page(operation.place)
        self._own[page.run] = page
        operations = self._operations.setdefault(name, {})
        before = operations.get(page.run)
        is_last = not place and (before is None or before.place == _last(operations))
        page.change[name] = joined(page.own(name), operation)
        page.names.add(name)
        page.version += 1
        operations[page.run] = page.change[name]
        if is_last:
            self._show(name, applied(self._view.get(name), operation))
        else:
            self._recompute(name)

    def end(self, page: Page) -> None:
        """Note that a page's callback has ended well."""
        page.has_ended = True
        if page.change.keys() != page.names:
            # The earlier run has changed more names than this one.
            page.change = {name: page.change[name] for name in page.names}
            page.version += 1
            self._rebuild()
        if page.earlier is not None and not page.change:
            page.is_void = True
            self._gone.add(page.earlier)

    def undo(self, page: Page) -> None:
        """Take back the changes of a page: it has failed."""
        page.has_ended = page.is_void = True
        if page.writing < 0:
            self._own.pop(page.run, None)
        if page.change or page.earlier is not None:
            self._rebuild()

    # How pages end.

    def page_of(self, run: Run) -> Page | None:
        """Return the page of a run of this process, with its changes."""
        return self._own.get(run)

    def over(self, run: Run, *, settled: int) -> None:
        """Note that a task is about to be done: no run of it will make up for an earlier one."""
        earlier = self._cut_short(run, settled=settled)
        page = self._own.get(run)
        if earlier is not None and (page is None or page.earlier != earlier):
            self._gone.add(earlier)

    def settle(self, run: Run) -> None:
        """Note that the outcome of a run is recorded, and its changes stay."""
        self._settled.add(run)

    def drop(self, run: Run) -> None:
        """Note that the changes of a run count no more."""
        self._gone.add(run)

    # The writes.

    @property
    def is_dirty(self) -> bool:
        """Whether pages have changes that the ledger does not have."""
        return any(map(self._is_news, self._own.values())) or any(
            run in self.stored.pending for run in self._gone
        )

    @property
    def unknown(self) -> list[Run]:
        """The pending changes that no page of this process has made."""
        known = self._settled | self._gone
        return [run for run in self.stored.pending if run not in self._own and run not in known]

    def _is_news(self, page: Page) -> bool:
        if page.is_void:
            return page.run in self.stored.pending
        return page.written != page.version

    def next(self) -> StoredState:
        """Return the state to be written."""
        pending = {run: dict(change) for run, change in self._changes().items() if change}
        for page in self._own.values():
            page.writing = page.version
        if self._outside is not None:
            self._settled.add(self._outside.run)
            self._outside = None
        after = StoredState(
            revision=self.stored.revision + 1, values=self.stored.values, pending=pending
        )
        return _bounded(folded(after, settled=self._settled))

    def wrote(self, after: StoredState) -> None:
        """Note that the ledger has what `next` has returned."""
        for page in self._own.values():
            page.written = page.writing
        self.load(after)

    def load(self, stored: StoredState) -> None:
        """Take the ledger's present state."""
        self.stored = stored
        for run, page in list(self._own.items()):
            is_stored = run in stored.pending
            if is_stored or not page.has_ended:
                continue
            # It was taken away as it was to be, or is among the values.
            if page.is_void or (run in self._settled and page.written == page.version):
                del self._own[run]
        self._settled = {run for run in self._settled if run in stored.pending or run in self._own}
        self._gone = {run for run in self._gone if run in stored.pending}
        places = (o.place for change in stored.pending.values() for o in change.values())
        self._last = max(
            self._last,
            max(places, default=0),
            max((value.place for value in stored.values.values()), default=0),
        )
        self._rebuild()

    # How the view is made.

    def _changes(self) -> dict[Run, Change]:
        """Return the changes that count: of this process's pages, and others' that are pending."""
        own = {page.run: page.change for page in self._own.values() if not page.is_void}
        replaced = {page.earlier for page in self._own.values() if not page.is_void}
        hidden = self._gone | self._own.keys() | replaced
        return {
            **{run: each for run, each in self.stored.pending.items() if run not in hidden},
            **own,
        }

    def _rebuild(self) -> None:
        self._runs = {}
        for run in self.stored.pending:
            if run[1] >= self._runs.get(run[0], run)[1]:
                self._runs[run[0]] = run
        self._operations.clear()
        for run, change in self._changes().items():
            for name, operation in change.items():
                self._operations.setdefault(name, {})[run] = operation
        self._view = dict(self.stored.values)
        self._size = sum(_size_of(name, value) for name, value in self._view.items())
        for name in self._operations:
            self._recompute(name)

    def _recompute(self, name: str) -> None:
        operations = self._operations.get(name)
        self._show(name, _value(self.stored.values.get(name), (operations or {}).values()))

    def _show(self, name: str, value: Value | None) -> None:
        self._size += _size_of(name, value) - _size_of(name, self._view.get(name))
        _put(self._view, name, value)

    def _next_place(self) -> int:
        self._last = max(self._last + 1, self._clock())
        return self._last

    def _no_page(self, place: int) -> Page:
        if self._outside is None:
            self._outside = Page((NO_PAGE, place), earlier=None, change={})
            self._outside.has_ended = True
        return self._outside

    def _check_size(self, held: Value | None, name: str, operation: Operation) -> None:
        if operation.kind is Kind.DELETE or (operation.kind is Kind.ADD and held is not None):
            return
        # In the page's own view: the others' may have another value.
        new = operation.size + (0 if held is not None else len(name) + 8)
        old = held.size if held is not None and operation.kind is Kind.SET else 0
        total = self._size + new - old
        if total > LARGEST:
            raise SpiderError(
                f"self.state would take {total:,} bytes with {name!r}, and {LARGEST:,} are "
                "allowed: it is for what pages share, and what one page passes to another "
                "goes with the request, `Request(context=...)`"
            )


def _size_of(name: str, value: Value | None) -> int:
    return 0 if value is None else len(name) + 8 + value.size


def _last(operations: Mapping[Run, Operation]) -> int:
    return max(operation.place for operation in operations.values())


def _value(held: Value | None, operations: Any) -> Value | None:
    for operation in sorted(operations, key=lambda each: each.place):
        held = applied(held, operation)
    return held
