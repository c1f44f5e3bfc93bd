"""The diagram of the circuit breakers, drawn from their behaviour.

Their states follow from their fields, so the code has no table of them. Instead, each breaker goes
through all sequences of a few events, and the state before and after each event is recorded.
"""

import itertools
from collections import OrderedDict
from copy import deepcopy
from enum import StrEnum
from typing import assert_never

from crawlcw.errors import FetchError, Reason
from crawlcw.model.health import (
    LONGEST_OUTAGE,
    Breaker,
    Cause,
    Marks,
    Origin,
    Policy,
    ProxyBreaker,
    Uplink,
)


class State(StrEnum):
    """The state of an origin, a proxy or the uplink."""

    CLOSED = "closed"
    CHECKING = "checking"
    OPEN = "open"
    HALF_OPEN = "half-open"
    DEAD = "dead"


class Event(StrEnum):
    """An event that may change the state."""

    RESTED = "rest is over"
    ANSWERED = "good answer"  #: to a request sent after the last event
    REFUSED = "page gets 429"  #: for the first time, with another known good page
    SILENCE = "failure in silence"  #: a request failed while no host answered
    FAULT = "fault"
    LAST_STRIKE = "last strike"


Observed = dict[tuple[State, Event], set[State]]

#: Events on the way to the state that is reached last, a dead uplink, and one more.
_LONGEST_WAY = 5
#: Seconds between two events: in a moment, no rest ends; in a while, every check and silence ends.
_MOMENT, _WHILE = 0.01, 10.0
#: With the first policy, a breaker is dead at its first fault; with the second one, it rests.
_POLICIES = Policy(max_failures=1), Policy(max_failures=3)


class Driven:
    """A breaker with its time."""

    def __init__(self, breaker: Breaker, policy: Policy) -> None:
        self._breaker = breaker
        self.policy = policy
        self.now = 0.0

    @property
    def rests(self) -> bool:
        return self._breaker.until is not None and self.now < self._breaker.until

    @property
    def strike(self) -> Event:
        """Return the kind of the next fault: a fault, or the last strike."""
        is_last = self._breaker.failures + 1 >= self.policy.max_failures
        return Event.LAST_STRIKE if is_last else Event.FAULT

    @property
    def state(self) -> State:
        raise NotImplementedError

    def meet(self, event: Event) -> bool:
        """Apply an event; return False if it is impossible."""
        raise NotImplementedError

    def goes_on(self, event: Event) -> bool:
        """Apply an event some time after the previous one; return False if it is impossible."""
        if event is not Event.RESTED:
            self.now += _MOMENT if self.rests else _WHILE
            return self.meet(event)
        if not self.rests:
            return False
        self.now = self._breaker.until or self.now
        return True


class DrivenOrigin(Driven):
    """An origin with a known good page."""

    def __init__(self, policy: Policy) -> None:
        self.origin = Origin(probe_page="http://example.com/good")
        self.marks: Marks = OrderedDict()
        super().__init__(self.origin, policy)

    @property
    def state(self) -> State:
        if self.origin.given_up is not None:
            return State.DEAD
        if self.origin.failures:
            return State.OPEN if self.rests else State.HALF_OPEN
        return State.CLOSED if self.origin.probe is None else State.HALF_OPEN

    def meet(self, event: Event) -> bool:
        match event:
            case Event.ANSWERED:
                self.origin.answered(self.marks, sent=self.now, delay=0.0)
            case Event.REFUSED:
                return self._refuse(f"{len(self.marks)}")
            case Event.FAULT | Event.LAST_STRIKE:
                if event is not self.strike:
                    return False
                self._fail(FetchError(Reason.CONNECT))
            case Event.SILENCE | Event.RESTED:
                return False
            case _:
                assert_never(event)
        return True

    def _refuse(self, page: str) -> bool:
        error = FetchError(Reason.HTTP_STATUS)
        cause = self.origin.throttled(
            self.marks,
            page.encode(),
            error,
            url=f"http://example.com/{page}",
            sent=self.now,
            now=self.now,
            may_probe=True,
        )
        if cause is Cause.ORIGIN:
            if self.strike is Event.LAST_STRIKE:
                return False  # this fault is an event of its own
            self._fail(error)
        return True

    def _fail(self, error: FetchError) -> None:
        self.origin.fault(error, sent=self.now, now=self.now, policy=self.policy)


