"""Circuit breaker for an origin, a proxy, or this machine's own uplink (Nygard, "Release It!").

`TABLE` has every change of state; the diagram in the guide on politeness is drawn from it.
Synchronous and without I/O. Times are seconds of one clock that runs forward: the ledger's for
origins, which several processes ask in turn, and the monotonic clock for proxies and the uplink.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum, StrEnum
from typing import Self

from crawlcw.errors import Reason
from crawlcw.model.retry import backoff
from crawlcw.model.urls import scheme_of


class State(StrEnum):
    """What may be asked of the origin, the proxy or the uplink."""

    CLOSED = "closed"  #: everything, at its pace
    CHECKING = "checking"  #: known good pages: of the uplink alone
    OPEN = "open"  #: nothing, until its rest is over
    HALF_OPEN = "half-open"  #: one page, a known good one where there is any
    DEAD = "dead"  #: nothing: its tasks are ignored


class Event(StrEnum):
    """What changes the state."""

    ANSWERED = "good answer"  #: to a request that was sent since
    REFUSED = "page gets 429"  #: and another page is known to be good
    SILENCE = "failure in silence"  #: a request failed while no host answered
    FAULT = "fault"
    LAST_STRIKE = "last strike"
    RESTED = "rest is over"


TABLE: Mapping[tuple[State, Event], State] = {
    (State.CLOSED, Event.REFUSED): State.HALF_OPEN,
    (State.CLOSED, Event.SILENCE): State.CHECKING,
    (State.CLOSED, Event.FAULT): State.OPEN,
    (State.CLOSED, Event.LAST_STRIKE): State.DEAD,
    (State.CHECKING, Event.ANSWERED): State.CLOSED,
    (State.CHECKING, Event.FAULT): State.OPEN,
    (State.OPEN, Event.RESTED): State.HALF_OPEN,
    (State.OPEN, Event.ANSWERED): State.CLOSED,
    (State.OPEN, Event.LAST_STRIKE): State.DEAD,
    (State.HALF_OPEN, Event.ANSWERED): State.CLOSED,
    (State.HALF_OPEN, Event.FAULT): State.OPEN,
    (State.HALF_OPEN, Event.LAST_STRIKE): State.DEAD,
    (State.DEAD, Event.ANSWERED): State.CLOSED,
}
"""The state after an event; an event that is not in the table changes nothing."""


class Cause(Enum):
    """The part that a failed attempt belongs to; only PAGE costs the page an attempt."""

    PAGE = "page"
    ORIGIN = "origin"
    PROXY = "proxy"
    UPLINK = "uplink"
    LOCAL = "local"  #: crawlcw itself, its disk, or a loop that stood still


#: Failures of the way to the server: no page of its own can be to blame.
CONNECTION_FAILURES = frozenset(
    {Reason.DNS_TEMPORARY, Reason.DNS_NXDOMAIN, Reason.CONNECT, Reason.TIMEOUT_CONNECT}
)
#: Failures that say something of the origin and nothing of the page. A throttling
#: answer (429, or 503 with Retry-After) is the page's own where others are answered.
HOST_FAILURES = CONNECTION_FAILURES | {Reason.TLS, Reason.ROBOTS_UNAVAILABLE}
#: Failures of a connection to an address: the name had one, whatever the cause.
PAST_THE_NAME = frozenset({Reason.CONNECT, Reason.TIMEOUT_CONNECT, Reason.TLS})
_DNS_FAILURES = frozenset({Reason.DNS_TEMPORARY, Reason.DNS_NXDOMAIN})
#: What becomes of requests where the uplink goes away, before they were sent or after.
_UPLINK_FAILURES = CONNECTION_FAILURES | {
    Reason.TIMEOUT_READ,
    Reason.TIMEOUT_TOTAL,
    Reason.DISCONNECTED,
    Reason.PAYLOAD_TRUNCATED,
}
#: Seconds. An uplink that has not come back by then is there, and the hosts are gone. Nor is a
#: name that was there gone because a resolver says so for some minutes.
LONGEST_OUTAGE = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How long breakers stay open, and how many strikes in a row end one."""

    backoff_base: timedelta = timedelta(seconds=10)
    backoff_max: timedelta = timedelta(hours=1)
    max_failures: int = 5
    auto_throttle: bool = True

    def in_haste(self) -> Self:
        """Return the policy for a host that nothing else of the crawl waits for: short rests."""
        return replace(self, backoff_base=self.backoff_base / _HASTE)

    def rest(self, failures: int, *, retry_after: float | None = None) -> float:
        """Return the seconds of rest after that many failures in a row.

        *retry_after* is what the host asked for, in seconds; it doubles too where the host fails
        again after it, for it was not enough.
        """
        # Zero seconds, or a date that has passed, asks for nothing.
        base = timedelta(seconds=retry_after) if retry_after else self.backoff_base
        longest = self.backoff_max
        return backoff(max(failures, 1), base=min(base, longest), ceiling=longest).total_seconds()


