"""The model of a store: the port on dictionaries, which do all at once and forget all."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from crawlcw.ledger.documents import Document
from crawlcw.ledger.port import AtMost, Edit, Key, Not, P, T, Where, Within, Work, Write


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
        self, where: Where, *, limit: int, after: Key | None = None
    ) -> Sequence[Document]:
        """See `port.Table.scan`."""
        found = [key for key in self._matching(where) if after is None or key > after]
        return [deepcopy(self._documents[key]) for key in found[:limit]]

    async def change(self, writes: Sequence[Write]) -> int:
        """See `port.Documents.change`."""
        return sum(self._change(write) for write in writes)

    def _change(self, write: Write) -> bool:
        known = self._documents.get(write.key)
        if known is None:
            if write.new is not None:
                self._documents[write.key] = deepcopy(write.new)
            return write.new is not None
        if not all(_passes(known.get(name), test) for name, test in write.where.items()):
            return False
        _apply(known, write.edit)
        return True

    async def delete(self, where: Where) -> int:
        """See `port.Table.delete`."""
        gone = list(self._matching(where))
        for key in gone:
            del self._documents[key]
        return len(gone)

    def _matching(self, where: Where) -> Iterator[Key]:
        for key, document in sorted(self._documents.items()):
            if all(
                _passes(key if name == "_id" else document.get(name), test)
                for name, test in where.items()
            ):
                yield key


def _passes(value: Any, test: Any) -> bool:
    match test:
        case Within(first, end):
            return bool(first <= value < end)
        case Not(other):
            return bool(value != other)
        case AtMost(most):
            return value is not None and bool(value <= most)
        case _:
            return bool(value == test)


def _apply(document: Document, edit: Edit) -> None:
    document |= deepcopy(dict(edit.set))
    for name in [name for name, value in edit.set.items() if value is None]:
        del document[name]
    for name, number in edit.inc.items():
        document[name] += number
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

    async def reading(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """See `port.Store.reading`."""
        return await work(self, *args, **kwargs)

    async def writing(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """See `port.Store.writing`."""
        return await work(self, *args, **kwargs)
