"""Lease, renew, save and release the hosts of this process, many hosts at a time.

A host is released in these cases:
- no task of the host is due or in progress;
- the host must rest for a long time;
- the crawl gives the host up;
- the host's time slice is over and other hosts wait;
- other workers have no host to work on.
"""

import logging
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from functools import partial

import anyio.abc

from crawlcw.api.settings import Settings
from crawlcw.crawl.host_queues import CLAIM_AHEAD_S
from crawlcw.crawl.hosts import Frontier, FrontierHost, Phase
from crawlcw.engine.session import WorkerSession
from crawlcw.model.hosts import FailureCalls, HostLease
from crawlcw.model.sanitize import printable

logger = logging.getLogger(__name__)

#: Maximum number of leased hosts for each fetcher; most hosts only wait for their delay to end.
_HOSTS_PER_FETCHER = 4
#: If other hosts wait, a host is released after `SLICE_PAGES` responses or `SLICE_SECONDS`.
SLICE_PAGES = 20
SLICE_SECONDS = 30.0
#: Seconds between two polls for ready hosts, and between two polls for waiting workers.
_LEASE_INTERVAL_S = 0.1
_SHARE_INTERVAL_S = 1.0
#: Idle hosts are released together after these seconds, or when `_IDLE_BATCH_SIZE` are idle.
_IDLE_LINGER_S = 0.3
_IDLE_BATCH_SIZE = 32
#: Number of hosts that one sweep checks for a lost wake-up.
_SWEEP_SIZE = 25


