"""Circuit breaker for an origin, a proxy, or this machine's own uplink (Nygard, "Release It!").

Its state follows from its fields; the guide on politeness has the diagram.

    state      what may be asked       what ends it
    closed     all, at its pace        fault: open; last strike: dead; a page gets 429 and another
                                       is known good: half-open; silence (uplink alone): checking
    checking   known good pages        good answer: closed; fault, for none came: open
    open       nothing                 end of its rest: half-open; good answer: closed; last: dead
    half-open  a good page, else next  good answer: closed; fault or 429: open; last strike: dead
    dead       nothing of an origin    good answer: closed; so does `retry-failed` with an origin

Synchronous and without I/O. Times are seconds of one clock that runs forward: the ledger's for
origins, which several processes ask in turn, and the monotonic clock for proxies and the uplink.
"""

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, Self

from crawlcw.errors import FetchError, Reason
from crawlcw.model.retry import backoff


class Cause(StrEnum):
    """The part that a failed attempt belongs to; only PAGE costs the page an attempt."""

    PAGE = "page"
    ORIGIN = "origin"
    PROXY = "proxy"
    UPLINK = "uplink"


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
#: Failures of requests where the uplink goes away, before they were sent or after.
_UPLINK_FAILURES = CONNECTION_FAILURES | {
    Reason.TIMEOUT_READ,
    Reason.TIMEOUT_TOTAL,
    Reason.DISCONNECTED,
    Reason.PAYLOAD_TRUNCATED,
}
#: Seconds. An uplink that has not come back by then is there, and the hosts are gone. Nor is a
#: name that was there gone because a resolver says so for some minutes.
LONGEST_OUTAGE = 3600.0
#: So many are remembered of whatever a process remembers, the last ones.
_REMEMBERED = 10_000
#: The rests of a port that refuses take 7.5 s by the defaults then, and 150 s else: a server that
#: is being started again is there by then.
_HASTE = 20
#: This part of a rest is added at the most, or many crawls would come back at once.
_JITTER = 0.1


