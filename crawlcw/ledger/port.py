"""Port of a store (Ports and Adapters): tables of documents, and guarded writes that are data.

The facets of a ledger are written once above it. A store compiles the writes; it knows no
status and decides nothing. Every operation may raise `LedgerUnavailableError`; whether it was
applied is then unknown.
"""

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from crawlcw.ledger.documents import Document
from crawlcw.ledger.kind import LedgerKind
from crawlcw.ledger.values import Count, Counts, Cursor, Dimension, Group, ItemRow

T = TypeVar("T")
P = ParamSpec("P")

#: The key of a document: the value of its `_id`, or those of the fields that are its table's key.
Key = Any


class AtMost(NamedTuple):
    """The test of a field that is not larger than a value."""

    value: Any


class After(NamedTuple):
    """The test of a field that is larger than a value."""

    value: Any


class Not(NamedTuple):
    """The test of a field that has not the value; one that is absent passes."""

    value: Any


class AsFound(NamedTuple):
    """The test of a value of any type, as a store was found to have it; None: it has none."""

    value: Any


class Within(NamedTuple):
    """The test of a value from *first* on and before *end*, of which one may be None.

    Each may be the beginning of a key.
    """

    first: Any  #: None: from the first on
    end: Any  #: None: up to the last


class Among(NamedTuple):
    """The test of a field that has one of some values."""

    values: Collection[Any]


class Containing(NamedTuple):
    """The test of a text with another one in it, and within a range."""

    text: str
    within: Within


#: The largest limit that every store takes.
MOST = (1 << 63) - 1
#: The name of alternatives among tests: a document passes one of several `Where`.
OR = "or"
#: Tests of a document: each field, with the key as `_id`, has the value or passes the test.
Where = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of a document's fields.

    The names of members are escaped, see `documents.escaped`, and hold no quote, backslash or
    control character.
    """

    set: Mapping[str, Any] = field(default_factory=dict)  #: None: the field is to be absent
    inc: Mapping[str, int] = field(default_factory=dict)  #: numbers to add to fields
    #: Values that fields have afterwards where theirs are smaller, or absent.
    raise_to: Mapping[str, Any] = field(default_factory=dict)
    #: Members that are set, each as a whole, in fields that are documents, beside the others.
    merge: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Members that are taken away.
    without: Mapping[str, Collection[str]] = field(default_factory=dict)

    def applied(self, document: Document) -> Document:
        """Return the document after the change; None: the field is to be absent."""
        found = {**document, **self.set}
        for name, number in self.inc.items():
            found[name] = found[name] + number
        for name, least in self.raise_to.items():
            known = found.get(name)
            found[name] = least if known is None else max(known, least)
        for name in self.merge.keys() | self.without.keys():
            gone = self.without.get(name, ())
            kept = {n: v for n, v in (found.get(name) or {}).items() if n not in gone}
            found[name] = {**kept, **self.merge.get(name, {})}
        return found


class Write(NamedTuple):
    """A change of the document of one key, if it is as *where* says."""

    key: Key
    where: Where
    edit: Edit
    new: Document | None = None  #: inserted where no document has the key


class Path(StrEnum):
    """An index, or none; the name of an index of one field is that field's."""

    KEY = "key"  #: of all documents, by their keys
    STATUS = "status"  #: of statuses, the last changed first, with the ids behind equal times
    HOST = "host"
    REASON = "reason"
    CALLBACK = "callback"
    REVISIT = "revisit"  #: of those that may be visited again
    DUE = "due"  #: of tasks with a `due`: the highest priority first, and then the first `due`
    HOST_DUE = "host due"  #: the same behind the host
    READY = "ready"  #: of hosts that are to be ready, the first one first
    LAST_READY = "last ready"  #: the same, the last one first
    OWNER = "owner"  #: of hosts that are held
    LEFT = "left"  #: of workers, with the key behind it


class Documents(Protocol):
    """Documents by their keys. A field that is absent may be read as None, or without members."""

    async def insert(self, documents: Sequence[Document]) -> int:
        """Insert the documents whose keys no other has; return how many.

        Raises `LedgerError` for a document that the store cannot hold.
        """

    async def read(
        self, keys: Sequence[Key], fields: Collection[str] = (), where: Where | None = None
    ) -> Mapping[Key, Document]:
        """Return the documents of those keys that are as *where* says, with those fields or all.

        Of documents whose key is one field.
        """

    async def change(self, writes: Sequence[Write]) -> int:
        """Apply writes, each of them atomic; return how many were applied, inserted ones included.

        Raises `LedgerError` for a document that the store cannot hold.
        """


class Ordered(Documents, Protocol):
    """Documents of one kind, in the order of their keys or of an index."""

    async def scan(
        self, where: Where, *, by: Path = Path.KEY, limit: int, fields: Collection[str] = ()
    ) -> Sequence[Document]:
        """Return the first *limit* documents of an index that pass, with those fields or all.

        All documents of that stretch of the index are read.
        """


