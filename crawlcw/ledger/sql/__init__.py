"""Operations on a ledger in an SQL database, for both SQLite and PostgreSQL.

Module `transitions` decides each change of a task; this package writes the change. Each operation
is one function, which runs in one transaction on the thread of a connection.
"""
