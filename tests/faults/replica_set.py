"""Three mongods that are one replica set, whose members are killed, frozen and cut off."""

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
#: How long members wait for one another; MongoDB's own default is ten seconds for each.
SETTINGS = {
    "electionTimeoutMillis": 1_500,
    "heartbeatTimeoutSecs": 2,
    "heartbeatIntervalMillis": 300,
}
_STATES = {1, 2}  # primary, secondary


class ReplicaSet:
    """The members know each other, and clients know them, by the switchboard's addresses."""

    def __init__(self, servers: list[Server], network: Switchboard) -> None:
        self.servers = servers
        self.network = network
        # Past the switchboard: a test sees what is, and not what its network shows.
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
        """A ledger on the set; its operations time out after a second."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.network.ports)
        return f"mongodb://{hosts}/{database}?replicaSet=tests&timeoutMS=1000"

    def uri_of(self, member: int, database: str) -> str:
        """A ledger on one member, whatever the others say."""
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
        """Let one member do something."""
        with pymongo.timeout(20):
            answer: dict[str, Any] = self._clients[member].admin.command(command)
            return answer

    def _ask(self, member: int, command: str) -> dict[str, Any]:
        """Return a member's answer, or nothing where it gives none."""
        try:
            with pymongo.timeout(0.5):
                answer: dict[str, Any] = self._clients[member].admin.command(command)
                return answer
        except PyMongoError:
            return {}

    def primaries(self, among: Collection[int] = range(MEMBERS)) -> list[int]:
        """Return who holds itself for the primary."""
        return [n for n in among if self._ask(n, "hello").get("isWritablePrimary")]

    def primary(self) -> int:
        """Return the member that is the primary, and wait for one."""
        wait_until(lambda: len(self.primaries()) == 1, within=60)
        (primary,) = self.primaries()
        return primary

    def others(self, member: int) -> list[int]:
        return [number for number in range(MEMBERS) if number != member]

    def await_other_primary(self, member: int) -> float:
        """Wait until the others have elected one of theirs; return how long that took."""
        began = time.monotonic()
        wait_until(lambda: self.primaries(self.others(member)), within=60)
        return time.monotonic() - began

    def await_whole(self) -> None:
        """Wait until there is one primary, and the others have all that it has."""
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
        """Let everybody be there again, whatever was done to them."""
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
        """Let the others elect one of theirs now; only who knows most can be."""

        def elected() -> bool:
            for other in self.others(member):
                with suppress(OperationFailure):
                    self.command(other, {"replSetStepUp": 1})
                    return True
            return False

        wait_until(elected, within=30)
        self.await_other_primary(member)

    def let_elections_wait(self, *, milliseconds: int) -> None:
        """Let a primary be, and elect no other, for so long after it is cut off or gone."""
        primary = self.primary()
        config = self.command(primary, {"replSetGetConfig": 1})["config"]
        config["version"] += 1
        config["settings"]["electionTimeoutMillis"] = milliseconds
        self.command(primary, {"replSetReconfig": config})
        self.await_whole()

    def isolate(self, member: int, *, clients: bool, members: bool) -> None:
        """Cut a member off from its like, from the clients, or from both."""
        away = self.others(member) if members else []
        self.network.cut(member, [*away, CLIENTS] if clients else away)


@contextmanager
def replica_set(folder: Path) -> Iterator[ReplicaSet]:
    """Yield three members that have their data in *folder*."""
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