#: By the default the four rests of a port that refuses take 7.5 s then, and 150 s else: a
#: server that is being started again is there by then.
_HASTE = 20


@dataclass(slots=True, kw_only=True)
class Breaker:
    """The breaker itself: it opens at a fault and closes at a good answer."""

    state: State = State.CLOSED
    failures: int = 0  #: in a row: the faults that have opened it
    failing_since: float | None = None  #: when the first of them was
    until: float | None = None  #: the end of its rest
    opened_at: float = float("-inf")

    def at(self, now: float) -> State:
        """Return the state at a time."""
        if self.state is State.OPEN and (self.until is None or now >= self.until):
            self.on(Event.RESTED)
        return self.state

    def on(self, event: Event) -> None:
        """Change the state as the table says."""
        self.state = TABLE.get((self.state, event), self.state)

    def is_counted(self, sent: float) -> bool:
        """Return whether a request that failed was sent before the opening.

        Requests that were under way together fail together, and that is one fault.
        """
        return sent <= self.opened_at

    def open(self, *, now: float, until: float, last: bool = False) -> None:
        """Open at a fault; where it is the *last* strike, the breaker is dead."""
        self.failures += 1
        self.opened_at = now
        if self.failing_since is None:
            self.failing_since = now
        self.until = until if self.until is None else max(self.until, until)
        self.on(Event.LAST_STRIKE if last else Event.FAULT)

    def close(self) -> None:
        """Close at a good answer: the row of failures has ended."""
        self.on(Event.ANSWERED)
        self.failures = 0
        self.failing_since = self.until = None


# --- origins

#: A name that never had an address, or a port that never answered beside one that
#: does: another attempt tells a passing mistake, and waiting for longer tells no more.
_FEW_FAILURES = 2
#: A longer URL is not worth keeping with its host.
_LONGEST_GOOD_URL = 500
#: Bytes. A larger page is asked for once more only where no other is known.
_LARGEST_GOOD_PAGE = 64 * 1024
#: So many pages that are refused for the first time, and nothing answered between, show a limit.
_MANY = 3
#: Seconds: the longest rest of a new host before its good page is asked.
_SHORT_REST = 5.0
#: So many refused pages are remembered, the last ones.
_REMEMBERED = 10_000


@dataclass(slots=True)
class _Mark:
    """A page that was refused (429, or 503 with Retry-After)."""

    at: float
    own: bool = False  #: another page was answered meanwhile: the next refusal costs an attempt


Marks = OrderedDict[bytes, _Mark]
"""The refused pages of one process, by task; they outlive the lease of their host."""


@dataclass(slots=True)
class _Probe:
    """Pages were refused at an origin that seemed well: a known good page is to tell why."""

    since: float
    sent: float  #: when the first refused page was sent
    rested: bool  #: whether the host rests before the good page is asked
    mixed: bool  #: whether the origin has answered what was sent after that
    pages: dict[bytes, bool] = field(default_factory=dict)  #: whether refused for the first time
    retry_after: float = 0.0  #: the longest that one of them asked for


