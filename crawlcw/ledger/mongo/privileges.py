"""Privileges that the user of a ledger needs, and those that the server refuses.

Pure: the server's answer is an argument.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pymongo.errors import OperationFailure

#: What commands that only look do, to each collection of the ledger.
READING = frozenset({"find", "listIndexes"})
#: What all others do. Besides, `changeStream`, by which workers on tracked tasks are woken.
WRITING = READING | {
    *("insert", "update", "remove"),
    *("createCollection", "createIndex", "listCollections"),
}
_ROLES = "`crawlcw guide deploying` has the roles"
_REFUSED = re.compile(r"not authorized on (\S+) to execute command \{ (\w+): (?:\"([^\"]*)\")?")
#: The privileges that a command stands for, where it is not called as they are.
_OF_COMMANDS = {
    "aggregate": "find",
    "count": "find",
    "create": "createCollection",
    "createIndexes": "createIndex",
    "delete": "remove",
    "distinct": "find",
    "findAndModify": "update",
    "getMore": "find",
}


def lacking(
    status: Mapping[str, Any], *, database: str, collections: Iterable[str], actions: frozenset[str]
) -> list[str]:
    """Return the *actions* that the user may not do to one of the collections at least.

    *status* is the answer to `connectionStatus`. If it names no user, nothing is refused.
    """
    found = status.get("authInfo", {})
    granted = found.get("authenticatedUserPrivileges")
    if not found.get("authenticatedUsers") or granted is None:
        return []
    allowed = set(actions)
    for collection in collections:
        allowed &= _allowed(granted, database, collection)
    return sorted(actions - allowed)


def _allowed(granted: Iterable[Mapping[str, Any]], database: str, collection: str) -> set[str]:
    allowed: set[str] = set()
    for each in granted:
        resource = each["resource"]
        everything = resource.get("anyResource", False)
        here = resource.get("db") in ("", database) and resource.get("collection") in (
            "",
            collection,
        )
        if everything or here:
            allowed.update(each["actions"])
    return allowed


def lacking_sentence(actions: Iterable[str], database: str) -> str:
    """Return the message for a user who lacks privileges."""
    return (
        f"the MongoDB user may not do this in the database {database}, and has to: "
        f"{', '.join(actions)} ({_ROLES})"
    )


def refused_sentence(error: OperationFailure) -> str:
    """Return what to say where the server has refused an operation, without its contents."""
    said = str(error.details.get("errmsg", error) if error.details else error)
    if match := _REFUSED.match(said):
        database, command, collection = match.groups()
        action = _OF_COMMANDS.get(command, command)
        place = f"{database}.{collection}" if collection else database
        return f"the MongoDB user lacks the privilege {action} on {place} ({_ROLES})"
    if "requires authentication" in said:
        return "MongoDB asks for a user: write mongodb://user:password@host/database"
    # The rest is the command, with the documents that it would have written.
    said = said.partition("{")[0].rstrip(" .:")[:200]
    return (
        f"MongoDB refuses access: {said}: check the user, the password and authSource in the "
        "ledger's URL"
    )
