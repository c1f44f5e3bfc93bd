"""Which process this is, and whether another one on this machine still lives.

After a `kill -9` the dead process's leases would block its tasks until they run
out. On the machine it ran on, anybody can see that it is gone.
"""

import os
import re
import secrets
import socket
from datetime import datetime, timedelta
from hashlib import blake2b
from pathlib import Path

from crawlcw.ledger.protocol import Worker

#: Longer than any lease: what it held has run out by then.
_LONGEST_SILENCE = timedelta(days=1)


def this_worker(*, now: datetime) -> Worker:
    """Return this process as a worker, with a name that no other one has."""
    pid = os.getpid()
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:40]
    return Worker(
        name=f"{host}-{pid}-{secrets.token_hex(4)}",
        machine=_machine(),
        pid=pid,
        birth=_birth(pid) or "",
        started=now,
        host=socket.gethostname(),
    )


def is_dead(worker: Worker) -> bool:
    """Return whether *worker* certainly is dead: it ran on this machine and its process is gone."""
    return worker.machine == _machine() and _birth(worker.pid) != worker.birth


def is_gone(worker: Worker, *, now: datetime) -> bool:
    """Return whether *worker*, of any machine, has been silent too long to be counted on."""
    return worker.heartbeat is not None and now - worker.heartbeat > _LONGEST_SILENCE


def _machine() -> str:
    """Return a name for this machine since its last boot, as this process numbers processes."""
    parts = [socket.gethostname()]
    try:
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        # Two containers on one machine number their processes apart.
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    except OSError:
        pass  # no Linux: the host name has to do
    return blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()


def _birth(pid: int) -> str | None:
    """Return when process *pid* was started, in some unit; "" if unknown; None if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "" if not Path("/proc/self").exists() and _exists(pid) else None
    # Behind the name, which is in parentheses and may hold anything: field 22
    # is the start time, field 3 the state; a zombie is dead.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