class HostLeaser:
    """Leases, renews and releases the hosts of one process."""

    def __init__(self, session: WorkerSession, frontier: Frontier, settings: Settings) -> None:
        """Lease hosts for the process of *session*."""
        self._session = session
        self._ledger = session.ledger
        self._frontier = frontier
        self._lease_length = settings.lease
        self._capacity = _HOSTS_PER_FETCHER * settings.concurrency
        self.next_lease_at = 0.0  #: when to poll next for ready hosts
        self._no_lease_until = 0.0  #: no host is leased before this time
        self._next_share_at = 0.0
        self._idle_since: float | None = None
        self._sweep_cursor = ""

    def resize(self, concurrency: int) -> None:
        """Lease as many hosts as *concurrency* fetchers need."""
        self._capacity = _HOSTS_PER_FETCHER * concurrency

    def wake(self) -> None:
        """Poll soon for hosts that are ready."""
        self.next_lease_at = min(self.next_lease_at, time.monotonic() + _LEASE_INTERVAL_S)

    def next_poll(self, *, idle: bool) -> float:
        """Return when to call `poll` next; *idle* is true if some fetchers have no work."""
        if len(self._frontier.leased) >= self._capacity:
            next_poll = max(self._next_share_at, time.monotonic() + _LEASE_INTERVAL_S)
        else:
            next_poll = self._next_lease_poll(often=idle)
        return (
            next_poll
            if self._idle_since is None
            else min(next_poll, self._idle_since + _IDLE_LINGER_S)
        )

    def _next_lease_poll(self, *, often: bool) -> float:
        next_poll_at = self.next_lease_at if often else self.next_lease_at + _SHARE_INTERVAL_S
        return max(next_poll_at, self._no_lease_until)

    async def poll(self, background: anyio.abc.TaskGroup, *, idle: bool) -> bool:
        """Save, release and lease hosts if it is time; return whether any host was leased."""
        frontier = self._frontier
        # Save a host's state before another process can lease the host.
        if frontier.pending.unsaved:
            await self._save(frontier.pending.take_unsaved())
        for host in frontier.pending.take_to_ignore() if frontier.pending.to_ignore else ():
            host.work(background, partial(self._give_up, host))
        await self._release_idle(background)
        has_leased = await self._lease_hosts(idle=idle)
        if time.monotonic() >= self._next_share_at:
            self._serve_again()
            await self._share_hosts()
        return has_leased

    async def leave_all(self, background: anyio.abc.TaskGroup) -> None:
        """Start no more requests; release each host when its last request has ended."""
        await self._save(self._frontier.pending.take_unsaved())
        # With *left_at* at minus infinity, `_serve_again` reopens these hosts when a pause ends.
        self._start_leaving(self._staying_hosts(), left_at=float("-inf"))
        await self._release_idle(background)

    async def _lease_hosts(self, *, idle: bool) -> bool:
        """Lease hosts that are ready; return whether any host was ready.

        If this process has many hosts and no *idle* fetcher, it queries the ledger for hosts less
        often, because other workers may need the hosts.
        """
        now = time.monotonic()
        free_capacity = self._capacity - len(self._frontier.leased)
        is_frequent = free_capacity >= self._capacity // 2 or idle
        if free_capacity <= 0 or now < self._next_lease_poll(often=is_frequent):
            return False
        self.next_lease_at = now + _LEASE_INTERVAL_S
        leases = await self._ledger.host_leases.lease(
            worker=self._session.worker, limit=free_capacity, lease=self._lease_length
        )
        # If a host's previous owner died, the slots that the owner lent may still be in use.
        workers = [] if all(lease.clean for lease in leases) else await self._ledger.workers.all()
        loans = {
            worker.name: worker.loan
            for worker in workers
            if worker.name != self._session.worker and worker.borrows(self._ledger.now())
        }
        for lease in leases:
            # If `lease` was called again after a lost reply, the lease began at the first call.
            remaining = lease.expires - self._ledger.now()
            elapsed_s = max(0.0, (self._lease_length - remaining).total_seconds())
            host = self._frontier.add_leased(lease, sent_at=time.monotonic() - elapsed_s)
            for borrower, loan in loans.items():
                if loan is not None and loan.host == host.name:
                    host.loans[borrower] = loan
            host.pace()
        if leases:
            self._session.set_idle(False)
        return bool(leases)

    def leases(self) -> list[HostLease]:
        """Return the host leases of this process; the watchdog's thread may call this method."""
        return [host.lease for host in [*self._frontier.leased.values()] if host.lease is not None]

    async def renew(self) -> None:
        """Renew all host leases after the task leases, and save the hosts' states."""
        self._frontier.pending.take_unsaved()
        await self._save(self._frontier.leased.values())
        if not (leases := self.leases()):
            return
        sent_at = time.monotonic()
        # Do not retry a failed renewal, because after an outage the leases may be outdated.
        lost_names = await self._session.raw_ledger.host_leases.renew(
            leases, lease=self._lease_length
        )
        for lease in leases:
            host = self._frontier.leased.get(lease.host.name)
            if host is not None and host.name not in lost_names:
                host.extend_lease(sent_at=sent_at)
            elif host is not None and _is_same(host.lease, lease):
                self._lose_host(host.name)
        # Mark the busy hosts, so that the coordinator reads their new due tasks.
        self._frontier.poll(*self._session.leases.count_by_host)
        # Wake the coordinator, because a host near its lease's end may now get requests again.
        self._frontier.poll_wanted.set()

    def _lose_host(self, name: str) -> None:
        logger.warning(
            "the lease of host %s expired",
            printable(name),
            extra={"event": "host_lease_expired", "host": name},
        )
        self._frontier.lose(name)

    async def _save(self, hosts: Iterable[FrontierHost]) -> None:
        # Save copies, because a host may change while the ledger writes.
        states = [(host.lease, host.state.copy()) for host in hosts if host.lease is not None]
        if not states:
            return
        lost_names = await self._ledger.host_leases.save(states)
        for lease, state in states:
            name = lease.host.name
            leased_host = self._frontier.leased.get(name)
            if leased_host is None or not _is_same(leased_host.lease, lease):
                continue
            if name in lost_names:
                self._lose_host(name)
            else:
                leased_host.lease = replace(lease, host=state)

    async def _release_idle(self, background: anyio.abc.TaskGroup) -> None:
        """Release in batches the hosts that have nothing left to do."""
        now = time.monotonic()
        idle_hosts: list[FrontierHost] = []
        for host in self._frontier.idle_hosts():
            if host.lease is None:
                self._frontier.forget(host)
            elif host.state.given_up is not None:
                host.work(background, partial(self._give_up, host))
            else:
                idle_hosts.append(host)
        if not idle_hosts:
            self._idle_since = None
            return
        idle_since = self._idle_since = self._idle_since or now
        if now - idle_since >= _IDLE_LINGER_S or len(idle_hosts) >= _IDLE_BATCH_SIZE:
            self._idle_since = None
            await self._release(idle_hosts)

    async def leave(self) -> None:
        """Release all hosts; their tasks are already written or released."""
        await self._release(list(self._frontier.leased.values()))

    async def _release(self, hosts: Iterable[FrontierHost]) -> None:
        # Forget the hosts before the release, because a task that is added during the release must
        # wake its host.
        states = [
            (host.lease, self._frontier.forget(host)) for host in hosts if host.lease is not None
        ]
        if states:
            await self._ledger.host_leases.release(states)

    async def _give_up(self, host: FrontierHost) -> None:
        """Ignore the tasks of a host with too many pages, or the tasks of given-up origins."""
        stats, is_full = self._session.stats, host.state.given_up is not None
        for scheme in [None] if is_full else [*host.state.origins]:
            state = host.state if scheme is None else host.state.origins[scheme]
            if (reason := state.given_up) is None:
                continue
            calls = FailureCalls.NONE if is_full else self._frontier.calls
            ignored = await self._ledger.hosts.give_up(
                host.name, reason=reason, scheme=scheme, calls=calls
            )
            if is_full:
                stats.over_full += ignored
            else:
                stats.given_up += ignored
            if ignored:
                name = host.name if is_full else f"{scheme}://{host.name}"
                logger.warning(
                    "gave up host %s (%s): %d waiting tasks are ignored",
                    *(printable(name), reason, ignored),
                    extra={"event": "host_given_up", "host": name, "reason": str(reason)},
                )
        if is_full:
            # `_release` skips the host if its lease expired, and then `_release_idle` forgets it.
            await self._release([host])

    async def _share_hosts(self) -> None:
        """Release hosts if other ready hosts exceed the capacity, or if workers need hosts."""
        now, owned_hosts = time.monotonic(), self._staying_hosts()
        self._next_share_at = now + _SHARE_INTERVAL_S
        if len(self._frontier.leased) < 2:
            return
        if len(owned_hosts) >= self._capacity:
            served_hosts = [
                host
                for host in owned_hosts
                if host.slice_responses >= SLICE_PAGES or now - host.slice_start >= SLICE_SECONDS
            ]
            ready_at = await self._ledger.hosts.next_ready() if served_hosts else None
            if ready_at is not None and ready_at <= self._ledger.now():
                self._start_leaving(
                    served_hosts[: self._capacity // _HOSTS_PER_FETCHER], left_at=now
                )
        # Keep new hosts for a second. Otherwise hosts could move between processes and get no
        # request.
        settled_hosts = [
            host
            for host in owned_hosts
            if now - host.slice_start >= _SHARE_INTERVAL_S and not host.loans
        ]
        if not settled_hosts:
            return
        worker_count, idle_count = await self._session.neighbours()
        if share := len(owned_hosts) * idle_count // max(worker_count, 1):
            settled_hosts.sort(key=lambda host: self._session.leases.count_by_host[host.name])
            self._start_leaving(settled_hosts[:share], left_at=now)
            # Lease no host for a while, so that other workers can lease the released hosts first.
            self._no_lease_until = self._next_share_at = now + 2 * _SHARE_INTERVAL_S

    def _staying_hosts(self) -> list[FrontierHost]:
        return [host for host in self._frontier.leased.values() if host.phase is not Phase.LEAVING]

    def _start_leaving(self, hosts: Iterable[FrontierHost], *, left_at: float) -> None:
        for host in hosts:
            host.enter(Phase.LEAVING)
            host.poll()
            host.left_at = left_at

    def _serve_again(self) -> None:
        """Add slots for slow pages; reopen hosts in phase LEAVING that still have pages."""
        now, leases_by_host = time.monotonic(), self._session.leases.count_by_host
        for host in self._frontier.leased.values():
            host.add_slot()
            is_resting = (
                host.queue.next_start - now > CLAIM_AHEAD_S or host.state.given_up is not None
            )
            must_stay = now - host.left_at < SLICE_SECONDS or host.is_busy
            if (
                host.phase is Phase.LEAVING
                and leases_by_host[host.name]
                and not (is_resting or must_stay)
            ):
                host.enter(Phase.OPENING)
                # Release the host only after at least one whole time slice.
                host.slice_responses, host.slice_start = 0, now + SLICE_SECONDS

    async def sweep(self) -> None:
        """Wake the next few hosts that have due tasks, but whose wake-up was lost by a crash."""
        names = await self._ledger.hosts.due(last_host=self._sweep_cursor, limit=_SWEEP_SIZE)
        self._sweep_cursor = names[-1] if len(names) == _SWEEP_SIZE else ""
        hosts_by_name = await self._ledger.hosts.get(names)
        dues: dict[str, datetime] = {}
        for name in names:
            host = hosts_by_name.get(name)
            if host is None or host.ready_at is None:
                due = await self._ledger.hosts.earliest_due(name)
                if due is not None:
                    dues[name] = due
        if dues:
            logger.info(
                "woke %d hosts that no worker had noticed",
                len(dues),
                extra={"event": "hosts_woken"},
            )
            await self._ledger.hosts.wake(dues)


def _is_same(current: HostLease | None, lease: HostLease) -> bool:
    # Compare only `token` and `epoch`, which identify the lease, because `_save` changes `host`.
    return current is not None and (current.token, current.epoch) == (lease.token, lease.epoch)
