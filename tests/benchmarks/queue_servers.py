"""Redis and PostgreSQL of a benchmark: on free ports, in its own folder."""

import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.mongod import free_port

_START_WITHIN = 30.0
#: Debian's folder of PostgreSQL's programs, which is not on PATH.
_DEBIAN = "/usr/lib/postgresql/15/bin"


def redis_version() -> str:
    return _output([_binary("redis-server", "redis-server"), "--version"])


def postgres_version() -> str:
    return _output([_binary("postgres", "postgresql-15"), "--version"])


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


@contextmanager
def postgres(folder: Path) -> Iterator[Callable[[str], str]]:
    """Yield a function that creates a database and returns its URL.

    fsync and synchronous_commit are on.
    """
    folder.mkdir()
    user = "postgres" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
    # PostgreSQL refuses to run as root, and the parent folders belong to root.
    as_user = ["runuser", "-u", user, "--"] if os.getuid() == 0 else []
    shutil.chown(folder, user)
    folder.parent.chmod(0o711)
    data, port = folder / "data", free_port()
    initdb = [*as_user, _binary("initdb", "postgresql-15"), "-D", str(data), "-U", user]
    subprocess.run(
        [*initdb, "-A", "trust", "-E", "UTF8"], check=True, stdout=subprocess.DEVNULL, cwd="/"
    )
    command = [*as_user, _binary("pg_ctl", "postgresql-15"), "-D", str(data), "-w"]
    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1"
    options += " -c fsync=on -c synchronous_commit=on"
    start = [*command, "-l", str(folder / "log"), "-o", options, "start"]
    subprocess.run(start, check=True, stdout=subprocess.DEVNULL, cwd="/")

    def database(name: str) -> str:
        at = ["-h", "127.0.0.1", "-p", str(port), "-U", user]
        subprocess.run([_binary("createdb", "postgresql-15"), *at, name], check=True, cwd="/")
        return f"postgresql://{user}@127.0.0.1:{port}/{name}"

    try:
        yield database
    finally:
        stop = [*command, "-m", "fast", "stop"]
        subprocess.run(stop, check=True, stdout=subprocess.DEVNULL, cwd="/")


def _binary(name: str, package: str) -> str:
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:{_DEBIAN}")
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
