"""A private mongod of a test, which can be killed, frozen and restarted."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from tests.support import mongod, needed

ServerT = TypeVar("ServerT", bound="Server")


def found() -> mongod.Found:
    """Return the mongod that a test may start."""
    with pytest.MonkeyPatch.context() as patch:
        # A running server belongs to others and must not be killed.
        patch.delenv(mongod.VARIABLE, raising=False)
        binary = mongod.find()
    if binary is None:
        needed.lack(mongod.MISSING)
    return binary


class Server:
    """A mongod on one port and one folder over any number of starts, in a replica set."""

    def __init__(self, found: mongod.Found, folder: Path, *, options: tuple[str, ...] = ()) -> None:
        assert found.binary is not None
        found.binary.chmod(found.binary.stat().st_mode | 0o100)
        folder.mkdir()
        self.log = folder / "mongod.log"
        self.port = mongod.free_port()
        self._environment = os.environ | found.environment
        self._process: subprocess.Popen[bytes] | None = None
        self.command = [str(found.binary), "--bind_ip", "127.0.0.1", "--port", str(self.port)]
        self.command += ["--dbpath", str(folder), "--logpath", str(self.log), "--logappend"]
        self.command += ["--nounixsocket", "--replSet", "tests", "--oplogSize", "64"]
        self.command += ["--wiredTigerCacheSizeGB", "0.25", *options]

    @property
    def uri(self) -> str:
        """Return the URL of a ledger on the server; operations time out after a second."""
        return f"{self.patient_uri}&timeoutMS=1000"

    @property
    def patient_uri(self) -> str:
        """Return the same with the default time limits."""
        return f"mongodb://127.0.0.1:{self.port}/crawl?directConnection=true"

    @property
    def pid(self) -> int:
        return self._running.pid

    def start(self) -> None:
        self._process = subprocess.Popen(self.command, env=self._environment)

    def await_primary(self) -> None:
        """Wait until the server is the primary of its own replica set."""
        mongod._await_primary(self._running, self.port, self.log)

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """End the server by SIGKILL, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def freeze(self) -> None:
        self._running.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._running.send_signal(signal.SIGCONT)

    @property
    def _running(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None, "the server was not started"
        return self._process


@contextmanager
def started(server: ServerT) -> Iterator[ServerT]:
    """Run *server* within the block, which begins when it accepts writes."""
    server.start()
    try:
        server.await_primary()
        yield server
    finally:
        server.kill()


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """Yield a private server with its data in a new *folder*."""
    with started(Server(found(), folder)) as server:
        yield server
