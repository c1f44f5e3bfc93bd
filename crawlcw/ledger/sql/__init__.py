"""The facets of a ledger in an SQL database, written once for SQLite and PostgreSQL.

`transitions` decides each change of a task; these modules write it. Each operation is one
function that runs on the thread of a connection, in one transaction.
"""
