"""The tables in an SQLite file: their names."""

from crawlcw.ledger.sql import schema
from crawlcw.ledger.sql.schema import quoted

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
