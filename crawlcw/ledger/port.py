"""Port of a store (Ports and Adapters): tables of documents, and guarded writes that are data.

The facets of a ledger are written once above it. A store compiles what it is given; it knows no
status and decides nothing. Every operation may raise `LedgerUnavailableError`; whether it was
applied is then unknown.
"""

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from crawlcw.ledger.documents import Document

T = TypeVar("T")
P = ParamSpec("P")

#: The key of a document: the value of its `_id`, or those of the fields that are its table's key.
Key = Any


class AtMost(NamedTuple):
    """The test of a field that is not larger than a value."""

    value: Any


class Not(NamedTuple):
    """The test of a field that has not the value; one that is absent passes."""

    value: Any


class Within(NamedTuple):
    """The test of a key from *first* on and before *end*, each a key or the beginning of one."""

    first: Key
    end: Key


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
    #: Members that are set, each as a whole, in fields that are documents, beside the others.
    merge: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Members that are taken away.
    without: Mapping[str, Collection[str]] = field(default_factory=dict)


class Write(NamedTuple):
    """A change of the document of one key, if it is as *where* says."""

    key: Key
    where: Where
    edit: Edit
    new: Document | None = None  #: inserted where no document has the key


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


class Table(Documents, Protocol):
    """Documents of one kind, ordered by their keys."""

    async def scan(
        self, where: Where, *, limit: int, after: Key | None = None
    ) -> Sequence[Document]:
        """Return the first *limit* documents by their keys, or the first behind *after*.

        *where* tests nothing but the key, and *after* is a key that passes.
        """

    async def delete(self, where: Where) -> int:
        """Delete documents; return how many."""


#: The fields that are the key of a point of a worker.
RATE_KEY = ("kept", "minute", "worker")


class Unit(Protocol):
    """The tables of one ledger, during one unit of work."""

    @property
    def marker(self) -> Documents:
        """The document that is named as the ledger: the kind of the ledger, and notes."""

    @property
    def state(self) -> Documents:
        """The state of a spider, which is one document."""

    @property
    def sessions(self) -> Table:
        """The sessions that pages are asked for with."""

    @property
    def rates(self) -> Table:
        """The points of workers, whose key is `RATE_KEY`; not durable."""


#: A unit of work: a coroutine that awaits nothing but the tables of its unit.
Work = Callable[Concatenate[Unit, P], Coroutine[Any, Any, T]]


class Store(Protocol):
    """The tables of one ledger, durable and shared.

    Where the store has transactions, a unit of work is one; elsewhere its writes are applied one
    after the other.
    """

    name: str  #: of the spider or use case

    async def reading(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a unit of work that writes nothing has read."""

    async def writing(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a unit of work."""
