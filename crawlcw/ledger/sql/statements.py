"""All SQL statements of the ledger's operations."""

# ruff: noqa: S608  # no SQL injection: names of tables are quoted, values are parameters

from collections.abc import Collection

from crawlcw.errors import Reason
from crawlcw.ledger import documents
from crawlcw.ledger.examination import TASK_STATE
from crawlcw.ledger.port import Part
from crawlcw.ledger.protocol import Dimension
from crawlcw.ledger.sql.schema import HAS_RESPONSE, HOST_COLUMNS, RESPONSE_STATUS, Tables
from crawlcw.model.task import DONE, Status


def among(statuses: Collection[Status]) -> str:
    """Return the SQL condition that a task's status is one of *statuses*."""
    return f"status IN ({', '.join(f'{status:d}' for status in statuses)})"


#: Columns that a read of tasks selects.
READ = ("id", *documents.TASK_FIELDS)
_TASK_COLUMNS = ", ".join(READ)


class Statements:
    """All statements on the tables of one spider or use case."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self._of_tasks(tables)
        self._of_leases(tables)
        self._of_results(tables)
        self._of_host_leases(tables)
        self._of_counts(tables)
        self._of_examination(tables)

    def _of_tasks(self, tables: Tables) -> None:
        """Make the statements that read one task, and that find due tasks."""
        tasks, items, due, host_due = (
            tables.tasks,
            tables.items,
            tables.due_index,
            tables.host_due_index,
        )
        self.get = (
            f"SELECT {tasks}.*, i.item FROM {tasks} LEFT JOIN {items} AS i ON i.task_id = id "
            "WHERE id = ? ORDER BY i.n"
        )

        # Test both the priority and the due time, so that the condition is one range of the index.
        # Without the priority, the database would also read tasks that are not due yet.
        condition = "priority = :priority AND due <= :now ORDER BY due LIMIT :limit"
        self.page = f"SELECT {_TASK_COLUMNS} FROM {tasks} INDEXED BY {due} WHERE {condition}"
        self.page_of_host = (
            f"SELECT {_TASK_COLUMNS} FROM {tasks} INDEXED BY {host_due} "
            f"WHERE host = :host AND {condition}"
        )
        # Select the earliest due task of the highest priority that is lower than `above`.
        select_next = "SELECT priority, due FROM"
        lower_priority = "due IS NOT NULL AND priority < :above ORDER BY priority DESC, due LIMIT 1"
        self.next_due = f"{select_next} {tasks} INDEXED BY {due} WHERE {lower_priority}"
        self.next_due_of_host = (
            f"{select_next} {tasks} INDEXED BY {host_due} WHERE host = :host AND {lower_priority}"
        )

    def _of_leases(self, tables: Tables) -> None:
        """Make the statements for leased tasks and their outcomes."""
        tasks = tables.tasks
        lease_condition = "id = :id AND lock = :lock AND fence = :fence AND status = :status"
        self.renew = f"UPDATE {tasks} SET due = :due WHERE {lease_condition}"
        self.lock_task = f"SELECT 1 FROM {tasks} WHERE id = ?{tables.dialect.for_update}"
        self.settled = f"SELECT settled FROM {tasks} WHERE id = ?"

    def added_to(self, number: int) -> str:
        """Return the statement that reads the errors, results and traces of *number* tasks."""
        return self._of_ids("errors, results, trace", number)

    def carried(self, number: int) -> str:
        """Return the statement that reads the payloads of *number* tasks."""
        return self._of_ids(", ".join(documents.CARRIED_FIELDS), number)

    def _of_ids(self, columns: str, number: int) -> str:
        placeholders = ", ".join("?" * number)
        return f"SELECT id, {columns} FROM {self.tables.tasks} WHERE id IN ({placeholders})"

    def _of_results(self, tables: Tables) -> None:
        """Make the statements for items and blobs."""
        items, blobs = tables.items, tables.blobs
        self.put_blob = f"INSERT INTO {blobs} VALUES (:id, :task_id, :content, :create_time)"
        self.read_blob = f"SELECT content FROM {blobs} WHERE id = ?"
        self.forget_blobs = f"DELETE FROM {blobs} WHERE task_id = ?"
        self.drop_blob = f"DELETE FROM {blobs} WHERE id = ?"

        self.forget_items = f"DELETE FROM {items} WHERE task_id = ?"
        self.items = (
            f"SELECT task_id, n, item, url, fetched_at FROM {items} "
            "WHERE task_id > ? ORDER BY task_id, n"
        )
        self.items_of_task = (
            f"SELECT task_id, n, item, url, fetched_at FROM {items} WHERE task_id = ? ORDER BY n"
        )
        versions = tables.versions
        self.forget_versions = f"DELETE FROM {versions} WHERE task_id = ?"
        self.add_version = (
            f"INSERT INTO {versions} SELECT task_id, :fence, n, item, url, fetched_at "
            f"FROM {items} WHERE task_id = :id"
        )
        self.forget_old_versions = (
            f"DELETE FROM {versions} WHERE task_id = :id AND fence NOT IN (SELECT fence "
            f"FROM {versions} WHERE task_id = :id GROUP BY fence ORDER BY fence DESC LIMIT :kept)"
        )
        self.versions = (
            f"SELECT task_id, fence, n, item, url, fetched_at FROM {versions} "
            "WHERE task_id > ? ORDER BY task_id, fence, n"
        )
        self.versions_of_task = (
            f"SELECT fence, item, url, fetched_at FROM {versions} WHERE task_id = ? "
            "ORDER BY fence, n"
        )
        # To count by the index of the primary key takes 0.05 s for a million items.
        self.count_items = f"SELECT count(*) FROM {items}"

    def _of_host_leases(self, tables: Tables) -> None:
        """Make the statements that lease hosts."""
        hosts, ready_index = tables.hosts, tables.ready_index
        self.ready_hosts = (
            f"SELECT * FROM {hosts} INDEXED BY {ready_index} WHERE ready_at <= :now "
            "ORDER BY ready_at LIMIT :limit"
        )
        self.take_ready_hosts = f"{self.ready_hosts}{tables.dialect.skipping_locked}"
        self.lease_host = (
            f"UPDATE {hosts} SET owner = :owner, epoch = epoch + 1, ready_at = :end WHERE id = :id"
        )

    def _of_counts(self, tables: Tables) -> None:
        """Make the statements that count tasks."""
        tasks, index = tables.tasks, tables.changed_index
        count = f"count(*) FROM {tasks} INDEXED BY"
        failed = among((Status.FAILED, Status.IGNORED))
        #: Each row has a value, a status and a number of tasks; two rows may have the same value.
        self.groups = {
            Dimension.HOST: (
                f"SELECT host, status, {count} {tables.host_index} GROUP BY host, status"
            ),
            # Group by the columns of the index in their order, so that the database need not sort.
            Dimension.CALLBACK: (
                f"SELECT callback, status, {count} {tables.callback_index} "
                "GROUP BY callback, depth, status"
            ),
            Dimension.DEPTH: (
                f"SELECT depth, status, {count} {tables.callback_index} "
                "GROUP BY callback, depth, status"
            ),
            Dimension.REASON: (
                f"SELECT reason, status, {count} {tables.reason_index} WHERE reason IS NOT NULL "
                f"AND {failed} GROUP BY reason, status"
            ),
        }
        from_responses = (
            f"FROM {tasks} INDEXED BY {tables.response_status_index} "
            f"WHERE {HAS_RESPONSE} AND {RESPONSE_STATUS}"
        )
        self.next_response_status = (
            f"SELECT {RESPONSE_STATUS} {from_responses} < :above "
            f"ORDER BY {RESPONSE_STATUS} DESC LIMIT 1"
        )
        self.of_response_status = (
            f"SELECT status, count(*) {from_responses} = :code GROUP BY status"
        )
        self.count_done = (
            f"SELECT NULL, status, {count} {index} WHERE {among(DONE)} GROUP BY status"
        )
        self.count_redirects = (
            f"SELECT {count} {tables.reason_index} WHERE reason = '{Reason.REDIRECT}' "
            f"AND status = {Status.FINISHED:d}"
        )

    def _of_examination(self, tables: Tables) -> None:
        """Make the statements with which `doctor` reads the tables."""
        tasks, items, position = tables.tasks, tables.items, tables.dialect.position
        fixed_columns = "id, url, host, method, body, callback, depth, priority, options"
        columns = f"{fixed_columns}, revisit, update_time, create_time, {', '.join(TASK_STATE)}"
        # Only references to blobs contain `{"%blob":`, because `%` is escaped in all other keys and
        # texts.
        pointer = """'{"%blob":'"""
        pointers = ", ".join(
            f"CASE WHEN instr({name}, {pointer}) > 0 THEN {name} END AS {name}"
            for name in ("context", "data", "results")
        )
        number = f"nullif((SELECT count(*) FROM {items} WHERE task_id = {tasks}.id), 0) AS items"
        host_columns = ", ".join(name for name in HOST_COLUMNS if name != "robots")
        #: Map from a part of the ledger to SQL with the columns and the table, and to the column by
        #: which the rows are sorted.
        self.raw = {
            Part.TASKS: (f"{columns}, {pointers}, {number} FROM {tasks}", position),
            Part.HOSTS: (f"{host_columns} FROM {tables.hosts}", position),
            Part.BLOBS: (f"id, task_id, create_time FROM {tables.blobs}", "id"),
        }