def remember(
    known: OrderedDict[Any, Any], key: object, value: object, *, limit: int = _REMEMBERED
) -> None:
    """Keep a value by its key, as the last one of a bounded number."""
    known[key] = value
    known.move_to_end(key)
    if len(known) > limit:
        known.popitem(last=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How long breakers stay open, and how many strikes in a row end one."""

    backoff_base: timedelta = timedelta(seconds=10)
    backoff_max: timedelta = timedelta(hours=1)
    max_failures: int = 5
    auto_throttle: bool = True
    throttle_statuses: frozenset[int] = frozenset({429})  #: answers that ask to slow down

    def in_haste(self) -> Self:
        """Return the policy for a host that nothing else of the crawl waits for: short rests."""
        return replace(self, backoff_base=self.backoff_base / _HASTE)

    def rest(
        self, failures: int, *, retry_after: float | None = None, chance: float = 0.0
    ) -> float:
        """Return the seconds of rest after that many failures in a row.

        *retry_after* is the rest that the host asked for, in seconds; it doubles too where it fails
        again after it. *chance* is in [0, 1).
        """
        # Zero seconds, or a date that has passed, asks for nothing.
        base = timedelta(seconds=retry_after) if retry_after else self.backoff_base
        longest = self.backoff_max
        rest = backoff(failures, base=min(base, longest), ceiling=longest)
        return min(rest * (1 + _JITTER * chance), longest).total_seconds()


@dataclass(slots=True, kw_only=True)
class Breaker:
    """The breaker itself: it opens at a fault, for a rest, and closes at a good answer.

    Once it has rested it is half-open: one question tells more.
    """

    failures: int = 0  #: in a row: the faults that have opened it; 0: it is closed
    failing_since: float | None = None  #: when the first of them was
    until: float | None = None  #: the end of its rest
    opened_at: float = float("-inf")

    def open(self, *, now: float, rest: float, faults: int = 1) -> None:
        """Open at a fault, or as many at once."""
        self.failures += faults
        self.opened_at = now
        if self.failing_since is None:
            self.failing_since = now
        self.until = max(self.until or now, now + rest)

    def close(self) -> None:
        """Close at a good answer: the row of failures has ended."""
        self.failures = 0
        self.failing_since = self.until = None


# --- origins

#: A name that never had an address, or a port that never answered beside one that
#: does: another attempt tells a passing mistake, and waiting for longer tells no more.
_FEW_FAILURES = 2
#: A longer URL is not worth keeping with its host.
_LONGEST_PROBE_PAGE = 500
#: Bytes. A larger page is asked for once more only where no other is known.
_LARGEST_PROBE_PAGE = 64 * 1024
#: The most pages of an origin that share its probes.
_PROBE_PAGES = 8
#: So many pages that are refused for the first time before a good page is asked show a limit.
_MANY = 3
#: Seconds: the longest rest before the first good page is asked.
_SHORT_REST = 5.0


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
    rested: bool  #: the host rests before the good page is asked
    pages: dict[bytes, bool] = field(default_factory=dict)  #: whether refused for the first time
    retry_after: float = 0.0  #: the longest that one of them asked for

    def shows_a_limit(self, delay: float) -> bool:
        """Return whether a limit of the host is likely, even if the good page was answered.

        A host that has reached its limit refuses all that it is asked for, and may answer again a
        moment later. But that is said once of a page, or some would never pay. A host that has a
        *delay* has shown a limit.
        """
        first = sum(self.pages.values())
        # After a rest it does in any case.
        return first >= (1 if delay else _MANY - self.rested)


@dataclass(slots=True, kw_only=True)
class Origin(Breaker):
    """The breaker of one scheme of a host: `https://example.com` beside `http://example.com`.

    The ledger keeps it with its host, but for what one owner alone needs.
    """

    unresolved: int = 0  #: how many failures said that its name, which had an address, has none
    good_at: float | None = None  #: when the last request was sent that was answered well
    resolved: bool = False  #: whether its name had an address, in this crawl
    #: Pages that were answered well, the latest last, and how many probes each has answered.
    probes: dict[str, int] = field(default_factory=dict)
    given_up: Reason | None = None  #: why its waiting tasks were ignored, if they were: it is dead
    probe: _Probe | None = None
    cleared: bool = False  #: whether a probe for refused pages was answered
    has_refused: bool = False  #: whether it has answered, if only to refuse pages

    def __post_init__(self) -> None:
        """Begin as the ledger has kept it."""
        if self.failing_since is not None:
            self.opened_at = self.failing_since

    @property
    def is_closed(self) -> bool:
        """Whether all its pages may be asked for."""
        return not (self.failures or self.given_up or self.probe or self.until)

    def sent_before_opening(self, sent: float) -> bool:
        """Return whether a request that failed was sent before the opening.

        Requests that were under way together fail together, and that is one fault.
        """
        return sent <= self.opened_at

    def learned(self, url: str, *, size: int) -> None:
        """Note a page of *size* bytes that was answered well, and that anyone may ask for again."""
        if len(url) <= _LONGEST_PROBE_PAGE and (size <= _LARGEST_PROBE_PAGE or not self.probes):
            self.probes[url] = 0
            if len(self.probes) > _PROBE_PAGES:
                del self.probes[next(iter(self.probes))]

    @property
    def probe_page(self) -> str | None:
        """The page to ask for as the next probe, the one that was asked for the least."""
        return min(reversed(self.probes), key=self.probes.__getitem__, default=None)

    def answered(self, marks: Marks, *, sent: float, delay: float) -> bool:
        """Note a good answer; return whether a limit of the host, which has a *delay*, is likely.

        An answer to a request that was sent before the breaker opened closes nothing.
        """
        self.resolved = True
        self.good_at = sent if self.good_at is None else max(self.good_at, sent)
        probe, limited = self.probe, False
        if probe is not None:
            if sent < probe.since:
                return False
            self.probe, self.cleared, limited = None, True, probe.shows_a_limit(delay)
            for page in () if limited else probe.pages:
                if page in marks:
                    marks[page].own = True
        elif self.given_up is None and (not self.failures or self.sent_before_opening(sent)):
            return False
        self.close()
        self.unresolved, self.given_up = 0, None
        return limited

    def throttled(
        self,
        marks: Marks,
        page: bytes,
        error: FetchError,
        *,
        url: str,
        sent: float,
        now: float,
        may_probe: bool,
        is_new: bool = False,
    ) -> Cause | None:
        """Return the cause of a refusal (429, or 503 with Retry-After); None: a probe will tell.

        The page is to blame where another page was answered since its last refusal. For
        `Cause.ORIGIN` the caller calls `fault`. A host that is *new* has the short rest that it
        asks for before the probe: if it limits its requests, it would refuse the probe as well.
        """
        self.resolved = True
        before, mark = marks.get(page), _Mark(now)
        remember(marks, page, mark)
        # The mark of a page from before the origin opened is void.
        known = before if before is not None and before.at >= self.opened_at else None
        if known is not None and known.own:
            mark.own = True
            return Cause.PAGE
        if self.given_up is not None or self.sent_before_opening(sent):
            return Cause.ORIGIN
        if may_probe and not self.failures and self.probe_page not in (None, url):
            if self.probe is None:
                short = 0 < (error.retry_after or 0) <= _SHORT_REST
                self.probe = _Probe(now, rested=is_new and short and not self.cleared)
            self.probe.pages.setdefault(page, before is None)
            self.probe.retry_after = max(self.probe.retry_after, error.retry_after or 0.0)
            return None
        if known is not None and self.good_at is not None and self.good_at > known.at:
            mark.own = True
            return Cause.PAGE
        return Cause.ORIGIN

    def fault(
        self,
        error: FetchError,
        *,
        sent: float,
        now: float,
        policy: Policy,
        chance: float = 0.0,
        named: bool = False,
        other_answers: bool = False,
    ) -> int:
        """Open; return the number of faults: 0 for a request beside one that counts.

        *chance* is `Policy.rest`'s. *named* says that the host's name had an address,
        *other_answers* that its other origin answers.
        """
        reason, asked, faults = error.underlying, error.retry_after, 1
        self.has_refused = self.has_refused or reason is Reason.HTTP_STATUS
        if self.sent_before_opening(sent):
            more = policy.rest(self.failures, retry_after=asked, chance=chance) if asked else 0.0
            self.until = max(self.until or now, now + more)
            return 0
        if (probe := self.probe) is not None:
            # The pages that were refused before have asked for it as well; and where their rest was
            # not enough, they were the first fault.
            self.probe, asked = None, max(probe.retry_after, asked or 0.0)
            faults += probe.rested and reason is Reason.HTTP_STATUS
        failures, most = self.failures + faults, policy.max_failures
        if reason in _DNS_FAILURES and (named or self.resolved):
            # A resolver's mistakes shorten the way of no other failures.
            self.unresolved += 1
            since = now if self.failing_since is None else self.failing_since
            last = failures >= most and now - since >= LONGEST_OUTAGE
        else:
            closed = reason is Reason.DNS_NXDOMAIN or (other_answers and reason in PAST_THE_NAME)
            # A port that refuses pages (429) is no closed one.
            if closed and self.good_at is None and not self.has_refused:
                most = min(most, _FEW_FAILURES)
            last = failures - self.unresolved >= most
        self.resolved = self.resolved or reason not in _DNS_FAILURES
        rest = policy.rest(failures, retry_after=asked, chance=chance)
        self.open(now=now, rest=rest, faults=faults)
        if last and self.given_up is None:
            gone = reason is Reason.DNS_NXDOMAIN
            self.given_up = reason if gone else Reason.HOST_UNREACHABLE
        return faults


# --- proxies


@dataclass(slots=True, kw_only=True)
class ProxyBreaker(Breaker):
    """The breaker of one proxy; one that is dead rests as well, and is asked again after that."""

    why: str = ""  #: the last failure
    has_worked: bool = False  #: once in this process
    is_dead: bool = False  #: whether no request is to wait for it any more

    @property
    def ready_at(self) -> float:
        """The end of its rest."""
        return float("-inf") if self.until is None else self.until

    @property
    def is_proven(self) -> bool:
        """Whether it has worked, and not failed since."""
        return self.has_worked and not self.failures

    def answered(self) -> None:
        """Note that a server was reached by it."""
        self.close()
        self.has_worked, self.is_dead = True, False

    def fault(
        self, why: str, *, now: float, policy: Policy, tolerated: int = 1, for_good: bool = False
    ) -> bool:
        """Note a failure; return whether it has opened: during a rest none counts.

        Of failures that may be chance the last one *tolerated* in a row is a fault. One that is
        *for good* (407) will not change by waiting: the proxy is dead at once.
        """
        if now < self.ready_at:
            return False
        self.why = why
        if for_good:
            self.has_worked, self.failures = False, max(self.failures, policy.max_failures - 1)
        elif self.failures + 1 < tolerated:
            self.failures += 1
            return False
        self.open(now=now, rest=policy.rest(self.failures + 1))
        self.is_dead = self.failures >= policy.max_failures
        return True

    def is_lost(self, *, now: float) -> bool:
        """Return whether a crawl that has only such proxies is to end.

        One that has worked may be away because our own uplink is: as hosts then do, it has an hour.
        """
        if not self.is_dead or self.failing_since is None:
            return False
        return not self.has_worked or now - self.failing_since >= LONGEST_OUTAGE


# --- the uplink

#: Seconds without any answer: a request that was under way may have failed for that.
_SILENCE = 2.0
#: So many other hosts must have answered before, to be asked.
_SEVERAL = 2
#: So many good pages are remembered, of the hosts that answered last.
_GOOD_PAGES = 5
#: Seconds after a check in which none is made: less than a rest, or an uplink that goes away right
#: then would count as several failures. Only the rests of `Policy.in_haste` may be shorter.
_CHECKED = 1.0
#: Seconds between two checks while it is open: twice the last pause, up to the longest.
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 8.0


@dataclass(slots=True, kw_only=True)
class Uplink(Breaker):
    """The breaker of our own network, as one process sees it: dead where it fails, not blocked.

    A request that fails while no host at all answers has two explanations, and the failure alone
    cannot tell them apart. So good pages of other hosts are asked again: where one answers, the
    failure belongs to its origin or page; else nothing counts until one does.
    """

    is_blocked: bool = False  #: no tasks are to be begun with: good pages are asked
    good_pages: OrderedDict[str, str] = field(default_factory=OrderedDict)
    """A URL that was answered before, by host; the last one is last."""
    answered_at: float = float("-inf")  #: when a host answered last
    silent_until: float = float("-inf")  #: when the last silence ended
    back_at: float = float("-inf")  #: when the last outage ended
    checked_until: float = float("-inf")
    deferred: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    """Pages that were deferred for a silence."""

    def learned(self, host: str, url: str) -> None:
        """Note a page that was answered well in this crawl, if by another process."""
        remember(self.good_pages, host, url, limit=_GOOD_PAGES)

    def answered(self, *, now: float) -> bool:
        """Note that any host answered, whatever it said; return whether tasks waited for that."""
        if now - self.answered_at > _SILENCE:
            self.silent_until = now
        self.answered_at = now
        was_blocked, self.is_blocked = self.is_blocked, False
        if was_blocked and self.failures:
            self.back_at = now  # requests that were lost while it was dead count
        if was_blocked or self.failures:
            self.close()
            self.checked_until = now + _CHECKED
        return was_blocked

    def failed(
        self, host: str, reason: Reason, *, began: float, now: float, page: bytes | None = None
    ) -> Cause | None:
        """Return whether a failure counts: ORIGIN; or UPLINK: it does not; None: ask after a check.

        The breaker is blocked then, and the good pages are to be asked. A failure counts
        where any host answered while it was under way, and in a crawl where no other host ever
        did. A request sent before the end of an outage may be lost in it. A *page* that would
        pay for a silence that is over, and was not checked, is deferred once.
        """
        is_dead = self.failures > 0 and not self.is_blocked
        if reason not in _UPLINK_FAILURES or is_dead:
            return Cause.ORIGIN
        if began < self.back_at or self.failures:
            return Cause.UPLINK
        if self.is_blocked:
            return None
        several = len(self.good_pages.keys() - {host}) >= _SEVERAL
        answered = began < self.answered_at and now - self.answered_at < _SILENCE
        if several and not answered and now >= self.checked_until:
            self.is_blocked = True
            return None
        in_silence = several and began < self.silent_until
        if page is None or not in_silence or page in self.deferred:
            return Cause.ORIGIN
        remember(self.deferred, page, None)
        return Cause.UPLINK

    def unanswered(self, *, now: float) -> float | None:
        """Note that no good page was answered; return the seconds until they are asked again.

        None: after an hour they are not.
        """
        since = now if self.failing_since is None else self.failing_since
        pause = min(_FIRST_PAUSE * (1 << min(self.failures, 10)), _LONGEST_PAUSE)
        self.open(now=now, rest=pause)
        self.is_blocked = now - since < LONGEST_OUTAGE
        return pause if self.is_blocked else None