@dataclass(slots=True, kw_only=True)
class Origin(Breaker):
    """The breaker of one scheme of a host: `https://example.com` beside `http://example.com`.

    The ledger keeps it with its host, but for `state`, which follows from the rest, and
    what one owner alone needs.
    """

    nameless: int = 0  #: how many failures said that its name, which had an address, has none
    good_at: float | None = None  #: when the last request was sent that was answered well
    resolved: bool = False  #: whether its name had an address, in this crawl
    good_url: str | None = None  #: a page that was answered well: the probe
    given_up: Reason | None = None  #: why its waiting tasks were ignored, if they were
    probe: _Probe | None = None
    cleared: bool = False  #: whether a probe for refused pages was answered

    def __post_init__(self) -> None:
        """Begin with the state that follows from what the ledger has kept."""
        if self.given_up is not None:
            self.state = State.DEAD
        elif self.failures:
            self.state = State.OPEN
            self.opened_at = self.failing_since or self.opened_at

    @property
    def strikes(self) -> int:
        """The failures that may end it: a resolver's mistakes shorten the way of no others."""
        return self.failures - self.nameless

    def learned(self, url: str | None, *, size: int) -> None:
        """Note a page of *size* bytes that was answered well, and that anyone may ask for again."""
        if url is None or len(url) > _LONGEST_GOOD_URL:
            return
        if size <= _LARGEST_GOOD_PAGE or self.good_url is None:
            self.good_url = url

    def answered(self, marks: Marks, *, sent: float, delay: float) -> bool:
        """Note a good answer; return whether a limit of the host is likely all the same.

        An answer to a request that was sent before the breaker opened closes nothing. *delay* is
        the host's: a host that has one has shown a limit.
        """
        self.resolved = True
        self.good_at = sent if self.good_at is None else max(self.good_at, sent)
        probe, limited = self.probe, False
        if probe is not None:
            if sent < probe.since:
                probe.mixed = probe.mixed or sent > probe.sent
                return False
            self.probe, self.cleared = None, True
            limited = _shows_a_limit(probe, delay)
            for page in () if limited else probe.pages:
                if page in marks:
                    marks[page].own = True
        elif self.state is State.CLOSED or (self.state is not State.DEAD and self.is_counted(sent)):
            return False
        self.close()
        self.nameless, self.given_up = 0, None
        return limited

    def refused(
        self,
        marks: Marks,
        page: bytes,
        *,
        url: str,
        sent: float,
        now: float,
        retry_after: float | None,
        may_probe: bool,
        is_new: bool = False,
    ) -> Cause | None:
        """Return the cause of a refusal (429, or 503 with Retry-After); None: a probe will tell.

        The page is to blame where another page was answered since its last refusal. For
        `Cause.ORIGIN` the caller calls `fault`. An origin that is *new* has the short rest that it
        asks for before the probe: if it limits its requests, it would refuse the probe as well.
        """
        self.resolved = True
        before = marks.pop(page, None)
        mark = marks[page] = _Mark(now)
        if len(marks) > _REMEMBERED:
            marks.popitem(last=False)
        # What was known of a page before the origin opened is void.
        known = before if before is not None and before.at >= self.opened_at else None
        if known is not None and known.own:
            mark.own = True
            return Cause.PAGE
        if self.state is State.DEAD or self.is_counted(sent):
            return Cause.ORIGIN
        if may_probe and not self.failures and self.good_url not in (None, url):
            if self.probe is None:
                short = retry_after is not None and 0 < retry_after <= _SHORT_REST
                rested = is_new and short and not self.cleared
                mixed = self.good_at is not None and self.good_at > sent
                self.probe = _Probe(now, sent, rested, mixed)
                self.on(Event.REFUSED)
            self.probe.pages.setdefault(page, before is None)
            self.probe.retry_after = max(self.probe.retry_after, retry_after or 0.0)
            return None
        if known is not None and self.good_at is not None and self.good_at > known.at:
            mark.own = True
            return Cause.PAGE
        return Cause.ORIGIN

    def fault(
        self,
        reason: Reason,
        *,
        sent: float,
        now: float,
        policy: Policy,
        jitter: float = 0.0,
        retry_after: float | None = None,
        named: bool = False,
        beside: bool = False,
    ) -> int:
        """Open; return the number of faults: 0 for what was under way with one that counts.

        *jitter* is a part of the rest that is added, so that the processes of many crawls do not
        come back at once. *named* says that the host's name had an address, and *beside* that the
        host's other origin answers.
        """
        if self.is_counted(sent):
            rest = policy.rest(self.failures, retry_after=retry_after) if retry_after else 0.0
            self.until = max(self.until or now, now + _jittered(rest, jitter, policy))
            return 0
        earlier = 0
        if (probe := self.probe) is not None:
            # The pages that were refused before have asked for it as well.
            self.probe, retry_after = None, max(probe.retry_after, retry_after or 0.0) or None
            # A rest that was not enough: the refused pages were the first fault.
            earlier = int(probe.rested and reason is Reason.HTTP_STATUS)
            self.failures += earlier
        lost_name = reason in _DNS_FAILURES and (named or self.resolved)
        self.nameless += lost_name
        self.resolved = self.resolved or reason not in _DNS_FAILURES
        rest = policy.rest(self.failures + 1, retry_after=retry_after)
        last = self._is_last(reason, lost_name=lost_name, now=now, policy=policy, beside=beside)
        self.open(now=now, until=now + _jittered(rest, jitter, policy), last=last)
        if last and self.given_up is None:
            gone = reason is Reason.DNS_NXDOMAIN
            self.given_up = reason if gone else Reason.HOST_UNREACHABLE
        return 1 + earlier

    def _is_last(
        self, reason: Reason, *, lost_name: bool, now: float, policy: Policy, beside: bool
    ) -> bool:
        failures, most = self.failures + 1, policy.max_failures
        if lost_name:
            since = now if self.failing_since is None else self.failing_since
            return failures >= most and now - since >= LONGEST_OUTAGE
        closed = reason is Reason.DNS_NXDOMAIN or (beside and reason in PAST_THE_NAME)
        if closed and self.good_at is None:
            most = min(most, _FEW_FAILURES)
        return self.strikes + 1 >= most


