"""The facets of a ledger in a database of SQL, written once for SQLite and PostgreSQL.

`transitions` decides each change of a task; these modules write it. Each operation is one function
on the thread of a connection, in one transaction.
"""
