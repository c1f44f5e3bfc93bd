"""State of a host, and the reason why it waits, in one short phrase."""

from datetime import datetime, timedelta

from crawlcw.ledger.protocol import Counts
from crawlcw.model.durations import format_duration
from crawlcw.model.hosts import Host
from crawlcw.model.task import WAITING, Status


def why(host: Host, *, unfinished: bool, now: datetime, paused: bool = False) -> str:
    """Return the first reason that applies.

    *unfinished*: the host has tasks to do; *paused*: its crawl is paused.
    """
    owner = owner_of(host, now=now)
    rest = (host.not_before or now) - now
    wait = (host.ready_at or now) - now
    given_up = given_up_for(host)
    if given_up is not None and (host.given_up is not None or not unfinished):
        return f"given up: {given_up}"
    if not unfinished:
        return "done"
    if paused:
        return "the crawl is paused"
    if owner is not None:
        return f"owned by {owner}"
    if rest > timedelta(0) and host.failures:
        failures = "1 failure" if host.failures == 1 else f"{host.failures:,} failures"
        return f"resting for {format_duration(rest)}: {failures}"
    if rest > timedelta(0):
        return f"waiting its turn in {format_duration(rest)}"
    if wait > timedelta(0):
        return f"next task due in {format_duration(wait)}"
    return "ready"


def given_up_for(host: Host) -> str | None:
    """Return the reason why the host, or some of its origins, were given up; None: not given up."""
    if host.given_up is not None:
        return str(host.given_up)
    lost = [f"{origin}: {reason}" for origin, reason in host.lost_origins.items()]
    return ", ".join(lost) or None


def owner_of(host: Host, *, now: datetime) -> str | None:
    """Return the name of the worker that holds the host, if its lease has not run out."""
    if host.owner is None or host.ready_at is None or host.ready_at <= now:
        return None
    return host.owner.rpartition(":")[0]


def waiting_of(counts: Counts) -> int:
    """Return the number of waiting tasks."""
    return sum(counts[status] for status in WAITING)


def unfinished_of(counts: Counts) -> int:
    """Return the number of tasks that wait or are in flight."""
    return waiting_of(counts) + counts[Status.PROCESSING]
