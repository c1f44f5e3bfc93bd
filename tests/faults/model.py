"""A model of whole crawls: thousands of schedules of faults, in virtual time.

The processes, the network, the server and the clocks are models. The code in them
is that of the product: every process has a `MongoLedger` or the facets of SQL, a
`Committer`, `TaskLeases`, a `Quarantine` and a `LedgerClock`, and decides by `transitions`.

A schedule follows from its seed alone. It has a small site whose pages link to one
another and fail in all ways, up to four processes that crawl it, and faults until
some moment. Requests and replies are lost, delayed or repeated an hour later.
Processes are killed, paused past their leases or wrongly believed dead. Clocks are
wrong by up to an hour. Then the faults stop, and the crawl must end.

    python -m tests.faults.model STORE SEED          what happens in one schedule
    python -m tests.faults.model STORE FIRST LAST    looks for a schedule that fails

`Checker` has the invariants. It sees every document before and after each write,
and the replies to every process.
"""

import contextlib
import logging
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache
from random import Random
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar

from crawlcw.api.spider import Spider
from crawlcw.crawl import committer
from crawlcw.crawl.callbacks import Produced
from crawlcw.crawl.committer import Committer, TaskAdder
from crawlcw.crawl.kept_state import KeptState
from crawlcw.crawl.outcomes import Done
from crawlcw.doctor import invariants
from crawlcw.engine import pool, session
from crawlcw.engine.ledger_retry import retrying
from crawlcw.engine.pool import Quarantine
from crawlcw.engine.session import TaskLeases
from crawlcw.engine.stats import Stats
from crawlcw.errors import LedgerUnavailableError, Reason
from crawlcw.ledger.mongo import MongoLedger
from crawlcw.ledger.mongo import leases as mongo_leases
from crawlcw.ledger.mongo.store import MongoStore
from crawlcw.ledger.protocol import Claimed, Committed, TaskFilter
from crawlcw.ledger.sql.facets import Facets
from crawlcw.model import transitions
from crawlcw.model.clock import LedgerClock
from crawlcw.model.retry import RetryPolicy
from crawlcw.model.task import Lease, Status, Task
from crawlcw.model.transitions import Failed, Outcome, Settlement, Succeeded
from tests.faults.fake_server import CALM, Command, Database, Document, Network, Server, Weather
from tests.faults.fake_sql import SqlModelStore, SqlNetwork, SqlServer, Transaction
from tests.faults.virtual import Process, Signal, Thread, Timeline, virtual
from tests.support.ledgers import START, PatchedFacet, make_task

T = TypeVar("T")
P = ParamSpec("P")

LEASE = timedelta(seconds=60)
POLICY = RetryPolicy(max_retry=3, base=timedelta(seconds=4))
_MOST_PAGES = 15
_GROUPS_AT_ONCE = 3
#: The largest error of a clock, in seconds.
_WRONG = 3600.0
#: Limit from the last fault to the end of the crawl: the leases and times of a clock
#: that was an hour ahead, and then a few leases and waits.
_WITHIN = _WRONG + 1800.0
#: The transitions of the table.
_EDGES = {(before, after) for (before, _), afters in transitions.TABLE.items() for after in afters}


class ProtocolError(AssertionError):
    """An invariant does not hold."""


@cache
def page(number: int) -> Task:
    """Return the task of a newly found page."""
    return make_task(f"http://h.test/{number}")


