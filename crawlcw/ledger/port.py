"""The port to a store (Ports and Adapters): tables of documents, and classes that describe writes.

The code of a ledger uses only this port, so it is the same code for all stores. A store only turns
each write into a command; a store does not interpret a task's status. Every operation may raise
`LedgerUnavailableError`; the caller then does not know whether the operation was applied.
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

#: Type of a document's key: the value of `_id`, or the values of the table's key fields.
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
    """Test that a field has a value that was read earlier; an absent field has the value None."""

    value: Any


class Within(NamedTuple):
    """Test that a field's value is at least *first* and below *end*.

    If a key has several fields, *first* and *end* may leave out the last fields of the key.
    """

    first: Any  #: None: no lower bound
    end: Any  #: None: no upper bound


class Among(NamedTuple):
    """Test that a field has one of some values."""

    values: Collection[Any]


class Containing(NamedTuple):
    """Test that a field's text contains *text*, and that the text is in the range *within*."""

    text: str
    within: Within


#: Largest number that every store accepts as a limit of documents.
MAX_LIMIT = (1 << 63) - 1
#: Key in a `Where` whose value is a list of `Where`; a document must pass one of them.
OR = "or"
#: Map from a field (`_id` is the key) to a test object, or to the value that the field must have.
Where = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of a document's fields.

    `documents.escaped` has escaped the names of members in `merge` and `without`, so these names
    contain no quote, no backslash and no control character.
    """

    set: Mapping[str, Any] = field(default_factory=dict)  #: new values; None removes a field
    inc: Mapping[str, int] = field(default_factory=dict)  #: numbers to add to numeric fields
    #: New values of fields; a value is written only if the field is absent or smaller.
    raise_to: Mapping[str, Any] = field(default_factory=dict)
    #: Members to replace in fields that are mappings; members that are not named stay.
    merge: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Names of members to remove from fields that are mappings.
    without: Mapping[str, Collection[str]] = field(default_factory=dict)

    def applied(self, document: Document) -> Document:
        """Return *document* with this edit applied; a removed field has the value None."""
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
    """A change of the document with one key, applied only if the document passes *where*."""

    key: Key
    where: Where
    edit: Edit
    new: Document | None = None  #: document to insert if no document has the key


class Path(StrEnum):
    """An index by which a store reads documents; a single-field index is named by its field."""

    KEY = "key"  #: index of all documents, in the order of their keys
    STATUS = "status"  #: index by status, then by the latest change, then by id
    HOST = "host"
    REASON = "reason"
    CALLBACK = "callback"
    REVISIT = "revisit"  #: index of tasks that may be visited again
    DUE = "due"  #: index of tasks with a `due` time, by highest priority, then by earliest `due`
    HOST_DUE = "host due"  #: index of tasks with a `due` time, by host, priority and `due`
    READY = "ready"  #: index of hosts with a `ready_at`, the earliest first
    LAST_READY = "last ready"  #: index of hosts with a `ready_at`, the latest first
    OWNER = "owner"  #: index of leased hosts, by owner
    LEFT = "left_at"  #: index of workers, by the time when they left, then by key


class Documents(Protocol):
    """Documents by key. A store may return an absent field as None or as an empty mapping."""

    async def insert(self, documents: Sequence[Document]) -> int:
        """Insert the documents whose keys are new; return the number of inserted documents.

        Raises `LedgerError` for a document that the store cannot hold.
        """

    async def read(
        self, keys: Sequence[Key], fields: Collection[str] = (), where: Where | None = None
    ) -> Mapping[Key, Document]:
        """Return the documents with *keys* that pass *where*; read all fields, or only *fields*.

        The key of this table must be a single field.
        """

    async def change(self, writes: Sequence[Write]) -> int:
        """Apply each write atomically; return how many documents were changed or inserted in all.

        Raises `LedgerError` for a document that the store cannot hold.
        """


class Ordered(Documents, Protocol):
    """Documents of one kind, in the order of their keys or of an index."""

    async def scan(
        self, where: Where, *, by: Path = Path.KEY, limit: int, fields: Collection[str] = ()
    ) -> Sequence[Document]:
        """Return the first documents that pass *where*, at most *limit*, in the order of an index.

        The store reads the documents in the index range that *where* selects, until *limit*
        documents pass. The result has all fields of a document, or only *fields* if given.
        """


class Table(Ordered, Protocol):
    """Documents that the store can select by a `Where` to change or to delete them."""

    async def change_where(self, where: Where, edit: Edit, *, by: Path = Path.KEY) -> int:
        """Change all documents in an index that pass *where*; return the number of documents."""

    async def delete(self, where: Where) -> int:
        """Delete the documents that pass *where*; return their number."""


class Listed(NamedTuple):
    """One batch of a listing: the cursors of its tasks, and the start of the next batch."""

    cursors: list[Cursor]
    next: Cursor | None  #: None if there are no more tasks


class Tasks(Ordered, Protocol):
    """The tasks. A cursor is a task's position in the sort order at the time of the read."""

    async def listed(
        self, where: Where, *, limit: int, scan_limit: int, cursor: Cursor | None = None
    ) -> Listed:
        """Return up to *limit* tasks after *cursor* that pass *where*, the latest change first.

        The store examines only tasks with the statuses and times in *where*, and at most a few
        times *scan_limit* tasks.
        """

    async def by_index(
        self, where: Where, *, by: Path, limit: int, cursor: Cursor | None = None
    ) -> list[Cursor]:
        """Return cursors as `listed` does; read one range of an index, and sort all tasks in it."""

    async def count(self, where: Where, *, by: Path, limit: int = MAX_LIMIT) -> int:
        """Count the tasks in an index that pass *where*; the count stops at *limit*."""

    async def count_by_index(self, where: Where) -> int | None:
        """Return how many tasks pass *where*, or None if no index has all fields of *where*."""

    async def change_all(self, keys: Sequence[Key], where: Where, edit: Edit) -> int:
        """Durably change the tasks with *keys* that pass *where*; return their number."""

    async def delete_all(self, keys: Sequence[Key], where: Where) -> int:
        """Delete the tasks with *keys* that pass *where*, and their data; return their number."""

    async def counts(self) -> Counts:
        """Return the number of tasks in each status, and the number of redirects."""


