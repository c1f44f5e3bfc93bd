"""Port of a store (Ports and Adapters): tables of documents, and guarded writes that are data.

The facets of a ledger are written once, above this port. A store compiles the writes; it knows no
status and decides nothing. Every operation may raise `LedgerUnavailableError`; it is then unknown
whether it was applied.
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

#: The key of a document: the value of its `_id`, or the values of its table's key fields.
Key = Any


class AtMost(NamedTuple):
    """Test that a field is not larger than a value."""

    value: Any


class After(NamedTuple):
    """Test that a field is larger than a value."""

    value: Any


class Not(NamedTuple):
    """Test that a field does not have the value; an absent field passes."""

    value: Any


class Unchanged(NamedTuple):
    """Test that a field still has the value that was read, of any type; None: it is absent."""

    value: Any


class Within(NamedTuple):
    """Test that a value is at least *first* and below *end*.

    A bound may be the beginning of a key.
    """

    first: Any  #: None: no lower bound
    end: Any  #: None: no upper bound


class Among(NamedTuple):
    """Test that a field has one of some values."""

    values: Collection[Any]


class Containing(NamedTuple):
    """Test that a text contains another text and lies within a range."""

    text: str
    within: Within


#: The largest limit that every store accepts.
MAX_LIMIT = (1 << 63) - 1
#: Key of alternatives among the tests: a document must pass one of several `Where`.
OR = "or"
#: Tests of a document by field (the key is `_id`): a value that must be equal, or a test.
Where = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of a document's fields.

    Names of members are escaped, see `documents.escaped`, and contain no quote, backslash or
    control character.
    """

    set: Mapping[str, Any] = field(default_factory=dict)  #: None: the field becomes absent
    inc: Mapping[str, int] = field(default_factory=dict)  #: numbers to add to fields
    #: Values that replace smaller or absent values.
    raise_to: Mapping[str, Any] = field(default_factory=dict)
    #: Members to set, each as a whole, in fields that are documents; other members stay.
    merge: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Members to remove.
    without: Mapping[str, Collection[str]] = field(default_factory=dict)

    def applied(self, document: Document) -> Document:
        """Return the document after the change; a field with None becomes absent."""
        fields = {**document, **self.set}
        for name, number in self.inc.items():
            fields[name] = fields[name] + number
        for name, minimum in self.raise_to.items():
            current = fields.get(name)
            fields[name] = minimum if current is None else max(current, minimum)
        for name in self.merge.keys() | self.without.keys():
            removed_keys = self.without.get(name, ())
            entries = {n: v for n, v in (fields.get(name) or {}).items() if n not in removed_keys}
            fields[name] = {**entries, **self.merge.get(name, {})}
        return fields


class Write(NamedTuple):
    """A change of the document of one key, if it passes *where*."""

    key: Key
    where: Where
    edit: Edit
    new: Document | None = None  #: inserted if no document has the key


class Path(StrEnum):
    """An index to read by; an index of one field has the name of that field."""

    KEY = "key"  #: of all documents, by their keys
    STATUS = "status"  #: of statuses, the last changed first; equal times by id
    HOST = "host"
    REASON = "reason"
    CALLBACK = "callback"
    REVISIT = "revisit"  #: of tasks that may be visited again
    DUE = "due"  #: of tasks with a `due`: the highest priority first, and then the first `due`
    HOST_DUE = "host due"  #: by host, and then as `due`
    READY = "ready"  #: of hosts with a time when they are ready, the earliest first
    LAST_READY = "last ready"  #: the same hosts, the last ready host first
    OWNER = "owner"  #: of leased hosts
    LEFT = "left_at"  #: of workers by the time when they left, and then by key


class Documents(Protocol):
    """Documents by their keys. An absent field may be read as None, or without members."""

    async def insert(self, documents: Sequence[Document]) -> int:
        """Insert the documents whose keys are new; return the number of inserted documents.

        Raises `LedgerError` for a document that the store cannot hold.
        """

    async def read(
        self, keys: Sequence[Key], fields: Collection[str] = (), where: Where | None = None
    ) -> Mapping[Key, Document]:
        """Return the documents with *keys* that pass *where*, with *fields* or all fields.

        The key of these documents must be one field.
        """

    async def change(self, writes: Sequence[Write]) -> int:
        """Apply writes, each atomically; return how many were applied, including inserts.

        Raises `LedgerError` for a document that the store cannot hold.
        """


class Ordered(Documents, Protocol):
    """Documents of one kind, in the order of their keys or of an index."""

    async def scan(
        self, where: Where, *, by: Path = Path.KEY, limit: int, fields: Collection[str] = ()
    ) -> Sequence[Document]:
        """Return the first *limit* documents of an index that pass, with *fields* or all fields.

        It reads all documents in the range of the index that *where* gives.
        """


