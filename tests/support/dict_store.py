"""Model of a store: the port on dictionaries, in memory and without concurrency."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from crawlcw.ledger.documents import Document
from crawlcw.ledger.port import (
    MOST,
    OR,
    After,
    Among,
    AtMost,
    Containing,
    Edit,
    Key,
    Listed,
    Not,
    P,
    Path,
    T,
    Where,
    Within,
    Work,
    Write,
)
from crawlcw.ledger.values import Cursor

#: The field that the documents of an index have, and the order of it.
ORDERS: Mapping[Path, tuple[str, Callable[[Document], Any]]] = {
    Path.DUE: ("due", lambda task: (-task["priority"], task["due"])),
    Path.HOST_DUE: ("due", lambda task: (task["host"], -task["priority"], task["due"])),
    Path.REVISIT: ("revisit", lambda task: task["revisit"]),
    Path.READY: ("ready_at", lambda host: host["ready_at"]),
    Path.LAST_READY: ("ready_at", lambda host: -host["ready_at"].timestamp()),
    Path.OWNER: ("owner", lambda host: host["owner"]),
}


class DictTable:
    """Documents by their keys."""

    def __init__(self, *documents: Document) -> None:
        self._documents: dict[Key, Document] = {each["_id"]: each for each in documents}

    async def insert(self, documents: Sequence[Document]) -> int:
        """See `port.Documents.insert`."""
        new = {
            each["_id"]: deepcopy(each) for each in documents if each["_id"] not in self._documents
        }
        self._documents |= new
        return len(new)

    async def read(
        self, keys: Sequence[Key], fields: Collection[str] = (), where: Where | None = None
    ) -> Mapping[Key, Document]:
        """See `port.Documents.read`."""
        matching = set(self._matching(where or {}))
        return {key: deepcopy(self._documents[key]) for key in keys if key in matching}

    async def scan(
        self, where: Where, *, by: Path = Path.KEY, limit: int, fields: Collection[str] = ()
    ) -> Sequence[Document]:
        """See `port.Ordered.scan`; all fields are returned."""
        found = [deepcopy(self._documents[key]) for key in self._matching(where)]
        if by in ORDERS:
            index, order = ORDERS[by]
            found = sorted((each for each in found if each.get(index) is not None), key=order)
        return found[:limit]

    async def change(self, writes: Sequence[Write]) -> int:
        """See `port.Documents.change`."""
        return sum(self._change(write) for write in writes)

    def _change(self, write: Write) -> bool:
        known = self._documents.get(write.key)
        if known is None:
            if write.new is not None:
                self._documents[write.key] = deepcopy(write.new)
            return write.new is not None
        if not _matches(known, write.where):
            return False
        _apply(known, write.edit)
        return True

    async def change_where(self, where: Where, edit: Edit, *, by: Path = Path.KEY) -> int:
        """See `port.Table.change_where`."""
        found = list(self._matching(where))
        return sum(self._change(Write(key, {}, edit)) for key in found)

    async def delete(self, where: Where) -> int:
        """See `port.Table.delete`."""
        gone = list(self._matching(where))
        for key in gone:
            del self._documents[key]
        return len(gone)

    def _matching(self, where: Where) -> Iterator[Key]:
        for key, document in sorted(self._documents.items()):
            if _matches({**document, "_id": key}, where):
                yield key


class DictTasks(DictTable):
    """The tasks."""

    async def listed(
        self, where: Where, *, limit: int, scan_limit: int, after: Cursor | None = None
    ) -> Listed:
        """See `port.Tasks.listed`, but that *scan_limit* is no bound."""
        cursors = self._cursors(where, after)
        return Listed(cursors[:limit], cursors[limit - 1] if len(cursors) >= limit else None)

    async def by_index(
        self, where: Where, *, by: Path, limit: int, after: Cursor | None = None
    ) -> list[Cursor]:
        """See `port.Tasks.by_index`."""
        return self._cursors(where, after)[:limit]

    async def count(self, where: Where, *, by: Path, limit: int = MOST) -> int:
        """See `port.Tasks.count`."""
        return min(len(self._cursors(where, None)), limit)

    async def change_all(self, keys: Sequence[Key], where: Where, edit: Edit) -> int:
        """See `port.Tasks.change_all`."""
        return await self.change_where({**where, "_id": Among(keys)}, edit)

    async def delete_all(self, keys: Sequence[Key], where: Where) -> int:
        """See `port.Tasks.delete_all`."""
        return await self.delete({**where, "_id": Among(keys)})

    def _cursors(self, where: Where, after: Cursor | None) -> list[Cursor]:
        found = [self._documents[key] for key in self._matching(where)]
        cursors = [Cursor(update_time=each["update_time"], id=each["_id"]) for each in found]
        return sorted((each for each in cursors if after is None or each < after), reverse=True)


def _matches(document: Document, where: Where) -> bool:
    return all(
        any(_matches(document, each) for each in test)
        if name == OR
        else _passes(document.get(name), test)
        for name, test in where.items()
    )


def _passes(value: Any, test: Any) -> bool:
    match test:
        case Within(first, end):
            after_first = first is None or first <= value
            return value is not None and after_first and (end is None or bool(value < end))
        case Among(values):
            return value in values
        case Containing(text, within):
            return text in value and _passes(value, within)
        case Not(other):
            return bool(value != other)
        case AtMost(most):
            return value is not None and bool(value <= most)
        case After(least):
            return value is not None and bool(value > least)
        case _:
            return bool(value == test)


def _apply(document: Document, edit: Edit) -> None:
    document |= deepcopy(dict(edit.set))
    for name in [name for name, value in edit.set.items() if value is None]:
        del document[name]
    for name, number in edit.inc.items():
        document[name] += number
    for name, least in edit.raise_to.items():
        document[name] = max(document.get(name) or least, least)
    for name, gone in edit.without.items():
        for member in gone:
            document.setdefault(name, {}).pop(member, None)
    for name, merged in edit.merge.items():
        document.setdefault(name, {}).update(deepcopy(merged))


class DictStore:
    """The tables of one ledger."""

    name = "books"

    def __init__(self) -> None:
        self.marker = DictTable({"_id": self.name})
        self.state = DictTable()
        self.sessions = DictTable()
        self.rates = DictTable()
        self.hosts = DictTable()
        self.workers = DictTable()
        self.tasks = DictTasks()

    async def reading(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """See `port.Store.reading`."""
        return await work(self, *args, **kwargs)

    async def writing(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """See `port.Store.writing`."""
        return await work(self, *args, **kwargs)
