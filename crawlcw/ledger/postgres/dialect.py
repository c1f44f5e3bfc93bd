"""Translate the statements from SQLite's SQL to PostgreSQL's SQL."""

# ruff: noqa: S608  # no SQL injection: all parts are our own SQL

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from crawlcw.ledger.sql.database import Values
from crawlcw.ledger.sql.schema import COLUMNS, Dialect

_TYPES = {"BLOB": "BYTEA", "INTEGER": "BIGINT", "TEXT": 'TEXT COLLATE "C"', "REAL": "FLOAT8"}
_CASTS = {"BLOB": "::bytea", "INTEGER": "::bigint", "TEXT": "::text", "REAL": "::float8"}
#: Matches a quoted text, a quoted name, or a placeholder in an SQL statement.
_TEXT_OR_PLACEHOLDER = re.compile(r"""'[^']*'|"[^"]*"|\?|(?<![:\w]):([a-z]\w*)""")
#: Replacements in statements. We remove INDEXED BY, because PostgreSQL chooses the index itself.
_REPLACEMENTS = (
    (re.compile(r' INDEXED BY "(?:[^"]|"")*"| NOT INDEXED| WITHOUT ROWID'), ""),
    (re.compile(r"\binstr\("), "strpos("),
    (re.compile(r"(json_extract\(response, '\$\.status'\))"), r"(\1::bigint)"),
    (
        re.compile(r"json_extract\((\w+), '\$\.(\w+)'\)"),
        # Replace NUL, because PostgreSQL refuses JSON that contains NUL.
        r"(replace(\1, '\\u0000', '\\u0001')::json ->> '\2')",
    ),
)


class PostgresDialect(Dialect):
    """Adds row locks to the statements, and a type to each parameter that needs one."""

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
        """See `Dialect.update_many`; all transactions lock rows in the order of their ids."""
        # The common order of locks prevents a deadlock between two transactions.
        lock = self.for_update if waits else self.skipping_locked
        return (
            f"WITH v AS (VALUES {rows}), mine AS MATERIALIZED "
            f"(SELECT id FROM {table} WHERE id IN (SELECT {key} FROM v) ORDER BY id{lock}) "
            f"UPDATE {table} SET {changes} FROM v WHERE {condition} AND id IN (SELECT id FROM mine)"
        )


DIALECT = PostgresDialect()


@lru_cache(maxsize=1024)
def translated(statement: str) -> tuple[str, tuple[str, ...] | None]:
    """Return a PostgreSQL statement, and its parameters' names (None if they have numbers)."""
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
    """Return the values in the order of the statement's numbered parameters."""
    if isinstance(values, Sequence):
        return values
    return [values[name] for name in names or ()]


def types(statement: str) -> str:
    """Replace SQLite's column types by PostgreSQL's types in a CREATE TABLE statement."""
    return re.sub(rf"\b({'|'.join(_TYPES)})\b", lambda match: _TYPES[match[0]], statement)
