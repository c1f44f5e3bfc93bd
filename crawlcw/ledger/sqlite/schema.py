"""The tables in an SQLite file: their names, and how those of older versions change."""

from collections.abc import Mapping

from crawlcw.ledger.sql import schema
from crawlcw.ledger.sql.schema import COLUMNS, HOST_COLUMNS, quoted

SCHEMA_VERSION = 8
#: The table that notes the kind and version of each name's tables.
MARKER = "crawlcw.schema"


class Tables(schema.Tables):
    """The tables of one name, all of which bear it."""

    def __init__(self, name: str) -> None:
        super().__init__(
            table=lambda part: quoted(name if part == "tasks" else f"{name}.{part}"),
            index=lambda part: quoted(f"{name}.{part}"),
            marker=quoted(MARKER),
        )
        #: Of the tables and indexes.
        self.names = {statement.split('"')[1] for statement in self.create}
        #: What brings tables of an older version up to date, before `create`.
        self.upgrades = self._upgrades(name)

    def _upgrades(self, name: str) -> Mapping[int, list[str]]:
        """Return the statements of each version that tables may be of."""
        tracked = [self._adding(column) for column in ("data", "results", "trace")]
        origins = f"ALTER TABLE {self.hosts} ADD COLUMN {HOST_COLUMNS['origins']}"
        vitals = f"ALTER TABLE {self.workers} ADD COLUMN vitals TEXT"
        newest = [self._adding("stored"), vitals]
        visits = [*(self._adding(column) for column in ("options", "visit", "revisit")), *newest]
        newer = [self._adding("hops"), origins, *visits]
        unordered = f"DROP INDEX IF EXISTS {quoted(f'{name}.status')}"
        return {
            2: [self._adding("quarantine_fence"), *tracked, unordered, *newer],
            3: [*tracked, unordered, *newer],
            4: newer,
            5: visits,
            6: newest,
            # Points that are kept for no day were what workers showed last.
            7: [vitals],
        }

    def _adding(self, column: str) -> str:
        return f"ALTER TABLE {self.tasks} ADD COLUMN {COLUMNS[column]}"
