"""A model of loans: processes that share one host, in virtual time; see `model` for the rest of it.

The network, the server and the clocks are those of `model`, and so are the faults of messages. The
processes have a `MongoLedger`, a `Frontier`, `Causes`, a `HostLeaser` and a `Lending` of the
product; their coordinators and fetchers are models. All fetchers of a process always work, so an
owner lends whenever another one is idle.

    python -m tests.faults.loans SEED          what happens in one schedule
    python -m tests.faults.loans FIRST LAST    looks for a schedule that fails
"""

import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from crawlcw.api.settings import Settings
from crawlcw.crawl import causes, host_leases
from crawlcw.crawl.host_leases import HostLeaser
from crawlcw.crawl.hosts import FrontierHost, Phase
from crawlcw.crawl.lending import Lending
from crawlcw.crawl.robots import Robots
from crawlcw.engine.ledger_retry import retrying
from crawlcw.engine.session import WorkerSession
from crawlcw.errors import FetchError, Reason
from crawlcw.ledger import documents
from crawlcw.ledger.mongo import MongoLedger
from crawlcw.ledger.mongo import leases as mongo_leases
from crawlcw.ledger.mongo.store import MongoStore
from crawlcw.model import transitions
from crawlcw.model.clock import LedgerClock
from crawlcw.model.counters import Counters
from crawlcw.model.loans import Loan
from crawlcw.model.rates import Worker as Listed
from crawlcw.model.task import Lease, Status
from crawlcw.model.transitions import Succeeded, deferred_lease
from tests.faults.fake_server import (
    CALM,
    Command,
    Database,
    Document,
    Network,
    Reply,
    Server,
    Weather,
)
from tests.faults.model import POLICY, Insistence, ProtocolError, error_of
from tests.faults.virtual import Event, Process, Timeline, virtual
from tests.support import frontiers
from tests.support.ledgers import START, PatchedFacet, make_task

HOST = "h.test"
LIMIT = 4
LEASE = timedelta(seconds=15)
#: Seconds of a loan, and from its end to the last change of it at its owner.
LOAN, SLACK = 9.0, 3.0
#: Seconds in which a refusal stops all processes, and that the host asks to wait.
STOP, RETRY_AFTER = 1.0, 3.0
_PAGES = 90
_FAULTS_END = 20.0
_WITHIN = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Parameters of a schedule."""

    processes: int
    weather: Weather = CALM
    kills: tuple[tuple[int, int], ...] = ()  #: a process, and its message at which it is killed
    pauses: tuple[tuple[float, float], ...] = ()  #: when a process stands still, and how long
    stops: tuple[float, ...] = ()  #: when a process is stopped
    refusals: frozenset[int] = frozenset()  #: requests that the host refuses

    @property
    def is_punctual(self) -> bool:
        """Return whether every process hears of every other one in time."""
        return self.weather == CALM and not (self.kills or self.pauses)


def planned(chance: Random) -> Plan:
    """Draw a plan."""
    kind = chance.choice(("calm", "messages", "kills", "pauses", "all", "all", "late"))
    rough = chance.choice((0.01, 0.05, 0.1)) if kind in ("messages", "all") else 0.0
    processes = chance.randint(2, 4)
    return Plan(
        processes=processes,
        weather=Weather(
            request_lost=rough * chance.random(),
            reply_lost=rough * chance.random(),
            delayed=rough * chance.random(),
            repeated=0.5 if kind == "late" else rough * chance.random(),
        ),
        kills=tuple(
            (chance.randrange(processes), int(chance.random() ** 2 * 300) + 5)
            for _ in range(chance.randint(1, 2) if kind in ("kills", "all") else 0)
        ),
        pauses=tuple(
            (chance.random() * _FAULTS_END, chance.choice((2.0, 8.0, 10.0, 18.0)))
            for _ in range(chance.randint(1, 3) if kind in ("pauses", "all") else 0)
        ),
        stops=tuple(chance.random() * _FAULTS_END for _ in range(chance.choice((0, 0, 1, 2)))),
        refusals=frozenset(chance.randrange(10, 70) for _ in range(chance.choice((0, 1, 2)))),
    )


class Desk(frontiers.Process):
    """The frontier of a process, by the time of a timeline."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        super().__init__(concurrency=LIMIT, booted=0.0)
        # A delay that a refusal leaves behind would end all loans for good.
        policy = replace(self.frontier.policy, auto_throttle=False)
        self.frontier.policy = self.causes._policy = policy
        self.frontier.usable_lease_s = 0.85 * LEASE.total_seconds()
        self.frontier.loans_changed = Event()  # type: ignore[assignment]  # of the timeline
        self.frontier.poll_wanted = Event()  # type: ignore[assignment]

    @property
    def now(self) -> float:
        return self._timeline.now

    @now.setter
    def now(self, _: float) -> None:
        """Keep the time of the timeline."""


