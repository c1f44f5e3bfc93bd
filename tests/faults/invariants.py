"""Invariants of a spider's documents, which hold at any time and after any fault."""

from collections.abc import Iterable, Mapping
from typing import Any

from crawlcw.errors import Reason
from crawlcw.model.hosts import HostLease
from crawlcw.model.task import Lease, Status

Document = dict[str, Any]
#: collection -> id -> document. An id that is a document itself is replaced by its text.
Documents = Mapping[str, Mapping[Any, Document]]

MAX_RETRY = 3
MAX_LOST = 3


def assert_sound(found: Documents) -> None:
    """Assert the invariants that hold for every ledger at any time."""
    urls = [task["url"] for task in found["books"].values()]
    assert len(urls) == len(set(urls))
    for task in found["books"].values():
        _assert_sound_task(task, found["books.items"])
    for host in found["books.hosts"].values():
        assert host["owner"] is None or host["ready_at"] is not None
        assert host.get("released", 0) <= host["epoch"]


def _assert_sound_task(task: Document, blob: Mapping[Any, Document]) -> None:
    status = Status(task["status"])
    held = status is Status.PROCESSING
    assert (task["lock"] is not None) == held
    assert (task["lock_time"] is not None) == held
    assert "due" in task or status in (Status.FINISHED, Status.IGNORED)
    assert "due" not in task or status is not Status.IGNORED
    assert status is not Status.IGNORED or Reason(task["reason"])
    assert 0 <= task["settled"] <= task["fence"]
    assert 0 <= task["retry"] <= MAX_RETRY
    assert 0 <= task["lost"] <= MAX_LOST
    for number, item in enumerate(task.get("items", ())):
        if item is None:
            place = {"task": task["_id"], "fence": task["settled"], "n": number}
            assert str(place) in blob


def assert_known(found: Documents, tasks: Iterable[Lease], hosts: Iterable[HostLease]) -> None:
    """Assert that each locked task or host belongs to one of the leases."""
    held = {
        (task["_id"], task["lock"], task["fence"])
        for task in found["books"].values()
        if task["lock"] is not None
    }
    owned = {
        (host["_id"], host["owner"], host["epoch"])
        for host in found["books.hosts"].values()
        if host["owner"] is not None
    }
    assert held <= {(lease.task.id, lease.token, lease.fence) for lease in tasks}
    assert owned <= {(lease.host.name, lease.token, lease.epoch) for lease in hosts}


def assert_later(before: Documents, after: Documents) -> None:
    """Assert that no fence or epoch has decreased, and no document is missing."""
    for task_id, task in before["books"].items():
        now = after["books"][task_id]
        assert now["fence"] >= task["fence"]
        assert now["settled"] >= task["settled"]
    for name, host in before["books.hosts"].items():
        assert after["books.hosts"][name]["epoch"] >= host["epoch"]
