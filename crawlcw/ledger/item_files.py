"""The files in items: an item refers to the tasks of its files, and readers get their state.

An item is recorded before its files are saved. So the stored item has only the id of each file's
task, and stays unchanged when the file is saved, whichever process saves it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from crawlcw.ledger import documents
from crawlcw.ledger.choosing import batches, resumed
from crawlcw.ledger.documents import Document
from crawlcw.ledger.port import LedgerTables, Store
from crawlcw.model.values import ItemFile, files_of

#: Maximum number of tasks in one read.
_BATCH_SIZE = 1_000
#: Number of redirects after which the search for a file ends, because redirects may lead back.
_MAX_REDIRECTS = 20


async def fill_files(store: Store, items: Iterable[Mapping[str, Any]]) -> None:
    """Fill in the fields of all files in *items* from the files' tasks.

    `fill_files` reads the tasks of all items together, and once more for each redirect.
    """
    files: dict[bytes, list[ItemFile]] = {}
    for item in items:
        for file in files_of(item):
            if file.task_id is not None:
                files.setdefault(file.task_id, []).append(file)
    for _ in range(_MAX_REDIRECTS):
        if not files:
            return
        targets: dict[bytes, list[ItemFile]] = {}
        for ids in batches(files, _BATCH_SIZE):
            for task_id, task in (await resumed(store, _tasks, ids)).items():
                for file in files[task_id]:
                    file.update(documents.file_fields(task))
                if (target := documents.leads_to(task)) is not None:
                    targets.setdefault(target, []).extend(files[task_id])
        files = targets


async def _tasks(tables: LedgerTables, ids: Sequence[bytes]) -> Mapping[bytes, Document]:
    return await tables.tasks.read(ids, ("status", "reason", "response"))
