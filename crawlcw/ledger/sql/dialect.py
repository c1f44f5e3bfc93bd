"""Differences between SQL databases, with the words of SQLite."""

# ruff: noqa: S608  # all parts are statements' own


class Dialect:
    """SQLite's SQL, which all statements are written in."""

    position = "rowid"  #: the column of a walk through a whole table
    #: Whether transactions write at the same time, and so lock their rows in one order.
    locks_rows = False
    #: What follows a SELECT of rows that its transaction is to write.
    for_update = ""
    skipping_held = ""

    def cast(self, column: str) -> str:  # noqa: ARG002  # a value has its own type
        """Return what gives a parameter the type of a task's column."""
        return ""

    def update_many(
        self,
        table: str,
        changes: str,
        rows: str,
        wanted: str,
        *,
        key: str,  # noqa: ARG002  # there is one writer at a time
        waits: bool,  # noqa: ARG002
    ) -> str:
        """Return the UPDATE of the rows that `v` has values for, and their ids in its column *key*.

        A row that another transaction writes is waited for, or left as it is.
        """
        return f"UPDATE {table} SET {changes} FROM (VALUES {rows}) AS v WHERE {wanted}"


SQLITE = Dialect()