class Table(Ordered, Protocol):
    """Documents that are changed and deleted by tests, and not only by their keys."""

    async def change_where(self, where: Where, edit: Edit, *, by: Path = Path.KEY) -> int:
        """Change all documents of an index that pass, each atomically; return how many."""

    async def delete(self, where: Where) -> int:
        """Delete documents; return how many."""


class Listed(NamedTuple):
    """Where tasks that pass are: their cursors, and the one to go on behind."""

    cursors: list[Cursor]
    next: Cursor | None  #: None: nothing is left


class Tasks(Ordered, Protocol):
    """The tasks. A cursor is the position that a task had when it was read."""

    async def listed(
        self, where: Where, *, limit: int, scan_limit: int, after: Cursor | None = None
    ) -> Listed:
        """Return the first *limit* tasks of some statuses behind a cursor, last changed first.

        It examines no more than *scan_limit* tasks of those statuses and times, or a few times
        as many.
        """

    async def by_index(
        self, where: Where, *, by: Path, limit: int, after: Cursor | None = None
    ) -> list[Cursor]:
        """Return the same; it reads and sorts all tasks of a stretch of an index."""

    async def count(self, where: Where, *, by: Path, limit: int = MOST) -> int:
        """Return how many pass in a stretch of an index, or *limit* if there are more."""

    async def count_by_index(self, where: Where) -> int | None:
        """Return how many pass, by an index alone; None: no index has all the fields."""

    async def change_all(self, keys: Sequence[Key], where: Where, edit: Edit) -> int:
        """Change those of the tasks that pass, durably, each atomically; return how many."""

    async def delete_all(self, keys: Sequence[Key], where: Where) -> int:
        """Delete those of the tasks that pass with all that belongs to them; return how many."""

    async def counts(self) -> Counts:
        """Return how many tasks there are of each status, and how many redirects."""


class Results(Protocol):
    """What tasks gave: their items."""

    async def count(self, *, scan_limit: int | None = None) -> Count:
        """Return how many items there are, of *scan_limit* tasks if the items have no index."""

    async def of(self, keys: Sequence[Key]) -> tuple[list[ItemRow], int]:
        """Return the items of the first tasks, in the order of the keys, and how many tasks.

        Each task has all its items. It ends behind the task with which they fill a batch.
        """

    async def items(self, after: Key) -> tuple[list[ItemRow], Key | None]:
        """Return the items of some tasks behind a key, and the last key; None: nothing is left."""

    async def versions(self, after: Key) -> tuple[list[ItemRow], Key | None]:
        """Return likewise the items of all visits that are kept, the earliest visit first."""


class Groups(Protocol):
    """Numbers of tasks, read from indexes alone."""

    async def by(self, dimension: Dimension) -> list[Group]:
        """Return how many tasks there are of each value, see `queries.Groups.by`; some have none.

        In any order.
        """

    async def of_hosts(self) -> dict[str, Counts]:
        """Return how many tasks there are of each host and status, see `hosts.Hosts.counts`."""


class Part(StrEnum):
    """Parts of a ledger that `doctor` reads."""

    TASKS = "tasks"
    HOSTS = "hosts"
    BLOBS = "blobs"


class Raw(Protocol):
    """Documents as they are stored: their values may be of any types."""

    async def read(
        self, part: Part, *, after: Any = None, only: Collection[Any] | None = None
    ) -> tuple[Sequence[Document], Any]:
        """Return some documents behind a place, and the last one's place; None: nothing is left.

        The first ones behind None, or all of *only* those ids. They are few enough for the
        memory, and without what grows with the results: a task has the number of its `items`,
        those that are not there as `items_lost`, and its references to blobs.
        A host has no robots.txt, a blob `task_id` and `create_time` alone.
        """


#: The fields that are the key of a point of a worker.
RATE_KEY = ("kept", "minute", "worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """The tables of one ledger, during one unit of work."""

    marker: Documents  #: the document that is named as the ledger: its kind, and notes
    state: Documents  #: the state of a spider, which is one document
    hosts: Table
    host_leases: Table  #: the hosts, for what their owners write; not durable
    workers: Table
    sessions: Table  #: those that pages are asked for with
    rates: Table  #: the points of workers, whose key is `RATE_KEY`; not durable
    tasks: Tasks
    groups: Groups  #: the numbers of tasks by a common value
    results: Results  #: the items of the tasks
    raw: Raw  #: the documents as they are stored, for `doctor`


#: A unit of work: a coroutine that awaits nothing but the tables of its unit.
Work = Callable[Concatenate[Unit, P], Coroutine[Any, Any, T]]


class Store(Protocol):
    """The tables of one ledger, durable and shared.

    Where the store has transactions, a unit of work is one; elsewhere its writes are applied one
    after the other.
    """

    name: str  #: of the spider or use case
    kind: LedgerKind  #: of the tasks

    @property
    def now(self) -> Callable[[], datetime]:
        """The function that returns the ledger's time, see `Ledger.now`."""

    async def reading(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a unit of work that writes nothing."""

    async def writing(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a unit of work."""

    async def drop(self) -> None:
        """Take away everything of this name."""
