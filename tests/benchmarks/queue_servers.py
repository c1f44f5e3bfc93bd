"""Redis of a benchmark: on a free port, in its own folder."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.mongod import free_port

_START_WITHIN = 30.0


def redis_version() -> str:
    return _output([_binary("redis-server", "redis-server"), "--version"])


@contextmanager
def redis(folder: Path, *, fsync: str) -> Iterator[str]:
    """Yield the URL of an empty Redis with a log of all writes; *fsync* is its setting."""
    folder.mkdir()
    port = free_port()
    command = [_binary("redis-server", "redis-server"), "--port", str(port), "--dir", str(folder)]
    command += ["--bind", "127.0.0.1", "--save", "", "--appendonly", "yes"]
    command += ["--appendfsync", fsync, "--logfile", str(folder / "log")]
    server = subprocess.Popen(command)
    try:
        _await(server, lambda: _listens(port))
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.terminate()
        server.wait()


def _binary(name: str, package: str) -> str:
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    assert found, f"{name} is missing: apt-get install {package}"
    return found


def _output(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _await(server: "subprocess.Popen[bytes]", ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _START_WITHIN
    while not ready():
        assert server.poll() is None, "the server has ended"
        assert time.monotonic() < deadline, "the server does not start"
        time.sleep(0.02)
