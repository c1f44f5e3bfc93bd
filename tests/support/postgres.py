"""A real PostgreSQL for tests and benchmarks: on a free port, in a folder of its own."""

import os
import pwd
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support import needed
from tests.support.mongod import free_port

#: Debian's folder of PostgreSQL's programs, which is not on PATH.
_DEBIAN = "/usr/lib/postgresql/*/bin"
_PACKAGE = "postgresql"


@contextmanager
def running(folder: Path, *, fsync: bool = True) -> Iterator[Callable[[str], str]]:
    """Yield a function that creates a database and returns its URL."""
    with server(folder, fsync=fsync) as own:
        yield own.database


@contextmanager
def server(folder: Path, *, fsync: bool = True) -> Iterator["Server"]:
    """Yield a running server, which ends with the block."""
    own = Server(folder, fsync=fsync)
    own.start()
    try:
        yield own
    finally:
        # Its files are deleted, so there is no need to write them out.
        own.stop("immediate")


class Server:
    """A private server of a test, run by the user `postgres` or by that of the test."""

    def __init__(self, folder: Path, *, fsync: bool) -> None:
        folder.mkdir()
        self.user = "postgres" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
        # PostgreSQL refuses to run as root, and the parent folder belongs to root.
        runuser = shutil.which("runuser", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        self._as_user = [str(runuser), "-u", self.user, "--"] if os.getuid() == 0 else []
        shutil.chown(folder, self.user)
        folder.parent.chmod(0o711)
        self._folder, self._data, self.port = folder, folder / "data", free_port()
        self._options = f"-p {self.port} -k {folder} -c listen_addresses=127.0.0.1"
        self._options += f" -c fsync={'on' if fsync else 'off'} -c synchronous_commit=on"
        initdb = [*self._as_user, _binary("initdb"), "-D", str(self._data), "-U", self.user]
        self._call([*initdb, "-A", "trust", "-E", "UTF8", "--no-sync"])

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        log = ["-l", str(self._folder / "log"), "-o", self._options]
        self._call([*self._control(), *log, "start"])

    def stop(self, mode: str = "fast") -> None:
        """Stop the server: `fast` ends the connections, `immediate` is a crash."""
        self._call([*self._control(), "-m", mode, "stop"])

    def database(self, name: str) -> str:
        """Create a database; return its URL."""
        at = ["-h", "127.0.0.1", "-p", str(self.port), "-U", self.user]
        self._call([_binary("createdb"), *at, name])
        return self.url(name)

    def url(self, name: str) -> str:
        """Return the URL of a database."""
        return f"postgresql://{self.user}@127.0.0.1:{self.port}/{name}"

    @property
    def pid(self) -> int:
        """Return the id of the server's main process."""
        return int((self._data / "postmaster.pid").read_text().split()[0])

    def cpu(self) -> float:
        """Return the seconds of CPU of all its processes, also of those that have ended."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        ticks = 0
        for pid in (self.pid, *map(int, children)):
            with suppress(FileNotFoundError):
                # proc(5): the name in parentheses may have spaces; utime is the 14th field.
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += sum(map(int, fields[11 : 15 if pid == self.pid else 13]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def _control(self) -> list[str]:
        return [*self._as_user, _binary("pg_ctl"), "-D", str(self._data), "-w"]

    def _call(self, command: list[str]) -> None:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/")


def version() -> str:
    """Return the version of the installed server."""
    told = subprocess.run([_binary("postgres"), "--version"], check=True, capture_output=True)
    return told.stdout.decode().strip()


def _binary(name: str) -> str:
    # Not a link to it on PATH, whose folder the server's user may not enter.
    of_debian = sorted(Path("/").glob(f"{_DEBIAN.lstrip('/')}/{name}"))
    found = str(of_debian[-1]) if of_debian else shutil.which(name)
    return found or needed.lack(f"{name} is missing: apt-get install {_PACKAGE}")