@cache
def number_of(task_id: bytes) -> int:
    return next(number for number in range(_MOST_PAGES) if page(number).id == task_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Content and behaviour of a page."""

    links: tuple[int, ...] = ()
    fails: int = 0  #: number of fetches that fail before one succeeds
    gone: bool = False  #: it fails permanently
    deadly: bool = False  #: it crashes its process


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Parameters of a schedule."""

    pages: tuple[Content, ...]
    workers: int
    max_lost: int
    faults_end: float
    weather: Weather = CALM
    kills: int = 0
    pauses: int = 0
    wrong_clocks: int = 0
    stops: int = 0  #: processes that are stopped and replaced
    retries: int = 0  #: number of `retry-failed` calls
    failovers: int = 0  #: number of new primaries, which lack non-durable writes

    @property
    def faultless(self) -> bool:
        """Return whether no fault may repeat a fetch."""
        deadly = any(content.deadly for content in self.pages)
        return self.weather == CALM and not (
            self.kills or self.pauses or self.wrong_clocks or self.failovers or deadly
        )

    @property
    def exact(self) -> bool:
        """Return whether every lease is known to its holder: processes only crash."""
        return self.weather == CALM and not (self.pauses or self.wrong_clocks or self.failovers)

    @property
    def only_replies(self) -> bool:
        """Return whether the only faults are lost replies: every request reaches the server."""
        gentle = replace(self, weather=replace(self.weather, reply_lost=0.0))
        return gentle.faultless


def planned(chance: Random) -> Plan:
    """Draw a plan."""
    kinds = {"calm": 2, "replies": 2, "network": 5, "processes": 4, "clocks": 3, "all": 6}
    (kind,) = chance.choices(list(kinds), kinds.values())
    network, processes, clocks = (
        kind in (name, "all") for name in ("network", "processes", "clocks")
    )
    number = chance.randint(5, _MOST_PAGES)
    faults_end = chance.uniform(20.0, 300.0)
    return Plan(
        pages=tuple(
            _content(chance, n, number, deadly=processes and chance.random() < 0.05)
            for n in range(number)
        ),
        workers=chance.randint(1, 4),
        max_lost=chance.choice((1, 2, 3, 5, 5)),
        faults_end=faults_end,
        weather=_weather(chance, kind),
        kills=chance.randint(0, 5) if processes else 0,
        pauses=chance.randint(0, 5) if processes else 0,
        wrong_clocks=chance.randint(1, 6) if clocks else 0,
        stops=chance.choice((0, 0, 1, 3)),
        retries=chance.choice((0, 0, 0, 1)),
        failovers=chance.choice((0, 0, 2, 6)) if network else 0,
    )


def _weather(chance: Random, kind: str) -> Weather:
    rough = chance.choice((0.01, 0.05, 0.2))
    if kind == "replies":
        return Weather(reply_lost=rough)
    if kind not in ("network", "all"):
        return CALM
    return Weather(
        request_lost=rough * chance.random(),
        reply_lost=rough * chance.random(),
        delayed=rough * chance.random(),
        repeated=rough * chance.random(),
        torn=rough * chance.random(),
    )


def _content(chance: Random, number: int, pages: int, *, deadly: bool) -> Content:
    # Each page but the first is linked from an earlier page, and perhaps from others.
    links = {n for n in range(number + 1, pages) if chance.random() < 2.0 / n}
    links |= {chance.randrange(pages) for _ in range(chance.randint(0, 2))}
    return Content(
        links=tuple(sorted(links)),
        fails=chance.choice((0, 0, 0, 0, 0, 0, 1, 2, 99)),
        gone=chance.random() < 0.05,
        deadly=deadly,
    )


#: The id of a task, the fence and the token. A fence may repeat after a failover.
Claim = tuple[bytes, int, str]


@dataclass(slots=True)
class Checker:
    """The history of a schedule, and the checks of its invariants."""

    plan: Plan
    timeline: Timeline
    buried: set[str] = field(default_factory=set)  #: dead workers, whose leases others may end
    claims: set[Claim] = field(default_factory=set)
    handed: set[Claim] = field(default_factory=set)  #: claims that a process knows
    fetched: set[Claim] = field(default_factory=set)  #: claims under which a page was fetched
    settled: set[Claim] = field(default_factory=set)  #: claims with a recorded outcome
    fetches: Counter[bytes] = field(default_factory=Counter)
    given_back: Counter[bytes] = field(default_factory=Counter)  #: pages released after a fetch
    taken_over: Counter[bytes] = field(default_factory=Counter)
    forgotten: set[Claim] = field(default_factory=set)  #: claims lost in failovers
    crashed: Counter[bytes] = field(default_factory=Counter)  #: crashes caused by the page
    alone: set[Claim] = field(default_factory=set)  #: claims of pages that run alone
    counted: Counter[bytes] = field(default_factory=Counter)  #: losses that count against the page
    failed: Counter[bytes] = field(default_factory=Counter)
    finished: Counter[bytes] = field(default_factory=Counter)
    brought_back: Counter[bytes] = field(default_factory=Counter)
    woken: float = -1.0  #: the last time at which a task became due
    writes: int = 0

    # --- the server

    def written(
        self,
        command: Command | Transaction,
        before: Document | None,
        after: Document,
        tasks: dict[bytes, Document],
    ) -> None:
        """Check one write of one task."""
        self.writes += 1
        if before is None:
            self._added(after)
        elif before != after:
            self._changed(command.sender.name, before, after, tasks)

    def _added(self, after: Document) -> None:
        self.woken = self.timeline.now
        self._sound(after)
        if after != {**after, "status": 0, "fence": 0, "settled": 0, "retry": 0, "lost": 0}:
            raise ProtocolError("a task begins its life with a history")

    def _changed(
        self, sender: str, before: Document, after: Document, tasks: dict[bytes, Document]
    ) -> None:
        self._sound(after)
        for name in ("_id", "url", "host", "callback", "depth", "priority", "create_time"):
            if after[name] != before[name]:
                raise ProtocolError(f"{name} is changed")
        edge = Status(before["status"]), Status(after["status"])
        held = before["status"] == Status.PROCESSING
        if edge not in _EDGES and not (held and edge[0] is edge[1]):
            raise ProtocolError(f"from {edge[0].name} to {edge[1].name}")
        if after["fence"] < before["fence"]:
            raise ProtocolError(f"the fence goes down to {after['fence']}")
        if after["settled"] < before["settled"]:
            raise ProtocolError(f"the last outcome is now of fence {after['settled']}")
        if after["fence"] > before["fence"]:
            self._claimed(sender, before, after)
        elif not held:
            self._brought_back(before, after)
        elif after["settled"] > before["settled"]:
            self._settled(sender, before, after, tasks)
        elif after["status"] != Status.PROCESSING:
            self._released(sender, before, after)
        else:
            self._renewed(sender, before, after)

    def _claimed(self, sender: str, before: Document, after: Document) -> None:
        task_id, fence = before["_id"], after["fence"]
        if fence != before["fence"] + 1:
            raise ProtocolError(f"the fence jumps to {fence}")
        due = before.get("due")
        if due is None or due > after["update_time"]:
            raise ProtocolError(f"{sender} takes what is not due at its own time")
        taken_over = before["status"] == Status.PROCESSING
        if not self.plan.wrong_clocks and due > self.moment() + timedelta(milliseconds=1):
            raise ProtocolError(f"{sender} takes what is not due, though all clocks are right")
        self._counted(before, after)
        self.taken_over[task_id] += taken_over
        if self.plan.faultless and taken_over:
            raise ProtocolError("a lease runs out, though nothing has happened")
        if after["status"] == Status.IGNORED:
            if after["lost"] != self.plan.max_lost:
                raise ProtocolError(f"given up after {after['lost']} losses")
            return
        if after["status"] != Status.PROCESSING:
            if after["lost"] >= self.plan.max_lost or after["due"] <= after["update_time"]:
                raise ProtocolError(f"put off after {after['lost']} losses")
            return
        if taken_over and after.get("quarantine_fence") is None:
            raise ProtocolError("a crash is forgotten")
        claim = task_id, fence, after["lock"]
        # A claim that was lost in a failover may be repeated.
        known = claim in self.claims and claim not in self.forgotten
        if _worker(claim[2]) != sender or known:
            raise ProtocolError(f"{sender} claims as {claim[2]}")
        self.claims.add(claim)

    def _counted(self, before: Document, after: Document) -> None:
        """Check that a lapsed lease counts only if its work had begun, with no other under way."""
        more = after["lost"] - before["lost"]
        counts = (
            before["status"] == Status.PROCESSING
            and before.get("quarantine_fence") == before["fence"]
        )
        # The next holder may not know of a begin after it had read its page.
        if more not in ((0, 1) if counts else (0,)):
            raise ProtocolError(f"lost becomes {after['lost']}")
        self.counted[before["_id"]] += more

    def _settled(
        self, sender: str, before: Document, after: Document, tasks: dict[bytes, Document]
    ) -> None:
        task_id, token, fence = before["_id"], before["lock"], before["fence"]
        if after["settled"] != fence or _worker(token) != sender:
            raise ProtocolError(f"{sender} settles fence {after['settled']}, {token} has {fence}")
        self.settled.add((task_id, fence, token))
        if after["status"] != Status.FINISHED:
            if after["errors"][-1]["message"] != _signed(token, fence):
                raise ProtocolError("the failure is that of another claim")
            self.failed[task_id] += 1
            return
        if after["items"] != [{"by": _signed(token, fence)}]:
            raise ProtocolError("the items are those of another claim")
        self.finished[task_id] += 1
        if self.finished[task_id] > 1:
            raise ProtocolError("a second result")
        missing = [n for n in self.plan.pages[number_of(task_id)].links if page(n).id not in tasks]
        if missing:
            raise ProtocolError(f"finished without its links to {missing}")

    def _released(self, sender: str, before: Document, after: Document) -> None:
        if _worker(before["lock"]) != sender:
            raise ProtocolError(f"{sender} releases what {before['lock']} holds")
        claim = before["_id"], before["fence"], before["lock"]
        self.given_back[claim[0]] += claim in self.fetched

    def _renewed(self, sender: str, before: Document, after: Document) -> None:
        if after == before | {"quarantine_fence": before["fence"]}:
            if _worker(before["lock"]) != sender:
                raise ProtocolError(f"{sender} begins with what {before['lock']} holds")
            self.alone.add((before["_id"], before["fence"], before["lock"]))
            return
        if after != before | {"due": after["due"]}:
            raise ProtocolError("more than the end of a lease is changed")
        holder = _worker(before["lock"])
        if holder in self.buried:
            return  # changed by another process, or by the worker itself at its end
        if holder != sender:
            raise ProtocolError(f"{sender} changes a lease of {before['lock']}, who lives")
        if after["due"] < before["due"]:
            raise ProtocolError(f"{sender} shortens its lease")

    def _brought_back(self, before: Document, after: Document) -> None:
        self.woken = self.timeline.now
        if not transitions.retries(Status(before["status"]), _reason(before)):
            raise ProtocolError(f"{before.get('reason')} is brought back")
        self.brought_back[before["_id"]] += 1

    def rolled_back(self, was: Document, now: Document | None) -> None:
        """Record that a new primary has an older document."""
        if now is None or was["status"] != Status.PROCESSING:
            raise ProtocolError("more is forgotten than claims and renewals")
        if was["fence"] != now["fence"]:
            self.forgotten.add((was["_id"], was["fence"], was["lock"]))

    def _sound(self, found: Document) -> None:
        held = found["status"] == Status.PROCESSING
        if any((found[name] is not None) != held for name in ("lock", "lock_time")):
            raise ProtocolError(f"status {found['status']}, lock {found['lock']}")
        if ("due" in found) != (found["status"] < Status.FINISHED):
            raise ProtocolError(f"status {found['status']}, due {found.get('due')}")
        shown = found | {"items": len(found["items"])} if "items" in found else found
        if found["retry"] > POLICY.max_retry or found["lost"] > self.plan.max_lost:
            raise ProtocolError(f"retry {found['retry']}, lost {found['lost']}")
        if found["settled"] == 0 and (found["status"] in (Status.FINISHED, Status.FAILED)):
            raise ProtocolError(f"status {found['status']} without an outcome")
        if found["status"] in (Status.FAILED, Status.IGNORED) and found.get("reason") is None:
            raise ProtocolError(f"status {found['status']} without a reason")
        for violation in invariants.task_violations(shown, now=self.moment()):
            raise ProtocolError(f"{violation.kind}: {violation.detail}")

    def moment(self) -> datetime:
        """Return the true time."""
        return START + timedelta(seconds=self.timeline.now)

    # --- what processes believe

    def told_claimed(self, claimed: Claimed) -> None:
        for lease in claimed.leases:
            claim = _claim(lease)
            if claim not in self.claims:
                raise ProtocolError(f"{lease.token} is told of a claim that never was")
            if claim in self.handed:
                raise ProtocolError(f"{lease.token} is handed out twice")
            self.handed.add(claim)

    def told_committed(
        self, settlements: Iterable[Settlement], committed: Committed, tasks: dict[bytes, Document]
    ) -> None:
        lost = {_claim(lease) for lease in committed.lost}
        for settlement in settlements:
            claim = _claim(settlement.lease)
            recorded = claim in self.settled
            # If a failover lost the claim, its fence was used again: `settled` may belong
            # to the other claim, which then counts twice in the reports.
            again = self.plan.failovers and any(claim[:2] == each[:2] for each in self.settled)
            if claim not in lost and not recorded and not again:
                raise ProtocolError(f"{claim[2]} believes its result recorded, and it is not")
            # A later outcome hides an earlier one: that costs a line in the log only.
            if claim in lost and recorded and tasks[claim[0]]["settled"] == claim[1]:
                raise ProtocolError(f"{claim[2]} believes its result lost, and it is recorded")

    def told_lost(
        self, leases: Iterable[Lease], lost: set[bytes], tasks: dict[bytes, Document]
    ) -> None:
        for lease in leases:
            found = tasks[lease.task.id]
            if lease.task.id in lost and (found["lock"], found["fence"]) == (
                lease.token,
                lease.fence,
            ):
                raise ProtocolError(f"{lease.token} is told that it is lost, and it is not")

    def fetch(self, lease: Lease) -> int:
        """Record a fetch of a page; return the number of its fetches so far."""
        if _claim(lease) in self.fetched:
            raise ProtocolError(f"fetched twice under one claim: {lease.token}")
        self.fetched.add(_claim(lease))
        self.fetches[lease.task.id] += 1
        return self.fetches[lease.task.id]

    def crash(self, lease: Lease, under_way: Iterable[Claim]) -> None:
        """Record that a page crashes the process in which the claims are under way."""
        self.crashed[lease.task.id] += 1
        beside = {claim for claim in under_way if claim != _claim(lease)}
        if self.alone & beside:
            raise ProtocolError("another page pays for the crash")
        if _claim(lease) in self.alone and beside:
            raise ProtocolError("it began alone, and is not")

    # --- the end

    def ended(self, tasks: dict[bytes, Document]) -> None:
        """Check a drained ledger."""
        for found in tasks.values():
            self._sound(found)
            self._ended_well(found)
        followed = {0}
        for found in tasks.values():
            if found["status"] == Status.FINISHED:
                followed.update(self.plan.pages[number_of(found["_id"])].links)
        if not {page(number).id for number in followed} <= tasks.keys():
            raise ProtocolError("a link is missing")

    def _ended_well(self, found: Document) -> None:
        task_id, status = found["_id"], found["status"]
        content = self.plan.pages[number_of(task_id)]
        if status not in (Status.FINISHED, Status.IGNORED):
            raise ProtocolError(f"page {number_of(task_id)} is left with status {status}")
        if (status == Status.FINISHED) != (self.finished[task_id] == 1):
            raise ProtocolError(f"page {number_of(task_id)} has {self.finished[task_id]} results")
        if "items" in found and status != Status.FINISHED:
            raise ProtocolError("items of a page that is not finished")
        if status == Status.IGNORED and not (content.gone or content.fails):
            if found["reason"] != Reason.CRASHED_WORKER:
                raise ProtocolError(f"given up for {found['reason']}")
            if self.plan.faultless:
                raise ProtocolError("given up, though nothing has happened")
            if not content.deadly and self.plan.exact and self.plan.kills < self.plan.max_lost:
                raise ProtocolError("an innocent page is given up for what others did")
        spent = self.finished[task_id] + self.failed[task_id] + self.taken_over[task_id]
        spent += self.given_back[task_id] + sum(claim[0] == task_id for claim in self.forgotten)
        if self.fetches[task_id] > spent:
            raise ProtocolError(f"{self.fetches[task_id]} fetches, {spent} claims of them ended")
        rounds = 1 + self.brought_back[task_id]
        if self.failed[task_id] > rounds * POLICY.max_retry:
            raise ProtocolError(f"{self.failed[task_id]} failures")
        if self.plan.only_replies and self.taken_over[task_id]:
            raise ProtocolError("a lease runs out, and its holder lives and is heard")
        # The second crash quarantines the page until it is finished.
        if self.plan.exact and self.crashed[task_id] > 2 + rounds * self.plan.max_lost:
            raise ProtocolError(f"{self.crashed[task_id]} crashes")
        if self.plan.exact and not content.deadly and self.counted[task_id] > self.plan.kills:
            raise ProtocolError(f"{self.counted[task_id]} losses of an innocent page")
        if self.plan.faultless and self.fetches[task_id] != (
            self.finished[task_id] + self.failed[task_id]
        ):
            raise ProtocolError("a fetch is repeated, though nothing has happened")


def _claim(lease: Lease) -> Claim:
    return lease.task.id, lease.fence, lease.token


def _worker(token: str) -> str:
    return token.partition(":")[0]


def _signed(token: str, fence: int) -> str:
    return f"{token} {fence}"


def _reason(found: Document) -> Reason | None:
    return Reason(found["reason"]) if "reason" in found else None


#: A ledger of SQL in `fake_sql`, or one on MongoDB in `fake_server`.
STORES = ("mongodb", "sql")


class WatchedLedger:
    """A ledger with checks of its replies to the process."""

    def __init__(self, ledger: Any, checker: Checker, documents: dict[bytes, Document]) -> None:
        self.real = ledger
        self.leases = PatchedFacet(ledger.leases, claim=self.claim, renew=self.renew)
        self.outcomes = PatchedFacet(ledger.outcomes, commit=self.commit)
        self._checker = checker
        self._documents = documents

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    async def claim(self, tasks: Sequence[Task], **more: Any) -> Claimed:
        claimed = await self.real.leases.claim(tasks, **more)
        self._checker.told_claimed(claimed)
        return claimed

    async def commit(self, settlements: Sequence[Settlement]) -> Committed:
        committed = await self.real.outcomes.commit(settlements)
        self._checker.told_committed(settlements, committed, self._documents)
        return committed

    async def renew(self, leases: Sequence[Lease], *, lease: timedelta) -> set[bytes]:
        lost = await self.real.leases.renew(leases, lease=lease)
        self._checker.told_lost(leases, lost, self._documents)
        return lost


class Insistence:
    """The product's `LedgerRetry`, in virtual time and without a limit."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def insist(self, operation: Callable[[], Awaitable[T]]) -> T:
        return await self.call("", operation)

    async def call(
        self, _: str, operation: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        wait = 0.1
        while True:
            try:
                return await operation(*args, **kwargs)
            except LedgerUnavailableError:
                await self._process.sleep(wait)
                wait = min(2 * wait, 5.0)


class Worker(Process):
    """A process of the crawl: page, claim, renew, fetch, add the links, commit."""

    def __init__(self, schedule: "Schedule", name: str) -> None:
        super().__init__(schedule.timeline, name)
        chance = schedule.chance
        self.schedule = schedule
        self.clock = LedgerClock(monotonic=lambda: schedule.timeline.now)
        self.set_clock(0.0)
        claims = chance.choice(("each", "batch"))
        ledger = schedule.ledger(self, clock=self.clock.now, claims=claims)
        self.ledger: Any = WatchedLedger(ledger, schedule.checker, schedule.tasks)
        self.drained_from: float | None = None
        self.stopping = False
        self._chance = chance
        self._concurrency = chance.randint(1, 4)
        self._held = TaskLeases()
        insistence = Insistence(self)
        self._insist = insistence.insist
        waiting = retrying(self.ledger, insistence)  # type: ignore[arg-type]
        self._queue: list[Lease] = []
        self._fetching: dict[bytes, Thread] = {}
        self._under_way: set[Claim] = set()
        self._done: list[Done] = []
        self._writing = 0
        self._changed = Signal()
        stats = Stats()
        self._committer = Committer(
            SimpleNamespace(ledger=waiting, leases=self._held, stats=stats, instruments=None),
            coordinator=self,
            adder=TaskAdder(ledger=waiting, stats=stats, announce=self.announce, max_depth=None),
            state=KeptState(Spider(), waiting),
            bodies=None,
            end=lambda *_: None,
        )
        self._quarantine = Quarantine(waiting, self._held)
        self.spawn(self._coordinate())
        self.spawn(self._renew())

    def set_clock(self, error: float) -> None:
        """Set the error of the process's ledger clock to *error* seconds."""
        now = self.timeline.now
        self.clock.set(START + timedelta(seconds=now + error), asked_at=now, answered_at=now)

    def stop(self) -> None:
        """End soon, and release the tasks that have not begun."""
        self.stopping = True
        self._changed.send()

    async def announce(self, tasks: Iterable[Task]) -> None:
        """Do nothing: the model has no hosts."""

    def note_written(self, *, has_more: bool, retry_hosts: Iterable[str]) -> None:
        """Read the ledger again."""
        self._changed.send()

    def _lost(self, task_ids: set[bytes]) -> None:
        self._queue = [lease for lease in self._queue if lease.task.id not in task_ids]

    async def _renew(self) -> None:
        while True:
            await self.sleep(LEASE.total_seconds() / 3)
            self._lost(await self._insist(lambda: self._held.renew(self.ledger, lease=LEASE)))
            await self._reap_dead_workers()

    async def _reap_dead_workers(self) -> None:
        for name in sorted(self.schedule.known_dead - {self.name}):
            self.schedule.checker.buried.add(name)
            with contextlib.suppress(LedgerUnavailableError):
                await self.ledger.workers.leave(name)
                self.schedule.known_dead.discard(name)

    async def _coordinate(self) -> None:
        await self._reap_dead_workers()
        seed = replace(page(0), due=self.ledger.now(), update_time=self.ledger.now())
        await self._insist(lambda: self.ledger.tasks.add([seed]))
        idle = 0.5
        while not self.stopping:
            self._changed = Signal()
            if await self._claim():
                idle = 0.5
            self._dispatch()
            if not self._held and not self._writing:
                asked = self.timeline.now
                if await self._insist(self.ledger.queries.next_due) is None and not self._held:
                    self.drained_from = asked
                    break
            self.timeline.after(idle, self._changed.send)
            await self._changed
            idle = min(2 * idle, 60.0)
        await self._end()

    async def _claim(self) -> bool:
        room = 2 * self._concurrency - len(self._held)
        if room <= 0:
            return False
        found = await self._insist(lambda: self.ledger.tasks.page(limit=room))
        wanted = [task for task in found if task.id not in self._held]
        if not wanted:
            return False
        lapsed = any(task.status is Status.PROCESSING for task in wanted)
        if self._chance.random() < (0.5 if lapsed else 0.1):
            # The page becomes stale, and a late holder may return.
            await self.sleep(self._chance.random() * 30.0)
        claimed = await self._insist(
            lambda: self.ledger.leases.claim(
                wanted, worker=self.name, lease=LEASE, max_lost=self.schedule.plan.max_lost
            )
        )
        self._held.add(claimed.leases)
        self._queue += claimed.leases
        return bool(claimed.leases)

    def _dispatch(self) -> None:
        while self._queue and len(self._fetching) < self._concurrency and not self.stopping:
            lease = self._queue.pop(0)
            thread = self.spawn(self._work(lease))
            self._fetching[lease.task.id] = thread
            self._held.cancel_scopes[lease.task.id] = thread  # type: ignore[arg-type]  # it can be cancelled

    async def _work(self, lease: Lease) -> None:
        try:
            if not await self._quarantine.enter(lease):
                self._queue.append(lease)
                return
            self._under_way.add(_claim(lease))
            try:
                done = await self._fetch(lease)
                self._done.append(done)
                self._write_out()
                if self._quarantine.quarantined_lease is lease:
                    await self._held.wait_for_end(lease)
            finally:
                self._under_way.discard(_claim(lease))
                self._quarantine.leave(lease)
        finally:
            self._held.cancel_scopes.pop(lease.task.id, None)
            self._fetching.pop(lease.task.id, None)
            self._write_out()
            self._dispatch()
            self._changed.send()

    def _write_out(self) -> None:
        """Start writing a group, unless enough groups are under way."""
        if self._done and self._writing < _GROUPS_AT_ONCE:
            group, self._done = self._done, []
            self._writing += 1
            self.spawn(self._write(group))

    async def _write(self, group: list[Done]) -> None:
        await self._committer._write(group)
        self._writing -= 1
        self._write_out()
        self._changed.send()

    async def _fetch(self, lease: Lease) -> Done:
        number = number_of(lease.task.id)
        content = self.schedule.plan.pages[number]
        times = self.schedule.checker.fetch(lease)
        self.schedule.trace(self.name, f"fetches page {number} as {lease.token}", "")
        slow = self._chance.random() < 0.05
        await self.sleep(self._chance.random() * (150.0 if slow else 4.0))
        if content.deadly:
            self.schedule.checker.crash(lease, self._under_way)
            self.timeline.after(0.0, self.schedule.kill, self)
            await Signal()
        signed = _signed(lease.token, lease.fence)
        outcome: Outcome
        if content.gone:
            outcome = Failed(reason=Reason.HTTP_STATUS, status=404, message=signed)
        elif times <= content.fails:
            outcome = Failed(reason=Reason.TIMEOUT_READ, message=signed)
        else:
            outcome = Succeeded(items=({"by": signed},))
        now = self.ledger.now()
        numbers = content.links if isinstance(outcome, Succeeded) else ()
        links = [replace(page(n), due=now, update_time=now, create_time=now) for n in numbers]
        settlement = transitions.settle(
            lease, outcome, now=now, policy=POLICY, chance=self._chance.random()
        )
        return Done(settlements=(settlement,), produced=Produced(tasks=links))

    async def _end(self) -> None:
        """Release the held tasks, as a stopped crawl does."""
        self.stopping = True
        if queued := self._queue:
            self._queue = []
            await self._insist(lambda: self.ledger.outcomes.release(queued))
            self._held.end(queued)
        if not self.schedule.plan.faultless and self._chance.random() < 0.3:
            # The grace period is over.
            for thread in list(self._fetching.values()):
                thread.cancel()
        while self._fetching or self._writing:
            self._changed = Signal()
            await self._changed
        await self._insist(lambda: self.ledger.outcomes.release(self._held.all()))
        self.schedule.checker.buried.add(self.name)
        with contextlib.suppress(LedgerUnavailableError):
            await self.ledger.workers.leave(self.name)
        self.schedule.trace(self.name, "ends", "")
        # Not from this thread, which the kill ends.
        self.timeline.after(0.0, self.kill)


class Schedule:
    """One run of all processes and faults, from a seed."""

    def __init__(self, seed: int, *, store: str = "mongodb", tracing: bool = False) -> None:
        self.seed = seed
        self.chance = Random(seed)
        self.plan = planned(self.chance)
        self.timeline = Timeline()
        self.checker = Checker(self.plan, self.timeline)
        self.events: list[str] = []
        self.known_dead: set[str] = set()
        self._tracing = tracing
        self._server: Any = (SqlServer if store == "sql" else Server)(self._written)
        self.tasks: dict[bytes, Document] = self._server.documents("books")
        network = SqlNetwork if store == "sql" else Network
        self.network = network(self.timeline, self._server, chance=self.chance, trace=self.trace)
        self._workers: list[Worker] = []
        self._processes: list[Process] = []
        self._failovers = self.plan.failovers

    def ledger(
        self, process: Process, *, clock: Callable[[], datetime], claims: str = "each"
    ) -> Any:
        """Return the ledger of a process."""
        if isinstance(self.network, SqlNetwork):
            return Facets(SqlModelStore(self.network, process, clock))
        database = Database(self.network, process)
        return MongoLedger(MongoStore(database, "books", claims=claims, clock=clock))

    def trace(self, actor: str, what: str, subject: object) -> None:
        """Record an event, if tracing is on."""
        if self._tracing:
            self.events.append(f"{self.timeline.now:10.3f} {actor:>4} {what} {shown(subject)}")

    def run(self) -> None:
        """Run the schedule; raises `ProtocolError`."""
        with virtual(self.timeline, mongo_leases, committer, session, pool):
            for _ in range(self.plan.workers):
                self.timeline.after(self.chance.random() * 5.0, self._start)
            self._plan_faults()
            self.timeline.at(self.plan.faults_end, self._calm)
            try:
                self._until_the_end()
            finally:
                for process in self._processes:
                    process.kill()
        self.checker.ended(self.tasks)

    def _until_the_end(self) -> None:
        deadline = self.plan.faults_end + _WITHIN
        # A late message may make a task due after all processes have ended.
        for _ in range(3):
            self._finish_by(deadline)
            if all("due" not in found for found in self.tasks.values()):
                return
            drained_from = max((w.drained_from or 0.0 for w in self._workers), default=0.0)
            if self.checker.woken < drained_from:
                raise ProtocolError("all have ended, and there is something left to do")
            self._start()
            deadline = self.timeline.now + _WITHIN
        raise ProtocolError("there is always something left to do")

    def _finish_by(self, deadline: float) -> None:
        while not self.timeline.run(until=deadline):
            if self._living():
                raise ProtocolError("the crawl does not come to its end")
            # Only messages are left.
            deadline += 3600.0

    def _living(self) -> list[Worker]:
        return [worker for worker in self._workers if not worker.dead]

    def _start(self) -> None:
        worker = Worker(self, f"w{len(self._workers) + 1}")
        self.trace(worker.name, "starts", "")
        self._workers.append(worker)
        self._processes.append(worker)

    # --- faults

    def _plan_faults(self) -> None:
        plan = self.plan
        self.network.weather = plan.weather
        for times, strike in (
            (plan.kills, self._kill_one),
            (plan.pauses, self._pause_one),
            (plan.wrong_clocks, self._mislead_one),
            (plan.stops, self._stop_one),
            (plan.retries, self._retry_failed),
        ):
            for _ in range(times):
                # Most faults come early, while there are many tasks.
                self.timeline.at(self.chance.random() ** 2 * plan.faults_end, strike)

    def _calm(self) -> None:
        self.network.weather = CALM
        self._failovers = 0
        self.trace("", "the faults end", "")
        for worker in self._living():
            worker.set_clock(0.0)
            if worker.paused:
                worker.resume()

    def _one(self) -> Worker | None:
        living = self._living()
        return self.chance.choice(living) if living else None

    def _kill_one(self) -> None:
        if worker := self._one():
            self.kill(worker)

    def kill(self, worker: Worker) -> None:
        """Kill a process, and start another one later."""
        if worker.dead:
            return
        self.trace(worker.name, "is killed", "")
        worker.kill()
        if self.chance.random() < 0.5:
            self.known_dead.add(worker.name)
        self.timeline.after(self.chance.random() * 30.0, self._start)

    def _pause_one(self) -> None:
        worker = self._one()
        if worker is None or worker.paused:
            return
        longer = self.chance.random() < 0.3
        seconds = self.chance.uniform(60.0, 300.0) if longer else self.chance.uniform(5.0, 80.0)
        self.trace(worker.name, f"stands still for {seconds:.1f} s", "")
        worker.pause()
        self.timeline.after(seconds, self._resume, worker)
        if longer and self.chance.random() < 0.2:
            self.known_dead.add(worker.name)  # a wrong belief

    def _resume(self, worker: Worker) -> None:
        if worker.paused and not worker.dead:
            self.trace(worker.name, "goes on", "")
            worker.resume()

    def _mislead_one(self) -> None:
        if worker := self._one():
            largest = self.chance.choice((2.0, 120.0, _WRONG))
            error = self.chance.uniform(-largest, largest)
            self.trace(worker.name, f"has its clock wrong by {error:.1f} s", "")
            worker.set_clock(error)

    def _stop_one(self) -> None:
        worker = self._one()
        if worker is not None and not worker.stopping:
            self.trace(worker.name, "is told to end", "")
            worker.stop()
            self.timeline.after(self.chance.random() * 30.0, self._start)

    def _fail_over(self) -> None:
        self.network.away_until = self.timeline.now + self.chance.random() * 15.0
        self.trace("", "another server takes over", "")
        for was, now in self._server.roll_back(self.chance.random()):
            self.trace("", "forgotten:", _difference(was, now) if now else was["_id"])
            self.checker.rolled_back(was, now)

    def _retry_failed(self) -> None:
        operator = Process(self.timeline, "op")
        self._processes.append(operator)
        ledger = self.ledger(operator, clock=self.checker.moment)

        async def work() -> None:
            await Insistence(operator).insist(lambda: ledger.admin.retry_failed(TaskFilter()))
            self._start()

        operator.spawn(work())

    # --- writes

    def _written(
        self, command: Command | Transaction, before: Document | None, after: Document
    ) -> None:
        if command.collection != "books":
            return
        if not command.durable and self._failovers and self.chance.random() < 0.1:
            # This write is not durable yet, so a failover may lose it.
            self._failovers -= 1
            self.timeline.after(self.chance.random() * 0.05, self._fail_over)
        if self._tracing:
            self.trace(command.sender.name, "does", _difference(before, after))
        self.checker.written(command, before, after, self.tasks)


def _difference(before: Document | None, after: Document) -> str:
    name = f"page {number_of(after['_id'])}:"
    if before is None:
        return f"{name} added"
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    changes = [f"{name} {shown(before.get(name))} -> {shown(after.get(name))}" for name in names]
    return " ".join((name, ", ".join(changes) or "nothing"))


#: Number of shown elements of a longer list.
_SHOWN = 5


def shown(value: object) -> str:
    """Return a short text for any value in a trace."""
    match value:
        case bytes():
            return f"page {number_of(value)}"
        case datetime():
            return f"{(value - START).total_seconds():.1f}s"
        case Transaction():
            return value.name
        case Command():
            parts = [f"{shown(s.wanted)} {shown(s.update)}" for s in value.statements] or [
                shown(value.wanted)
            ]
            return f"{value.name} {value.collection} {'; '.join(parts)}"
        case dict():
            inner = ", ".join(f"{name}: {shown(each)}" for name, each in value.items())
            return f"{{{inner}}}"
        case list() | tuple() | set():
            few = [shown(each) for each in list(value)[:_SHOWN]]
            return f"[{', '.join(few)}{', ...' if len(value) > _SHOWN else ''}]"
    return str(value)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Turn off the product's log, which would report each lost lease."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def error_of(run: Callable[[], object]) -> str | None:
    """Run a schedule; return the error that it ends with, or None."""
    with quiet():
        try:
            run()
        except AssertionError as error:
            return f"{type(error).__name__}: {error}"
    return None


def failure(seed: int, store: str = "mongodb") -> str | None:
    """Run one schedule; return the trace of its failure, or None."""
    return traced(seed, store) if error_of(Schedule(seed, store=store).run) else None


def traced(seed: int, store: str = "mongodb") -> str:
    """Run one schedule; return its trace, with the failure at the end."""
    schedule = Schedule(seed, store=store, tracing=True)
    end = error_of(schedule.run) or "everything holds"
    again = f"again: python -m tests.faults.model {store} {seed}"
    return "\n".join((f"seed {seed}: {schedule.plan}", *schedule.events, end, again))


def first_failure(seeds: Iterable[int], store: str = "mongodb") -> str | None:
    """Run schedules until one fails; return its trace."""
    return next((found for seed in seeds if (found := failure(seed, store)) is not None), None)


if __name__ == "__main__":
    store, first, *last = sys.argv[1:]
    if not last:
        print(traced(int(first), store))
    else:
        began = time.monotonic()
        seeds = range(int(first), int(last[0]))
        print(first_failure(seeds, store) or f"{len(seeds)} schedules: everything holds")
        print(f"{time.monotonic() - began:.1f} s")