class DrivenProxy(Driven):
    """A proxy; answers of hosts through it are not events of the proxy."""

    def __init__(self, policy: Policy) -> None:
        self.proxy = ProxyBreaker()
        super().__init__(self.proxy, policy)

    @property
    def state(self) -> State:
        if self.proxy.is_dead:
            return State.DEAD
        if self.now < self.proxy.ready_at:
            return State.OPEN
        return State.CLOSED if self.proxy.until is None else State.HALF_OPEN

    def meet(self, event: Event) -> bool:
        match event:
            case Event.ANSWERED:
                self.proxy.answered()
            case Event.FAULT | Event.LAST_STRIKE:
                if event is not self.strike:
                    return False
                self.proxy.fault("away", now=self.now, policy=self.policy)
            case Event.REFUSED | Event.SILENCE | Event.RESTED:
                return False
            case _:
                assert_never(event)
        return True


class DrivenUplink(Driven):
    """The uplink of a crawl with several hosts that have answered; any answer is a good one.

    Its faults are probes of good pages without an answer; the last strike comes after an hour.
    """

    def __init__(self) -> None:
        self.uplink = Uplink()
        for host in ("a", "b"):
            self.uplink.learned(host, f"http://{host}/")
        super().__init__(self.uplink, Policy())

    @property
    def state(self) -> State:
        if not self.uplink.failures:
            return State.CHECKING if self.uplink.is_blocked else State.CLOSED
        if not self.uplink.is_blocked:
            return State.DEAD
        return State.OPEN if self.rests else State.HALF_OPEN

    def meet(self, event: Event) -> bool:
        match event:
            case Event.ANSWERED:
                self.uplink.answered(now=self.now)
            case Event.SILENCE:
                self.uplink.failed("c", Reason.CONNECT, began=self.now, now=self.now)
            case Event.FAULT | Event.LAST_STRIKE:
                began = self.uplink.failing_since
                are_asked = self.uplink.is_blocked and not self.rests
                if not are_asked or (event is Event.LAST_STRIKE and began is None):
                    return False
                if event is Event.LAST_STRIKE and began is not None:
                    self.now = began + LONGEST_OUTAGE
                self.uplink.unanswered(now=self.now)
            case Event.REFUSED | Event.RESTED:
                return False
            case _:
                assert_never(event)
        return True


def origins() -> list[Driven]:
    return [DrivenOrigin(policy) for policy in _POLICIES]


def proxies() -> list[Driven]:
    return [DrivenProxy(policy) for policy in _POLICIES]


def observed(*breakers: Driven) -> Observed:
    """Return the next states of each event in each state, over all paths of these breakers."""
    found: Observed = {}
    for driven in breakers:
        _follow(driven, _LONGEST_WAY, found)
    return found


def _follow(driven: Driven, steps: int, found: Observed) -> None:
    for event in Event if steps else ():
        after = deepcopy(driven)
        if after.goes_on(event):
            found.setdefault((driven.state, event), set()).add(after.state)
            _follow(after, steps - 1, found)


def diagram() -> str:
    """Return the behaviour of all breakers as a Mermaid state diagram."""
    table = observed(*origins(), *proxies(), DrivenUplink())
    lines = ["stateDiagram-v2"]
    lines += [f"    {state.name}: {state}" for state in State]
    lines.append("    [*] --> CLOSED")
    lines += [
        f"    {before.name} --> {after.name}: {event}"
        for before, event, after in itertools.product(State, Event, State)
        if after is not before and after in table.get((before, event), ())
    ]
    return "\n".join(lines)
