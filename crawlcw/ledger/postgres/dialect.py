"""PostgreSQL's SQL: the statements of SQLite, translated."""

# ruff: noqa: S608  # all parts are statements' own

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from crawlcw.ledger.sql.database import Values
from crawlcw.ledger.sql.schema import COLUMNS, Dialect

_TYPES = {"BLOB": "BYTEA", "INTEGER": "BIGINT", "TEXT": 'TEXT COLLATE "C"', "REAL": "FLOAT8"}
_CASTS = {"BLOB": "::bytea", "INTEGER": "::bigint", "TEXT": "::text", "REAL": "::float8"}
#: Matches a text in a statement, a name, or the placeholder of a value.
_TEXT_OR_PLACEHOLDER = re.compile(r"""'[^']*'|"[^"]*"|\?|(?<![:\w]):([a-z]\w*)""")
#: Removed from statements: INDEXED BY, because the planner chooses the index, see `connection`.
_REPLACEMENTS = (
    (re.compile(r' INDEXED BY "(?:[^"]|"")*"| NOT INDEXED| WITHOUT ROWID'), ""),
    (re.compile(r"\binstr\("), "strpos("),
    (re.compile(r"(json_extract\(response, '\$\.status'\))"), r"(\1::bigint)"),
    (
        re.compile(r"json_extract\((\w+), '\$\.(\w+)'\)"),
        # PostgreSQL reads no JSON with a NUL.
        r"(replace(\1, '\\u0000', '\\u0001')::json ->> '\2')",
    ),
)


class PostgresDialect(Dialect):
    """Locks on rows, and types of parameters."""

    position = "id"
    locks_rows = True
    for_update = " FOR UPDATE"
    skipping_locked = " FOR UPDATE SKIP LOCKED"

    def cast(self, column: str) -> str:
        """See `Dialect.cast`."""
        return _CASTS[COLUMNS[column].split()[1]]

    def update_many(
        self, table: str, changes: str, rows: str, condition: str, *, key: str, waits: bool
    ) -> str:
        """See `Dialect.update_many`: all transactions lock rows in the order of their ids."""
        # Otherwise two transactions could each wait for a row that the other transaction has
        # locked.
        lock = self.for_update if waits else self.skipping_locked
        return (
            f"WITH v AS (VALUES {rows}), mine AS MATERIALIZED "
            f"(SELECT id FROM {table} WHERE id IN (SELECT {key} FROM v) ORDER BY id{lock}) "
            f"UPDATE {table} SET {changes} FROM v WHERE {condition} AND id IN (SELECT id FROM mine)"
        )


DIALECT = PostgresDialect()


@lru_cache(maxsize=1024)
def translated(statement: str) -> tuple[str, tuple[str, ...] | None]:
    """Return a statement for PostgreSQL, and the names of its values; None: they have numbers."""
    for pattern, replacement in _REPLACEMENTS:
        statement = pattern.sub(replacement, statement)
    names: dict[str, int] = {}
    number = 0

    def placeholder(match: re.Match[str]) -> str:
        nonlocal number
        if match[1]:
            return f"${names.setdefault(match[1], len(names) + 1)}"
        if match[0] == "?":
            number += 1
            return f"${number}"
        return match[0]

    text = _TEXT_OR_PLACEHOLDER.sub(placeholder, statement)
    return text, tuple(names) if names else None


def in_order(names: tuple[str, ...] | None, values: Values) -> Sequence[Any]:
    """Return the values of a statement in the order of their numbers."""
    if isinstance(values, Sequence):
        return values
    return [values[name] for name in names or ()]


def types(statement: str) -> str:
    """Return a statement that creates a table, with PostgreSQL's types."""
    return re.sub(rf"\b({'|'.join(_TYPES)})\b", lambda match: _TYPES[match[0]], statement)
