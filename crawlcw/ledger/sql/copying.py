"""Read and write tasks (with their results) and blobs as documents, to copy a ledger."""

# ruff: noqa: S608  # no SQL injection: names of tables are quoted, values are parameters

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from crawlcw.ledger.copying import Part
from crawlcw.ledger.documents import Document
from crawlcw.ledger.sql.database import Database, Row
from crawlcw.ledger.sql.outcomes import insert, item_rows
from crawlcw.ledger.sql.rows import document_of, from_json, milliseconds, moment, row_of, to_json
from crawlcw.ledger.sql.store import SqlStore
from crawlcw.ledger.sql.task_table import ITEM_CHARACTERS, ITEM_ROWS
from crawlcw.model.transitions import LOCK

#: Fields of a task's document that other tables store.
_IN_OTHER_TABLES = ("items", "items_from", "versions")
#: Columns with large values; a batch ends when the sum of the sizes of these values is large.
_LARGE_COLUMNS = ("body", "context", "response", "errors", "data", "results", "content")


class LedgerContents:
    """Reads whole tables of a ledger, and fills empty tables."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._tables = {Part.TASKS: store.tables.tasks, Part.BLOBS: store.tables.blobs}

    async def read(self, part: Part) -> AsyncGenerator[Sequence[Document], None]:
        """See `copying.Contents.read`."""
        last_position = None
        while True:
            last_position, documents = await self._store.reader.run(
                self._read_batch, part, last_position
            )
            if not documents:
                return
            yield documents

    def _read_batch(
        self, db: Database, part: Part, last_position: Any
    ) -> tuple[Any, list[Document]]:
        """Return the new last position, and the next batch of documents after *last_position*."""
        table, position = self._tables[part], self._store.tables.dialect.position
        condition, values = (
            ("", []) if last_position is None else (f"WHERE {position} > ?", [last_position])
        )
        statement = f"SELECT {position} AS row, * FROM {table} {condition} ORDER BY 1"
        documents: list[Document] = []
        size = 0
        # Read in one snapshot, so that a task's items and outcome come from the same visit.
        with db.snapshot():
            for row in db.stream(statement, values):
                columns = dict(row)
                last_position = columns.pop("row")
                size += sum(len(columns.get(name) or "") for name in _LARGE_COLUMNS)
                documents.append(self._document(db, part, columns))
                size += len(documents[-1].get("items", ())) * 100
                if len(documents) >= ITEM_ROWS or size >= ITEM_CHARACTERS:
                    break
        return last_position, documents

    def _document(self, db: Database, part: Part, row: Mapping[str, Any]) -> Document:
        if part is Part.BLOBS:
            return {
                "_id": row["id"],
                "task_id": row["task_id"],
                "value": from_json(row["content"]),
            }
        document = {
            name: value
            for name, value in document_of(row).items()
            if value is not None or name in LOCK
        }
        for item_row in db.execute(self._store.sql.items_of_task, (row["id"],)):
            document.setdefault("items", []).append(from_json(item_row["item"]))
            document["items_from"] = _source(item_row, document)
        if versions := self._versions(db, document):
            document["versions"] = versions
        return document

    def _versions(self, db: Database, task: Document) -> list[Document]:
        """Return those visits of a task whose items the ledger keeps, with these items."""
        versions: dict[int, Document] = {}
        for row in db.execute(self._store.sql.versions_of_task, (task["_id"],)):
            fence = row["fence"]
            version = versions.setdefault(fence, {"fence": fence, **_source(row, task)})
            version.setdefault("items", []).append(from_json(row["item"]))
        return list(versions.values())

    async def write(self, part: Part, documents: Sequence[Document]) -> None:
        """See `copying.Contents.write`."""
        rows = [self._row(part, document) for document in documents]
        items = [
            row
            for document in documents
            if document.get("items")
            for row in _item_rows(document, document["items"], document["items_from"])
        ]
        versions = [
            {**row, "fence": visit["fence"]}
            for document in documents
            for visit in document.get("versions", ())
            for row in _item_rows(document, visit["items"], visit)
        ]
        tables = self._store.tables
        rows_by_table = {self._tables[part]: rows, tables.items: items, tables.versions: versions}
        await self._store.writer.run(_write, rows_by_table)

    def _row(self, part: Part, document: Document) -> dict[str, Any]:
        if part is Part.BLOBS:
            content = to_json(document["value"])
            now = milliseconds(self._store.now())
            return {
                "id": document["_id"],
                "task_id": document["task_id"],
                "content": content,
                "create_time": now,
            }
        return row_of(
            {name: value for name, value in document.items() if name not in _IN_OTHER_TABLES}
        )


def _write(db: Database, rows_by_table: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    with db.transaction(durable=True):
        for table, rows in rows_by_table.items():
            insert(db, table, rows)


def _item_rows(
    task: Document, items: Sequence[Document], source: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the rows for the items of one visit of a task."""
    url = source.get("url", task["url"])
    return item_rows(task["_id"], items, url, milliseconds(source["time"]))


def _source(row: Row, task: Document) -> Document:
    """Return the time of an item's visit, and the visit's URL if it differs from the task's URL."""
    source: Document = {"time": moment(row["fetched_at"])}
    return source if row["url"] == task["url"] else {**source, "url": row["url"]}