def _jittered(rest: float, jitter: float, policy: Policy) -> float:
    return min(rest * (1 + jitter), policy.backoff_max.total_seconds())


def _shows_a_limit(probe: _Probe, delay: float) -> bool:
    """Return whether a limit of the host is likely, even if the good page was answered.

    A host that has reached its limit refuses all that it is asked for, and may answer again a
    moment later. But that is said once of a page, or some would never pay.
    """
    first = sum(probe.pages.values())
    # After a rest it does in any case.
    many = _MANY - probe.rested
    return first > 0 and (delay > 0 or (first >= many and not probe.mixed))


# --- the pace of a host

#: The adaptive delay: never more than this, and no less than the first step when it begins.
LONGEST_DELAY = 60.0
_FIRST_DELAY = 0.5
#: A delay under this is none.
_SHORTEST_DELAY = _FIRST_DELAY / 8
#: The part of a delay that is left after a success. A host that allows so many
#: requests in a time is over its limit once in some 140 requests that way.
_RECOVERY = 0.995
#: Pages that fail by themselves do not slow a host down further than this.
LONGEST_FOR_PAGES = 2.0
#: Seconds. A response slower than this means that the host is overloaded.
SLOW_ANSWER = 5.0
_PAGES_A_STEP = 10
#: So many requests at once, however fast the answers are, until so many pages are finished.
_FEW = 3
FIRST_PAGES = 24
#: Seconds. Such an answer is fast, however much faster others were.
_FAST = 0.1
#: A slower one may take so many times as long as the fastest, and no longer than this.
_AS_FAST = 2.0
_LONGEST_FAST = 1.0


def followed(delay: float, latency: float) -> float:
    """Return the delay after an answer that took *latency* seconds."""
    if latency > max(SLOW_ANSWER, delay):
        # Up to one request a latency, which is one at a time, and no further:
        # there may be nothing wrong with the host but that it is slow.
        return min(max(delay * 2, _FIRST_DELAY), latency, LONGEST_DELAY)
    # Not faster for a host that answers slower than its delay: it would forget
    # each 429 at the first success, and its delay would never grow.
    recovered = delay * _RECOVERY
    return recovered if recovered >= _SHORTEST_DELAY else 0.0


