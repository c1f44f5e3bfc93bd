"""Find out why a connection fails: a mistake in the URL, or a missing privilege.

The driver only reports that no server answered in time, but the user must know whether to wait or
to correct a mistake.
"""

import asyncio
import re
import ssl
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import anyio
import pymongo
from pymongo.errors import ConfigurationError, OperationFailure, PyMongoError

#: Seconds for one test connection to a server.
_PROBE_TIMEOUT = 2.0
#: The group of this regex matches the reason of a certificate error. pyOpenSSL gives no reason.
_CERTIFICATE_ERROR = re.compile(r"certificate verify failed(?:: ([^()]+) \()?")
_CONNECTION_FAILURE = re.compile(
    r"refused|Connect call failed|Name or service|timed out", re.IGNORECASE
)
#: Privileges that a read-only command needs on each collection of the ledger.
READING = frozenset({"find", "listIndexes"})
#: Privileges for a crawl, or for another command that writes. Workers on tracked tasks also use
#: `changeStream`.
WRITING = READING | {
    *("insert", "update", "remove"),
    *("createCollection", "createIndex", "listCollections"),
}
_ROLES = "`crawlcw guide deploying` lists the roles"
_NOT_AUTHORIZED = re.compile(
    r"not authorized on (\S+) to execute command \{ (\w+): (?:\"([^\"]*)\")?"
)
#: Maps each MongoDB command whose privilege has another name to this privilege.
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


async def misconfiguration(client: Any, url: str) -> str | None:
    """Return the mistake in *url* that explains why *client* found no server; None if unknown.

    The function also returns None if a server is only unreachable.
    """
    topology = client.topology_description
    servers = list(topology.server_descriptions().values())
    name = topology.replica_set_name
    # The driver omits servers of other replica sets, so *servers* may be empty.
    if name and (not servers or any(isinstance(s.error, ConfigurationError) for s in servers)):
        return f"no server of the URL belongs to a replica set named {name!r} (replicaSet)"
    for server in servers:
        if server.error is not None:
            problem = await _problem_of(server.address, str(server.error), url)
            if problem is not None:
                return problem
    return None


async def _problem_of(address: tuple[str, int | None], message: str, url: str) -> str | None:
    host, port = address[0], address[1] or 27017
    server = f"{host}:{port}"
    if distrust := _CERTIFICATE_ERROR.search(message):
        return (
            f"the certificate of {server} is not trusted ({distrust[1] or distrust[0]}): "
            "set tlsCAFile to the file of its certificate authority"
        )
    if _CONNECTION_FAILURE.search(message):
        return None
    if uses_tls(url):
        if not await _speaks_tls(host, port) and await _speaks_plainly(host, port):
            return f"{server} does not use TLS, but the URL has tls=true: remove it"
    elif await _speaks_tls(host, port):
        return f"{server} accepts only TLS: add tls=true to the URL"
    return None


def uses_tls(url: str) -> bool:
    """Return whether a URL asks for TLS."""
    options = url.partition("?")[2].lower().replace(";", "&").split("&")
    if url.startswith("mongodb+srv:"):
        return not {"tls=false", "ssl=false"}.intersection(options)
    return bool({"tls=true", "ssl=true"}.intersection(options))


async def _speaks_tls(host: str, port: int) -> bool:
    # Do not verify the certificate, because the test connection sends no data.
    unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    with anyio.move_on_after(_PROBE_TIMEOUT), suppress(OSError):
        _, writer = await asyncio.open_connection(host, port, ssl=unverified)
        writer.transport.abort()
        with suppress(OSError):
            # Wait until the socket is closed, because the event loop must not end before.
            await writer.wait_closed()
        return True
    return False


async def _speaks_plainly(host: str, port: int) -> bool:
    options: dict[str, Any] = {
        "directConnection": True,
        "serverSelectionTimeoutMS": 1000 * _PROBE_TIMEOUT,
    }
    # Connect without the user and password, because secrets must not be sent without TLS.
    client: Any = pymongo.AsyncMongoClient(host, port, **options)
    try:
        with pymongo.timeout(_PROBE_TIMEOUT):
            await client.admin.command("hello")
    except PyMongoError:
        return False
    else:
        return True
    finally:
        await client.close()


def lacking(
    status: Mapping[str, Any], *, database: str, collections: Iterable[str], actions: frozenset[str]
) -> list[str]:
    """Return those *actions* which the MongoDB user may not do on at least one collection.

    *status* is the reply to `connectionStatus`. The result is empty if the reply contains no user.
    """
    auth_info = status.get("authInfo", {})
    privileges = auth_info.get("authenticatedUserPrivileges")
    if not auth_info.get("authenticatedUsers") or privileges is None:
        return []
    allowed_actions = set(actions)
    for collection in collections:
        allowed_actions &= _allowed_actions(privileges, database, collection)
    return sorted(actions - allowed_actions)


def _allowed_actions(
    privileges: Iterable[Mapping[str, Any]], database: str, collection: str
) -> set[str]:
    allowed_actions: set[str] = set()
    for privilege in privileges:
        resource = privilege["resource"]
        is_global = resource.get("anyResource", False)
        is_covered = resource.get("db") in ("", database) and resource.get("collection") in (
            "",
            collection,
        )
        if is_global or is_covered:
            allowed_actions.update(privilege["actions"])
    return allowed_actions


def lacking_sentence(actions: Iterable[str], database: str) -> str:
    """Return the message for a user who lacks privileges."""
    lacking = f"the MongoDB user lacks these privileges in the database {database}"
    return f"{lacking}: {', '.join(actions)} ({_ROLES})"


def refused_sentence(error: OperationFailure) -> str:
    """Return the message for an operation that the server refused, without the operation's data."""
    message = str(error.details.get("errmsg", error) if error.details else error)
    if match := _NOT_AUTHORIZED.match(message):
        database, command, collection = match.groups()
        action = _OF_COMMANDS.get(command, command)
        namespace = f"{database}.{collection}" if collection else database
        return f"the MongoDB user lacks the privilege {action} on {namespace} ({_ROLES})"
    if "requires authentication" in message:
        return "MongoDB needs a user: write mongodb://user:password@host/database"
    # Cut the message at `{`, where the server appends the command and its documents.
    message = message.partition("{")[0].rstrip(" .:")[:200]
    return (
        f"MongoDB denies access: {message}: check the user, the password and authSource in the "
        "ledger's URL"
    )