class Table(Ordered, Protocol):
    """Documents that can be changed and deleted by tests, not only by their keys."""

    async def change_where(self, where: Where, edit: Edit, *, by: Path = Path.KEY) -> int:
        """Change all documents of an index that pass, each atomically; return how many."""

    async def delete(self, where: Where) -> int:
        """Delete documents; return how many."""


class Listed(NamedTuple):
    """Positions of tasks that pass: their cursors, and the cursor to continue after."""

    cursors: list[Cursor]
    next: Cursor | None  #: None: there are no more


class Tasks(Ordered, Protocol):
    """The tasks. A cursor is the position that a task had when it was read."""

    async def listed(
        self, where: Where, *, limit: int, scan_limit: int, cursor: Cursor | None = None
    ) -> Listed:
        """Return the first *limit* tasks of some statuses after a cursor, last changed first.

        It examines at most *scan_limit* tasks of the statuses and times in *where*, or a few times
        as many.
        """

    async def by_index(
        self, where: Where, *, by: Path, limit: int, cursor: Cursor | None = None
    ) -> list[Cursor]:
        """Return the same as `listed`, but read and sort all tasks in a range of an index."""

    async def count(self, where: Where, *, by: Path, limit: int = MAX_LIMIT) -> int:
        """Return how many tasks pass in a range of an index; it counts at most *limit*."""

    async def count_by_index(self, where: Where) -> int | None:
        """Return how many tasks pass, from an index alone; None: no index has all the fields."""

    async def change_all(self, keys: Sequence[Key], where: Where, edit: Edit) -> int:
        """Change the tasks with *keys* that pass, durably, each atomically; return their number."""

    async def delete_all(self, keys: Sequence[Key], where: Where) -> int:
        """Delete the tasks with *keys* that pass, with all their data; return their number."""

    async def counts(self) -> Counts:
        """Return how many tasks there are of each status, and how many redirects."""


class Results(Protocol):
    """Results of tasks: their items."""

    async def count(self, *, scan_limit: int | None = None) -> Count:
        """Return how many items there are; without an index of items, in *scan_limit* tasks."""

    async def of(self, keys: Sequence[Key]) -> tuple[list[ItemRow], int]:
        """Return the items of the first tasks, in the order of the keys, and these tasks' number.

        Each task comes with all its items. It ends with the task whose items fill the batch.
        """

    async def items(self, last_key: Key) -> tuple[list[ItemRow], Key | None]:
        """Return the items of the next tasks, and the key of the last task; None: no more tasks."""

    async def versions(self, last_key: Key) -> tuple[list[ItemRow], Key | None]:
        """As `items`, but with the items of all kept visits, the earliest visit first."""


class Groups(Protocol):
    """Counts of tasks, read from indexes alone."""

    async def by(self, dimension: Dimension) -> list[Group]:
        """Return how many tasks each value has, see `queries.Groups.by`.

        The groups are in any order, and may be empty.
        """

    async def of_hosts(self) -> dict[str, Counts]:
        """Return how many tasks each host has in each status, see `hosts.Hosts.counts`."""


class Part(StrEnum):
    """Parts of a ledger that `doctor` reads."""

    TASKS = "tasks"
    HOSTS = "hosts"
    BLOBS = "blobs"


class Raw(Protocol):
    """Documents as they are stored: their values may have any type."""

    async def read(
        self, part: Part, *, cursor: Any = None, wanted_ids: Collection[Any] | None = None
    ) -> tuple[Sequence[Document], Any]:
        """Return documents after a position, and the last document's position; None: no more.

        Position None means the first documents; with *wanted_ids*, all documents with these ids.
        The documents fit in memory, because they leave out everything that grows with the results:

        - A task has the number of its `items`, its missing items as `items_lost`, and its
          references to blobs.
        - A host has no robots.txt.
        - A blob has only `task_id` and `create_time`.
        """


#: Fields that form the key of a worker's point.
RATE_KEY = ("kept", "minute", "worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerTables:
    """The tables of one ledger, during one unit of work."""

    marker: Documents  #: the document with the ledger's name: its kind, and notes
    state: Documents  #: the state of a spider, which is one document
    hosts: Table
    host_leases: Table  #: the hosts, for the writes of their owners; not durable
    workers: Table
    sessions: Table  #: identities for requests
    rates: Table  #: points of the workers, whose key is `RATE_KEY`; not durable
    tasks: Tasks
    groups: Groups  #: the numbers of tasks by a common value
    results: Results  #: the items of the tasks
    raw: Raw  #: the documents as they are stored, for `doctor`


#: A unit of work: a coroutine that awaits only the tables of its unit.
Work = Callable[Concatenate[LedgerTables, P], Coroutine[Any, Any, T]]


class Store(Protocol):
    """The tables of one ledger, durable and shared.

    If the store has transactions, a unit of work is one transaction. Otherwise its writes are
    applied one after another.
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
        """Delete everything of this name."""