def slowed(delay: float, *, policy: Policy, longest: float = LONGEST_DELAY) -> float:
    """Return the delay of a host that is asked too much: it doubles.

    A delay is a short rest, so none is longer than the policy's longest rest.
    """
    longest = min(longest, policy.backoff_max.total_seconds())
    if not policy.auto_throttle or delay >= longest:
        return delay
    return min(delay * 2 or _FIRST_DELAY, longest)


def longest_delay(status: int | None, retry_after: float | None) -> float:
    """Return the longest delay that a refusal may bring."""
    if status == 429 or not retry_after:
        return LONGEST_DELAY
    # Unlike 429, 503 may have nothing to do with us: a server that is away for some
    # seconds now and then, however slowly asked, asks for no longer delay.
    return min(max(2 * retry_after, _FIRST_DELAY), LONGEST_DELAY)


@dataclass(slots=True)
class SlowStart:
    """The requests at once that a new host gets: one, and more as it answers (as TCP's slow start).

    Each fast answer brings one more; where the host is slow, ten pages do. Until some pages are
    finished they are few all the same: a host that limits its requests refuses all that are under
    way.
    """

    fastest: float = float("inf")  #: the seconds that its fastest answer took
    steps: int = 0  #: answers that were fast

    def answered(self, *, latency: float) -> None:
        """Note an answer that came after *latency* seconds."""
        self.fastest = min(self.fastest, latency)
        if latency <= max(_FAST, min(_AS_FAST * self.fastest, _LONGEST_FAST)):
            self.steps += 1

    def failed(self) -> None:
        """Note that the host has failed: its capacity is to be found out anew."""
        self.steps = 0

    def window(self, *, finished: int) -> int:
        """Return how many requests at once are allowed after *finished* pages."""
        window = 1 + finished // _PAGES_A_STEP + self.steps
        return min(window, _FEW) if finished < FIRST_PAGES else window


# --- proxies

#: So many failures in a row, which another proxy has not, are no chance.
_TOLERATED = 3


@dataclass(slots=True, kw_only=True)
class ProxyBreaker(Breaker):
    """The breaker of one proxy; one that is dead rests as well, and is asked again after that."""

    why: str = ""  #: what was wrong the last time
    has_worked: bool = False  #: once in this process

    @property
    def ready_at(self) -> float:
        """The end of its rest."""
        return float("-inf") if self.until is None else self.until

    @property
    def is_dead(self) -> bool:
        """Whether nobody should wait for it any more."""
        return self.state is State.DEAD

    @property
    def is_proven(self) -> bool:
        """Whether it has worked, and not failed since."""
        return self.has_worked and not self.failures

    def answered(self) -> None:
        """Note that a server was reached by it."""
        if self.failures:
            self.close()
        self.has_worked = True

    def fault(self, why: str, *, now: float, policy: Policy) -> bool:
        """Open for a failure of its own; return whether it counts: during a rest none does."""
        if now < self.ready_at:
            return False
        self.why = why
        last = self.failures + 1 >= policy.max_failures
        self.open(now=now, until=now + policy.rest(self.failures + 1), last=last)
        return True

    def strike(self, why: str, *, now: float, policy: Policy) -> bool:
        """Note that another proxy got through with the same; the third time in a row is a fault.

        Return whether the breaker has opened.
        """
        if now < self.ready_at or self.failures + 1 >= _TOLERATED:
            return self.fault(why, now=now, policy=policy)
        self.why = why
        self.failures += 1
        if self.failing_since is None:
            self.failing_since = now
        return False

    def refuse(self, why: str, *, now: float, policy: Policy) -> None:
        """Note that it refuses us (407): waiting will not change that, so it is dead at once."""
        self.why, self.has_worked, self.failing_since = why, False, now
        self.failures = max(policy.max_failures - 1, self.failures)
        self.open(now=now, until=now + policy.rest(self.failures + 1), last=True)

    def is_lost(self, *, now: float) -> bool:
        """Return whether a crawl that has only such proxies is to end.

        One that has worked may be away because our own uplink is: as hosts then do, it has an hour.
        """
        if self.state is not State.DEAD or self.failing_since is None:
            return False
        return not self.has_worked or now - self.failing_since >= LONGEST_OUTAGE


# --- the uplink