class Results(Protocol):
    """The items that tasks have stored."""

    async def count(self, *, scan_limit: int | None = None) -> Count:
        """Return the number of items; a store without an index examines *scan_limit* tasks."""

    async def of(self, keys: Sequence[Key]) -> tuple[list[ItemRow], int]:
        """Return a batch of items, and the number of *keys* that were read for the batch.

        The items are in the order of *keys*. The batch ends with the task that fills it.
        """

    async def items(self, last_key: Key) -> tuple[list[ItemRow], Key | None]:
        """Return items of tasks after *last_key*, and the last task's key (None after the end)."""

    async def versions(self, last_key: Key) -> tuple[list[ItemRow], Key | None]:
        """Return items as `items` does, but of all stored visits; earlier visits come first."""


class Groups(Protocol):
    """Counts tasks in groups with a common value; the store reads only indexes."""

    async def by(self, dimension: Dimension) -> list[Group]:
        """Return the number of tasks for each value of *dimension*, see `queries.Groups.by`.

        The groups are in any order. The result may contain groups without tasks.
        """

    async def of_hosts(self) -> dict[str, Counts]:
        """Return the number of tasks of each host in each status, see `hosts.Hosts.counts`."""


class Part(StrEnum):
    """A part of a ledger that the command `doctor` reads."""

    TASKS = "tasks"
    HOSTS = "hosts"
    BLOBS = "blobs"


class Raw(Protocol):
    """Reads documents as they are stored, because `doctor` must read values of any type."""

    async def read(
        self, part: Part, *, cursor: Any = None, wanted_ids: Collection[Any] | None = None
    ) -> tuple[Sequence[Document], Any]:
        """Return the next documents, and the last document's cursor (None after the last batch).

        If *cursor* is None, begin with the first document. If *wanted_ids* is given, return all
        documents with these ids. The documents leave out large parts, so they fit in memory:

        - A task has the number of its items as `items`, the positions of missing items as
          `items_lost`, and its references to blobs.
        - A host document leaves out the host's robots.txt.
        - A blob document has only `task_id` and `create_time`.
        """


#: Key of `LedgerTables.rates`; a document has the counts of one worker in one minute.
RATE_KEY = ("kept", "minute", "worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerTables:
    """The tables of one ledger, as `Store.reading` and `Store.writing` pass them to a function."""

    marker: Documents  #: one document with the ledger's kind and notes
    state: Documents  #: one document with the state of a spider
    hosts: Table
    #: The same table as `hosts`, for frequent writes by the workers that own hosts. These writes
    #: are not synced to the disk.
    host_leases: Table
    workers: Table
    sessions: Table  #: identities for requests
    item_keys: Table  #: keys of items, see `item_keys`
    #: Counts for each worker and minute, with the key `RATE_KEY`; not synced to the disk.
    rates: Table
    tasks: Tasks
    groups: Groups  #: counts of tasks by host, by reason and by other values
    results: Results  #: the items of the tasks
    raw: Raw  #: the documents as they are stored, for `doctor`


#: A unit of work is a coroutine function that awaits only operations on its `LedgerTables`.
Work = Callable[Concatenate[LedgerTables, P], Coroutine[Any, Any, T]]


class Store(Protocol):
    """Durable storage for the tables of one ledger; many processes share the storage.

    If the store has transactions, it runs a unit of work (`Work`) as one transaction. A store
    without transactions applies the writes of a unit of work one after another.
    """

    name: str  #: name of the spider or use case
    kind: LedgerKind  #: kind of the ledger's tasks

    @property
    def now(self) -> Callable[[], datetime]:
        """Function that returns the ledger's time, see `Ledger.now`."""

    async def reading(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a unit of work that writes nothing, and return its result."""

    async def writing(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a unit of work that writes, and return its result."""

    async def drop(self) -> None:
        """Delete all data of this spider or use case."""
