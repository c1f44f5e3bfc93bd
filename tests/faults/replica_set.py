"""A replica set of three mongods, whose members are killed, frozen and cut off."""

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pymongo
from pymongo.errors import OperationFailure, PyMongoError

from tests.faults.switchboard import CLIENTS, Switchboard, connected
from tests.support.crawl_process import wait_until
from tests.support.mongod_server import Server, found

MEMBERS = 3
#: Time limits between members; MongoDB's defaults are ten seconds each.
SETTINGS = {
    "electionTimeoutMillis": 1_500,
    "heartbeatTimeoutSecs": 2,
    "heartbeatIntervalMillis": 300,
}
_STATES = {1, 2}  # primary, secondary


class ReplicaSet:
    """The replica set; members and clients use the switchboard's addresses."""

    def __init__(self, servers: list[Server], network: Switchboard) -> None:
        self.servers = servers
        self.network = network
        # Not through the switchboard: a test sees the members behind a cut network too.
        self._clients: list[pymongo.MongoClient[Any]] = [
            pymongo.MongoClient(
                "127.0.0.1",
                server.port,
                directConnection=True,
                serverSelectionTimeoutMS=500,
                serverMonitoringMode="poll",
            )
            for server in servers
        ]

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def uri(self, database: str) -> str:
        """Return the URL of a ledger on the set; operations time out after a second."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.network.ports)
        return f"mongodb://{hosts}/{database}?replicaSet=tests&timeoutMS=1000"

    def uri_of(self, member: int, database: str) -> str:
        """Return the URL of a ledger on one member, primary or not."""
        port = self.network.ports[member]
        return f"mongodb://127.0.0.1:{port}/{database}?directConnection=true&timeoutMS=1000"

    def initiate(self) -> None:
        members = [
            {"_id": number, "host": f"127.0.0.1:{port}"}
            for number, port in enumerate(self.network.ports)
        ]
        config = {"_id": "tests", "members": members, "settings": SETTINGS}
        wait_until(lambda: all(self._ask(n, "ping") for n in range(MEMBERS)), within=60)
        self.command(0, {"replSetInitiate": config})
        self.await_whole()

    def command(self, member: int, command: dict[str, Any]) -> dict[str, Any]:
        """Run a command on one member."""
        with pymongo.timeout(20):
            answer: dict[str, Any] = self._clients[member].admin.command(command)
            return answer

    def _ask(self, member: int, command: str) -> dict[str, Any]:
        """Return a member's answer, or an empty one if it does not answer."""
        try:
            with pymongo.timeout(0.5):
                answer: dict[str, Any] = self._clients[member].admin.command(command)
                return answer
        except PyMongoError:
            return {}

    def primaries(self, among: Collection[int] = range(MEMBERS)) -> list[int]:
        """Return the members that take themselves for the primary."""
        return [n for n in among if self._ask(n, "hello").get("isWritablePrimary")]

    def primary(self) -> int:
        """Wait for a primary and return it."""
        wait_until(lambda: len(self.primaries()) == 1, within=60)
        (primary,) = self.primaries()
        return primary

    def others(self, member: int) -> list[int]:
        return [number for number in range(MEMBERS) if number != member]

    def await_other_primary(self, member: int) -> float:
        """Wait until the others have elected a primary; return the seconds that it took."""
        began = time.monotonic()
        wait_until(lambda: self.primaries(self.others(member)), within=60)
        return time.monotonic() - began

    def await_whole(self) -> None:
        """Wait until there is one primary, and the others have all of its writes."""
        wait_until(self._is_whole, within=60)

    def _is_whole(self) -> bool:
        primaries = self.primaries()
        if len(primaries) != 1:
            return False
        members = self._ask(primaries[0], "replSetGetStatus").get("members", [])
        states = {each["state"] for each in members}
        written = {each["optime"]["ts"] for each in members if "optime" in each}
        return len(members) == MEMBERS and states == _STATES and len(written) == 1

    def step_down(self, member: int) -> None:
        self.command(member, {"replSetStepDown": 10, "force": True})

    def mend(self) -> None:
        """Undo all faults, and wait until the set is whole."""
        self.network.mend()
        for server in self.servers:
            if not server.is_running():
                server.start()
            server.thaw()
        self.await_whole()

    def kill(self, member: int) -> None:
        self.servers[member].kill()
        self.network.hang_up(member)

    def elect_other(self, member: int) -> None:
        """Make the others elect a primary now; only the member with the last write can win."""

        def elected() -> bool:
            for other in self.others(member):
                with suppress(OperationFailure):
                    self.command(other, {"replSetStepUp": 1})
                    return True
            return False

        wait_until(elected, within=30)
        self.await_other_primary(member)

    def let_elections_wait(self, *, milliseconds: int) -> None:
        """Set the election timeout: for this time, no other member replaces a lost primary."""
        primary = self.primary()
        config = self.command(primary, {"replSetGetConfig": 1})["config"]
        config["version"] += 1
        config["settings"]["electionTimeoutMillis"] = milliseconds
        self.command(primary, {"replSetReconfig": config})
        self.await_whole()

    def isolate(self, member: int, *, clients: bool, members: bool) -> None:
        """Cut a member off from the other members, from the clients, or from both."""
        away = self.others(member) if members else []
        self.network.cut(member, [*away, CLIENTS] if clients else away)


@contextmanager
def replica_set(folder: Path) -> Iterator[ReplicaSet]:
    """Yield three members with their data in *folder*."""
    binary = found()
    servers = [Server(binary, folder / f"member{number}") for number in range(MEMBERS)]
    try:
        for server in servers:
            server.start()
        pids = [server.pid for server in servers]
        assert len(pids) == MEMBERS
        with connected(
            [server.port for server in servers], lambda: [server.pid for server in servers]
        ) as network:
            members = ReplicaSet(servers, network)
            try:
                members.initiate()
                yield members
            finally:
                members.close()
    finally:
        for server in servers:
            server.kill()
