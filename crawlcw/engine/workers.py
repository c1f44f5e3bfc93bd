"""Workers on a ledger: name this process as a worker, and end the leases of dead workers."""

import logging
import os
import re
import resource
import secrets
import socket
import sys
from datetime import datetime, timedelta
from hashlib import blake2b
from pathlib import Path

from crawlcw.ledger.protocol import Ledger, Worker
from crawlcw.model.sanitize import printable

logger = logging.getLogger(__name__)

#: A worker without a heartbeat for this time counts as dead; its leases have expired long before.
_LONGEST_SILENCE = timedelta(days=1)
_STATM = Path("/proc/self/statm")


def this_worker(*, now: datetime) -> Worker:
    """Return this process as a worker, with a unique name."""
    pid = os.getpid()
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:40]
    return Worker(
        name=f"{host}-{pid}-{secrets.token_hex(4)}",
        machine=_machine_id(),
        pid=pid,
        birth=_process_start(pid) or "",
        started=now,
        heartbeat=now,
        host=socket.gethostname(),
    )


def is_dead(worker: Worker) -> bool:
    """Return whether *worker* ran on this machine and its process no longer exists."""
    return worker.machine == _machine_id() and _process_start(worker.pid) != worker.birth


def is_gone(worker: Worker, *, now: datetime) -> bool:
    """Return whether the last heartbeat of *worker* is more than a day old."""
    return now - worker.heartbeat > _LONGEST_SILENCE


def _machine_id() -> str:
    """Return a hash of the host name, the boot ID of this machine, and the PID namespace."""
    parts = [socket.gethostname()]
    try:
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        # Two containers on one machine may use the same process ID for different processes.
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    except OSError:
        pass  # only Linux has files in /proc
    return blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()


def _process_start(pid: int) -> str | None:
    """Return when process *pid* started; "" if unknown, None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "" if _exists(pid) else None
    # Count fields after the last ")", because the process name in field 2 may contain spaces and
    # brackets. Field 3 is the state, and field 22 is the start time.
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


async def reap_dead_workers(ledger: Ledger) -> int:
    """End the leases of dead workers; return the number of tasks whose leases ended."""
    ended_leases = 0
    for worker in await dead_workers(ledger):
        ended_leases += await ledger.workers.leave(worker.name)
        logger.info(
            "released the leases of the dead worker %s",
            printable(worker.name),
            extra={"event": "worker_dead", "worker": worker.name},
        )
    return ended_leases


async def dead_workers(ledger: Ledger) -> list[Worker]:
    """Return the workers whose process is dead, and the workers without a heartbeat for a day."""
    now = ledger.now()
    workers = await ledger.workers.all()
    return [worker for worker in workers if is_dead(worker) or is_gone(worker, now=now)]


def resident_memory() -> int:
    """Return the resident memory of this process in bytes."""
    try:
        pages = int(_STATM.read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        # Return the largest memory use so far, because only Linux reports the present use.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return pages * resource.getpagesize()
