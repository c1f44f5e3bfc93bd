"""Journaling MongoDB with one member or three, for one benchmark."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pymongo
from pymongo.errors import PyMongoError

from tests.support import mongod_server


@contextmanager
def running(folder: Path, *, members: int) -> Iterator[str]:
    """Yield the URI of a replica set with its data in *folder*."""
    with ExitStack() as stack:
        found = mongod_server.found()
        servers = []
        for number in range(members):
            server = mongod_server.Server(found, folder / f"member{number}")
            server.start()
            stack.callback(server.kill)
            servers.append(server)
        if members == 1:
            servers[0].await_primary()
            yield f"mongodb://127.0.0.1:{servers[0].port}/?directConnection=true"
            return
        names = [f"127.0.0.1:{server.port}" for server in servers]
        _initiate(servers[0].port, names)
        yield f"mongodb://{','.join(names)}/?replicaSet=tests"


def version(uri: str) -> str:
    with pymongo.MongoClient(uri) as client:
        return str(client.server_info()["version"])


def drop(uri: str, database: str) -> None:
    with pymongo.MongoClient(uri) as client:
        client.drop_database(database)


def _initiate(port: int, names: list[str]) -> None:
    """Make one set of all members; wait until the first is primary and the others secondary."""
    # A higher priority makes the first member primary, and keeps it.
    members = [
        {"_id": place, "host": name, "priority": 2 if place == 0 else 1}
        for place, name in enumerate(names)
    ]
    deadline = time.monotonic() + 60
    asked = False
    with pymongo.MongoClient("127.0.0.1", port, directConnection=True) as client:
        while time.monotonic() < deadline:
            try:
                if not asked:
                    set_ = {"_id": "tests", "members": members}
                    client.admin.command("replSetInitiate", set_)
                    asked = True
                states = client.admin.command("replSetGetStatus")["members"]
                if sorted(state["state"] for state in states) == [1, *[2] * (len(names) - 1)]:
                    return
            except PyMongoError:
                # The server is still starting.
                pass
            time.sleep(0.1)
    raise SystemExit("the replica set has no primary after 60 s")