#: Seconds without any answer: a request that was under way may have failed for that.
_SILENCE = 2.0
#: So many other hosts must have answered before, to be asked.
_SEVERAL = 2
#: So many good pages are remembered, of the hosts that answered last.
_GOOD_PAGES = 5
#: Seconds after a check in which none is made: less than any rest, or an uplink that goes away
#: right then would count as several failures.
_CHECKED = 1.0
#: Seconds between two checks while it is open: twice the last pause, up to the longest.
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 8.0


class Uplink:
    """The breaker of our own network, as one process sees it.

    A request that fails while no host at all answers has two explanations, and the failure alone
    cannot tell them apart. So good pages of other hosts are asked again: where one answers, the
    failure belongs to its origin or page; else nothing counts until one does.
    """

    def __init__(self) -> None:
        self.breaker = Breaker()
        self._answered_at = float("-inf")  #: when a host answered last
        self._silent_until = float("-inf")  #: when the last silence ended
        self._back_at = float("-inf")  #: when the last outage ended
        self._checked_until = float("-inf")
        #: By host and scheme, for a port that is silent says nothing of another one's.
        self._good_pages: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._deferred: OrderedDict[bytes, None] = OrderedDict()  #: pages deferred for a silence

    @property
    def is_blocked(self) -> bool:
        """Whether no tasks are to be begun with."""
        return self.breaker.state not in (State.CLOSED, State.DEAD)

    @property
    def good_pages(self) -> list[tuple[str, str]]:
        """Pairs of a host and a URL of it that was answered before; the last one first."""
        return [(host, url) for (host, _), url in reversed(self._good_pages.items())]

    def learned(self, host: str, url: str) -> None:
        """Note a page that was answered well in this crawl, if by another process."""
        key = host, scheme_of(url)
        self._good_pages[key] = url
        self._good_pages.move_to_end(key)
        if len(self._good_pages) > _GOOD_PAGES:
            self._good_pages.popitem(last=False)

    def answered(self, *, now: float) -> None:
        """Note that any host answered, whatever it said."""
        if now - self._answered_at > _SILENCE:
            self._silent_until = now
        self._answered_at = now
        breaker = self.breaker
        if breaker.state is State.CLOSED:
            return
        if breaker.state in (State.OPEN, State.HALF_OPEN):
            self._back_at = now  # what was lost while it was dead counts
        breaker.close()
        self._checked_until = now + _CHECKED

    def failed(
        self,
        host: str,
        reason: Reason,
        *,
        sent: float,
        now: float,
        page: bytes | None = None,
    ) -> Cause | None:
        """Return whether a failure counts: ORIGIN; or UPLINK: it does not; None: ask after a check.

        The breaker is CHECKING then, and the good pages are to be asked. A failure counts
        where any host answered while it was under way, and in a crawl where no other host ever
        did. What was sent before an outage had ended may have been lost in it. A *page* that would
        pay for a silence that is over, and was not checked, is deferred once.
        """
        state = self.breaker.state
        if reason not in _UPLINK_FAILURES or state is State.DEAD:
            return Cause.ORIGIN
        if sent < self._back_at or state in (State.OPEN, State.HALF_OPEN):
            return Cause.UPLINK
        if state is State.CHECKING:
            return None
        several = len({other for other, _ in self._good_pages} - {host}) >= _SEVERAL
        answered = sent < self._answered_at and now - self._answered_at < _SILENCE
        if several and not answered and now >= self._checked_until:
            self.breaker.on(Event.SILENCE)
            return None
        in_silence = several and sent < self._silent_until
        if page is None or not in_silence or page in self._deferred:
            return Cause.ORIGIN
        self._deferred[page] = None
        if len(self._deferred) > _REMEMBERED:
            self._deferred.popitem(last=False)
        return Cause.UPLINK

    def unanswered(self, *, now: float) -> float | None:
        """Note that no good page was answered; return the seconds until they are asked again.

        None: after an hour they are not.
        """
        breaker = self.breaker
        since = breaker.failing_since
        pause = min(_FIRST_PAUSE * (1 << min(breaker.failures, 10)), _LONGEST_PAUSE)
        last = since is not None and now - since >= LONGEST_OUTAGE
        breaker.at(now)
        breaker.open(now=now, until=now + pause, last=last)
        return None if last else pause