class Member(Process):
    """A process of the crawl: lease the host or borrow it, claim, fetch, commit."""

    def __init__(self, schedule: "Schedule", name: str) -> None:
        super().__init__(schedule.timeline, name)
        self.schedule = schedule
        self.messages = 0
        self.stopping = False
        self.active: dict[Lease, str | None] = {}  #: requests under way, by their loans' ids
        self.ended_loans: set[str] = set()  #: loans that it has seen to be over
        clock = LedgerClock(monotonic=lambda: schedule.timeline.now)
        clock.set(
            START + timedelta(seconds=schedule.timeline.now),
            asked_at=self.now,
            answered_at=self.now,
        )
        ledger = MongoLedger(
            MongoStore(Database(schedule.network, self), "books", claims="batch", clock=clock.now)
        )
        self.desk = Desk(schedule.timeline)
        self.frontier = self.desk.frontier
        self.session = WorkerSession(ledger, lease_length=lambda: LEASE, give_up=LEASE)
        self.session.worker = name
        self.session.leases = self.desk.held
        self.session._idle_changed = Event()  # type: ignore[assignment]
        self._loan = ledger.workers.loan
        ledger.workers = PatchedFacet(ledger.workers, loan=self.loan)  # type: ignore[assignment]
        self._insistence = Insistence(self)
        self.ledger = self.session.ledger = retrying(ledger, self._insistence)  # type: ignore[arg-type]
        robots = Robots(
            None,  # type: ignore[arg-type]  # asks for none
            Settings(obey_robots=False),
            clock=lambda: self.now,
            now=clock.now,
        )
        self.lending = Lending(
            self.session, self.desk.causes, robots, has_free_fetchers=lambda: False
        )
        self.leaser = HostLeaser(self.session, self.frontier, Settings(concurrency=8, lease=LEASE))
        self.spawn(self._crawl())

    @property
    def now(self) -> float:
        return self.timeline.now

    @property
    def host(self) -> FrontierHost | None:
        return self.frontier.hosts.get(HOST)

    async def loan(self, name: str) -> Loan | None:
        """Return its loan as the ledger has it; note if that is over."""
        loan, host = await self._loan(name), self.frontier.borrowed_host
        used = host.borrowed_loan if host is not None else None
        if used is not None and (loan is None or loan.is_closing or loan.id != used.id):
            self.ended_loans.add(used.id)
        return loan

    # --- as a crawl does

    async def _crawl(self) -> None:
        moment = self.ledger.now()
        await self.ledger.workers.join(
            Listed(name=self.name, machine="m", pid=1, birth="", started=moment, heartbeat=moment)
        )
        await self.ledger.tasks.add([make_task(f"http://{HOST}/{n}") for n in range(_PAGES)])
        lending = self.spawn(self._lend())
        threads = [lending, self.spawn(self._beat()), self.spawn(self._renew())]
        while not self.stopping:
            await self._poll()
            await self.frontier.poll_wanted.wait(self, 0.2)
            self.frontier.poll_wanted.clear()
        self.frontier.lends = False
        self.frontier.loans_changed.set()
        await self._give_back(self.frontier.queues.withdraw())
        until = self.now + self.schedule.chance.choice((0.0, 0.5, 5.0))
        while self.active and self.now < until:
            await self.sleep(0.1)
        for thread in threads:
            thread.cancel()
        self.active.clear()
        await self._give_back(self.desk.held.all())
        await self.leaser.leave()
        await self.ledger.workers.leave(self.name)
        self.schedule.trace(self.name, "ends", "")
        self.timeline.after(0.0, self.kill)

    async def _lend(self) -> None:
        changed = self.frontier.loans_changed
        while True:
            changed.clear()
            await changed.wait(self, await self.lending.poll())

    async def _beat(self) -> None:
        changed = self.session._idle_changed
        while True:
            changed.clear()
            await self.ledger.workers.beat(self.name, Counters(), idle=self.session.is_idle)
            await changed.wait(self, 5.0)

    async def _renew(self) -> None:
        while True:
            await self.sleep(LEASE.total_seconds() / 3)
            await self.desk.held.renew(self.ledger, lease=LEASE)
            self.frontier.queues.withdraw(
                is_unwanted=lambda lease: not self.desk.held.is_current(lease)
            )
            await self._insistence.insist(self.leaser.renew)
            self.frontier.poll(HOST)
            if self.session.is_idle:
                await self.leaser.sweep()
            await self.schedule.bury(self)

    async def _give_back(self, leases: Iterable[Lease]) -> None:
        if leases := [*leases]:
            await self.ledger.outcomes.release(leases)
            self.desk.held.end(leases)
            self.frontier.poll(HOST)
            if HOST not in self.frontier.leased:
                await self.ledger.hosts.wake({HOST: self.ledger.now()})

    async def _poll(self) -> None:
        frontier = self.frontier
        await self._give_back(self.desk.given_back())
        for host in [*frontier.opening]:
            if host.is_open and host.lease is not None and host.queue.next_start <= self.now:
                host.enter(Phase.SERVING)  # its good page was answered
        await self.leaser.poll(None, idle=True)  # type: ignore[arg-type]  # for no work
        for host in frontier.leased.values():
            host.slow_start.steps = 100
            if not host.is_open:
                host.open()
            host.pace()
        for host in frontier.low_hosts()[0]:
            await self._claim(host)
        self.session.set_idle(not (frontier.hosts or self.desk.held))
        self._dispatch()

    async def _claim(self, host: FrontierHost) -> None:
        host.poll(is_stale=False)
        number = self.frontier.queues.free_capacity(HOST)
        if host.quota is not None:
            number = min(number, host.quota)
        limit = number if host.borrowed_loan is None else 2 * number
        tasks = await self.ledger.tasks.page(limit=limit, hosts=[HOST])
        if len(tasks) == limit:
            host.poll()
        if host.borrowed_loan is not None:
            tasks = tasks[len(tasks) // 2 :]
        wanted = [task for task in tasks if task.id not in self.desk.held]
        if not wanted:
            return
        claimed = await self.ledger.leases.claim(wanted, worker=self.name, lease=LEASE, max_lost=5)
        self.desk.held.add(claimed.leases)
        for lease in claimed.leases:
            if self.host is None or self.host.phase is Phase.LEAVING:
                self.frontier.pending.release([lease])
            else:
                self.frontier.queues.add(lease, now=self.now)

    # --- as a fetcher does

    def _dispatch(self) -> None:
        while not self.stopping and (lease := self.desk.take()) is not None:
            self.spawn(self._fetch(lease))

    async def _fetch(self, lease: Lease) -> None:
        schedule, host = self.schedule, self.host
        if host is None or not self.frontier.may_ask(lease.task, now=self.now):
            self.desk.fetched(lease)
            self.frontier.pending.release([lease])
            return
        self.active[lease] = None if host.borrowed_loan is None else host.borrowed_loan.id
        is_refused = schedule.begun(self, host)
        sent = self.ledger.now()
        # A page may take longer than a loan.
        slow = schedule.chance.random() < 0.02
        await self.sleep(schedule.chance.uniform(5.0, 20.0) if slow else schedule.chance.random())
        if self.active.pop(lease, lease) is lease:
            return  # its grace is over
        if is_refused:
            schedule.refused(self)
            error = FetchError(Reason.HTTP_STATUS, status=429, retry_after=RETRY_AFTER)
            page = lease.task.id
            self.desk.causes.origin_failed(HOST, lease.task.url, error, sent=sent, refused=page)
            self.desk.fetched(lease)
            until = self.ledger.now() + timedelta(seconds=RETRY_AFTER)
            self.frontier.pending.release([deferred_lease(lease, due=until)])
            self._dispatch()
            return
        self.desk.answered(HOST, sent=sent)
        self.desk.fetched(lease)
        self._dispatch()
        now = self.ledger.now()
        outcome = Succeeded(items=({"by": lease.token},))
        settlement = transitions.settle(lease, outcome, now=now, policy=POLICY, chance=0.5)
        self.desk.held.mark_settling([lease])
        committed = await self.ledger.outcomes.commit([settlement])
        schedule.committed(lease, is_lost=bool(committed.lost))
        self.desk.commit(lease)
        self.frontier.poll(HOST)


class LoanNetwork(Network):
    """The network, which kills processes at their messages."""

    schedule: "Schedule"

    async def call(self, command: Command) -> Reply:
        sender: Any = command.sender
        sender.messages += 1
        if (int(sender.name[1:]) - 1, sender.messages) in self.schedule.plan.kills:
            # Before the message arrives, before its reply does, or after both.
            self._timeline.after(0.02 * self._chance.random(), self.schedule.kill, sender)
        return await super().call(command)


class Schedule:
    """One run of all processes and faults, from a seed."""

    def __init__(self, seed: int, *, plan: Plan | None = None, tracing: bool = False) -> None:
        self.chance = Random(seed)
        drawn = planned(self.chance)
        self.plan = plan or drawn
        self.timeline = Timeline()
        self.events: list[str] = []
        self.happened: Counter[str] = Counter()
        self.members: list[Member] = []
        self._tracing = tracing
        self.server = Server(self._written)
        self.network = LoanNetwork(
            self.timeline,
            self.server,
            chance=self.chance,
            trace=self.trace,  # type: ignore[arg-type]
        )
        self.network.schedule = self
        self.tasks = self.server.documents("books")
        self.workers = self.server.documents("books.workers")
        self._dead: set[str] = set()
        self._requests = 0
        self._refused_at = float("-inf")
        self._recorded: set[bytes] = set()
        self._used_at: dict[str, float] = {}  #: by loan, when it was last in use

    def trace(self, actor: str, what: str, subject: object) -> None:
        if self._tracing:
            self.events.append(f"{self.timeline.now:8.3f} {actor:>3} {what} {_shown(subject)}")

    def moment(self) -> datetime:
        return START + timedelta(seconds=self.timeline.now)

    def living(self) -> list[Member]:
        return [member for member in self.members if not member.dead]

    def run(self) -> None:
        """Run the schedule; raises `ProtocolError`."""
        timeline, plan = self.timeline, self.plan
        host = causes.hosts.Host(name=HOST, ready_at=START, finished=100)
        self.server.documents("books.hosts")[HOST] = documents.host_document(host)
        clock = SimpleNamespace(monotonic=lambda: timeline.now)
        with virtual(timeline, mongo_leases), pytest.MonkeyPatch.context() as patch:
            patch.setattr(host_leases, "time", clock)
            patch.setattr(causes, "random", self.chance)
            for _ in range(plan.processes):
                timeline.after(self.chance.random(), self._start)
            self.network.weather = plan.weather
            for at, seconds in plan.pauses:
                timeline.at(at, self._pause, seconds)
            for at in plan.stops:
                timeline.at(at, self._stop)
            timeline.at(_FAULTS_END, self._calm)
            timeline.after(0.5, self._look)
            try:
                self._until_the_end()
            finally:
                for member in self.members:
                    member.kill()

    def _until_the_end(self) -> None:
        while self.timeline.now < _WITHIN:
            self.timeline.run(until=self.timeline.now + 1.0)
            owners = [member for member in self.living() if member.frontier.leased]
            if (
                self.timeline.now > _FAULTS_END
                and len(self.tasks) == _PAGES
                and not (
                    owners or any(task["status"] != Status.FINISHED for task in self.tasks.values())
                )
            ):
                return
        raise ProtocolError("the crawl does not come to its end")

    # --- faults

    def _start(self) -> None:
        name = f"w{len(self.members) + 1}"
        self.trace(name, "starts", "")
        self.members.append(Member(self, name))

    def kill(self, member: Member) -> None:
        if member.dead:
            return
        self.trace(member.name, "is killed", "")
        if any(host.loans for host in member.frontier.leased.values()):
            self.happened["an owner that lends is killed"] += 1
        self.happened["a borrower is killed"] += member.frontier.borrowed_host is not None
        member.kill()
        if self.chance.random() < 0.7:
            self._dead.add(member.name)
        self.timeline.after(self.chance.random() * 3.0, self._start)

    async def bury(self, member: Member) -> None:
        for name in sorted(self._dead):
            self._dead.discard(name)
            await member.ledger.workers.leave(name)

    def _pause(self, seconds: float) -> None:
        members = [member for member in self.living() if not member.paused]
        if members:
            member = self.chance.choice(members)
            self.trace(member.name, f"stands still for {seconds} s", "")
            if member.frontier.borrowed_host is not None:
                self.happened["a borrower stands still"] += 1
            member.pause()
            self.timeline.after(seconds, self._resume, member)

    def _resume(self, member: Member) -> None:
        if member.paused and not member.dead:
            self.trace(member.name, "goes on", "")
            member.resume()

    def _stop(self) -> None:
        members = [member for member in self.living() if not member.stopping]
        if members:
            member = self.chance.choice(members)
            self.trace(member.name, "is told to end", "")
            if any(host.loans for host in member.frontier.leased.values()):
                self.happened["an owner that lends is stopped"] += 1
            member.stopping = True
            self.timeline.after(self.chance.random(), self._start)

    def _calm(self) -> None:
        self.trace("", "the faults end", "")
        self.network.weather = CALM
        for member in self.living():
            self._resume(member)

    # --- checks

    def _owner(self) -> Member | None:
        """Return the process that the ledger has as the host's owner, if it lives."""
        host = self.server.documents("books.hosts")[HOST]
        name = (host["owner"] or "").partition(":")[0]
        if not name or host["ready_at"] <= self.moment():
            return None
        return next((member for member in self.living() if member.name == name), None)

    def _lent(self, owner: Member | None) -> dict[str, Loan]:
        """Return the loans that count as in use, by their borrowers, except the owner's own."""
        lent: dict[str, Loan] = {}
        for name, document in self.workers.items():
            worker = documents.worker(document)
            # One that has left is dead.
            if document["left_at"] is None and worker.borrows(self.moment()):
                assert worker.loan is not None
                if owner is None or name != owner.name:
                    lent[name] = worker.loan
        return lent

    def _check_slots(self) -> None:
        owner = self._owner()
        slots = sum(loan.slots for loan in self._lent(owner).values())
        active = len(owner.active) if owner is not None else 0
        if slots + active > LIMIT:
            raise ProtocolError(f"{active} requests of the owner, and {slots} slots are lent")

    def begun(self, member: Member, host: FrontierHost) -> bool:
        """Check that a request was allowed to begin; return whether the host refuses it."""
        now, owner = self.timeline.now, self._owner()
        self._requests += 1
        if host.borrowed_loan is None:
            if owner is not member:
                raise ProtocolError(f"{member.name} asks a host that is not its own")
        elif owner is not member:  # else the reply that it has leased the host is on its way
            loan = self._lent(owner).get(member.name)
            if loan is None or loan.id != host.borrowed_loan.id:
                raise ProtocolError(f"{member.name} asks without a loan")
            if loan.id in member.ended_loans:
                raise ProtocolError(f"{member.name} begins though it knows that its loan is over")
            if len(member.active) > loan.slots:
                raise ProtocolError(
                    f"{member.name} uses {len(member.active)} of {loan.slots} slots"
                )
            self.happened["requests of borrowers"] += 1
        self._check_slots()
        since = now - self._refused_at
        if self.plan.is_punctual and STOP < since < RETRY_AFTER:
            raise ProtocolError(f"{member.name} asks {since:.2f} s after a refusal")
        return self._requests in self.plan.refusals

    def refused(self, member: Member) -> None:
        self._refused_at = self.timeline.now
        if (host := member.host) is not None and host.borrowed_loan is not None:
            member.ended_loans.add(host.borrowed_loan.id)
        self.trace(member.name, "is refused", "")
        self.happened[f"refused: {'borrower' if member.frontier.borrowed_host else 'owner'}"] += 1

    def committed(self, lease: Lease, *, is_lost: bool) -> None:
        if not is_lost:
            if self.tasks[lease.task.id].get("items") != [{"by": lease.token}]:
                raise ProtocolError("an outcome is lost")
            if lease.task.id in self._recorded:
                raise ProtocolError("a second outcome")
            self._recorded.add(lease.task.id)

    def _look(self) -> None:
        """Check that no slot counts as lent for longer than a loan without being in use."""
        now = self.timeline.now
        for owner in self.living():
            for host in owner.frontier.leased.values():
                for name, loan in host.loans.items():
                    used = self._used_at.setdefault(loan.id, now)
                    if self._uses(name, loan) or owner.paused or now < _FAULTS_END:
                        self._used_at[loan.id] = now
                    elif now - used > LOAN + SLACK:
                        raise ProtocolError(f"{owner.name} has lost the slots of {loan.id}")
        self.timeline.after(0.5, self._look)

    def _uses(self, name: str, loan: Loan) -> bool:
        borrowed = (
            member.frontier.borrowed_host for member in self.living() if member.name == name
        )
        return any(
            host is not None and host.borrowed_loan is not None and host.borrowed_loan.id == loan.id
            for host in borrowed
        )

    def _written(self, command: Command, before: Document | None, after: Document) -> None:
        if before is not None and command.collection == "books":
            is_held = before["status"] == Status.PROCESSING and before["due"] > self.moment()
            if is_held and after["fence"] > before["fence"]:
                raise ProtocolError(f"{command.sender.name} claims what {before['lock']} holds")
        if before is None or command.collection != "books.workers":
            return
        was, now = before.get("loan"), after.get("loan")
        if was != now:
            self.trace(command.sender.name, "lends", now)
            new = was is None or was["id"] != now["id"]
            self.happened["lent" if new else "ended" if now["is_closing"] else "renewed"] += 1
            # A new owner goes on by the loans of the one before.
            lender = now["id"].partition(":")[0]
            self.happened["kept by a new owner"] += not new and lender != command.sender.name
            if not now["is_closing"]:
                self._check_slots()
        if before.get("report") != after.get("report"):
            report = after["report"]
            self.trace(command.sender.name, "reports", report)
            last, member = before.get("report"), command.sender
            assert isinstance(member, Member)
            if last is not None and last["returned"] and last["loan"] == report["loan"]:
                raise ProtocolError(f"a late report takes back the return of {last['loan']}")
            if report["returned"] and report["loan"] in member.active.values():
                raise ProtocolError(f"{member.name} returns {report['loan']} that it uses")
            self.happened["returned"] += report["returned"]


def _shown(subject: object) -> str:
    match subject:
        case bytes():
            return subject.hex()[:6]
        case dict():
            return ", ".join(f"{name}={_shown(value)}" for name, value in subject.items())
        case Command():
            return f"{subject.name} {subject.collection}"
        case datetime():
            return f"{(subject - START).total_seconds():.2f}s"
    return str(subject)


def failure(seed: int, plan: Plan | None = None) -> str | None:
    """Run one schedule; return the trace of its failure, or None."""
    return traced(seed, plan) if error_of(Schedule(seed, plan=plan).run) else None


def traced(seed: int, plan: Plan | None = None) -> str:
    """Run one schedule; return its trace, with the failure at the end."""
    schedule = Schedule(seed, plan=plan, tracing=True)
    end = error_of(schedule.run) or "everything holds"
    happened = ", ".join(f"{what}: {n}" for what, n in sorted(schedule.happened.items()))
    return "\n".join((f"seed {seed}: {schedule.plan}", *schedule.events, happened, end))


if __name__ == "__main__":
    first, *last = map(int, sys.argv[1:])
    if not last:
        print(traced(first))
    else:
        began = time.monotonic()
        failures = (failure(seed) for seed in range(first, last[0]))
        print(next((each for each in failures if each), "everything holds"))
        print(f"{time.monotonic() - began:.1f} s")
