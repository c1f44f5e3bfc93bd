"""Whether it is our own network that is away, and no host.

A request that fails while no host at all answers has two explanations, and the
failure alone cannot tell them apart. So hosts that answered before are asked
again: where one does, the failure belongs to its host or page; where several do
not either, nothing counts against anybody until one answers.

Synchronous and without I/O: `network_watch` asks. *now* and *sent* are seconds of
one clock that runs forward.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from crawlcw.errors import Reason
from crawlcw.model.health import CONNECTION_FAILURES
from crawlcw.model.urls import scheme_of

#: What becomes of requests where the network goes away, before they were sent or after.
_SUSPICIOUS = CONNECTION_FAILURES | {
    Reason.TIMEOUT_READ,
    Reason.TIMEOUT_TOTAL,
    Reason.DISCONNECTED,
    Reason.PAYLOAD_TRUNCATED,
}

#: Seconds without any answer in which a request that was under way may have failed for it.
_SILENCE = 2.0
#: So many other hosts must have answered before, to be asked in doubt.
_SEVERAL = 2
#: So many hosts that answered last are remembered.
_WITNESSES = 5
#: Seconds for which the failures of an origin are its own after a witness has answered.
#: Behind them the next one still is, and the one after that is in doubt again: where
#: nothing but dead hosts is left of a crawl, they must come to their end, however
#: seldom they are asked, but for what is asked less than once in `LONGEST_OUTAGE`.
_VOUCHED = 60.0
#: And for which all failures are: the witnesses are not asked more often. It is less
#: than any rest, or a network that goes away right then would count as several failures.
_ALL_VOUCHED = 1.0
#: What has not come back after so many seconds is taken for hosts that are gone.
LONGEST_OUTAGE = 3600.0
_FOR_GOOD = float("inf")


@dataclass(slots=True)
class _Vouch:
    """A witness answered while the failures of an origin were in doubt: they are its own."""

    until: float
    used: bool = False  #: whether a failure has counted since then


class Network:
    """The network as one process sees it."""

    def __init__(self, *, on_doubt: Callable[[], None] = lambda: None) -> None:
        """*on_doubt* is called when the witnesses are to be asked."""
        self._on_doubt = on_doubt
        self._answered_at = float("-inf")  #: when a host answered last
        self._witnesses: OrderedDict[tuple[str, str], str] = OrderedDict()  #: by host and scheme
        self._doubted_since: float | None = None
        self._away = False
        self._back_at = float("-inf")  #: when the last outage ended
        self._doubt_ended_at = float("-inf")
        #: Origins, as hosts and schemes: a port that is silent says nothing of another one's.
        self._suspects: set[tuple[str, str]] = set()  #: whose failures are in doubt
        self._vouched: dict[tuple[str, str], _Vouch] = {}
        self._excused: dict[tuple[str, str], float] = {}  #: until when no doubt excuses them again
        self._all_vouched_until = float("-inf")

    @property
    def in_doubt(self) -> bool:
        """Whether nothing but the witnesses is to be asked, and no failure counts."""
        return self._doubted_since is not None

    @property
    def witnesses(self) -> list[tuple[str, str]]:
        """Pairs of a host and a URL of it that was answered before; the last one first."""
        return [(host, url) for (host, _), url in reversed(self._witnesses.items())]

    def doubted_for(self, *, now: float) -> float:
        """Return for how many seconds it has been in doubt."""
        return 0.0 if self._doubted_since is None else now - self._doubted_since

    def answered(self, host: str, *, now: float, witness: str | None = None) -> None:
        """Note that *host* answered, whatever it said; *witness* is a page to ask in doubt."""
        self._end_doubt(now)
        if self._all_vouched_until == _FOR_GOOD:
            self._all_vouched_until = now
        if witness is not None:
            self.remember(host, witness)

    def remember(self, host: str, witness: str) -> None:
        """Note a page that was answered well in this crawl, if by another process."""
        # Of a host's two origins one may answer still.
        key = host, scheme_of(witness)
        self._witnesses[key] = witness
        self._witnesses.move_to_end(key)
        while len(self._witnesses) > _WITNESSES:
            self._witnesses.popitem(last=False)

    def failed(
        self,
        host: str,
        reason: Reason,
        *,
        sent: float,
        now: float,
        scheme: str = "http",
        last: bool = False,
    ) -> bool:
        """Note that a request to an origin failed; return whether that is *not* to count.

        It counts where any host answered while it was under way, and in a crawl
        where nobody else ever did: there is nobody to ask. What was sent before
        an outage had ended may have been lost in it, whatever answers since.
        *last* says that the origin would be given up for it: a witness has to
        answer right before that.
        """
        origin = host, scheme
        doubted = reason in _SUSPICIOUS and self._doubts(origin, sent=sent, now=now, last=last)
        if not doubted and (vouch := self._vouched.get(origin)):
            vouch.used = True
        return doubted

    def _doubts(self, origin: tuple[str, str], *, sent: float, now: float, last: bool) -> bool:
        if sent < self._back_at:
            return True
        if self.in_doubt:
            self._suspects.add(origin)
            return True
        if sent < self._doubt_ended_at and now >= self._excused.get(origin, 0.0):
            # An outage that was over before anybody asked the witnesses looks like this.
            self._excused = {each: until for each, until in self._excused.items() if until > now}
            self._excused[origin] = now + _VOUCHED
            return True
        if now < self._all_vouched_until or self._is_vouched(origin, now, last=last):
            return False
        if sent < self._answered_at and now - self._answered_at < _SILENCE:
            return False
        if len({other for other, _ in self._witnesses} - {origin[0]}) < _SEVERAL:
            return False
        self._doubted_since = now
        self._suspects.add(origin)
        self._on_doubt()
        return True

    def away(self) -> None:
        """Note that the witnesses do not answer either."""
        self._away = self.in_doubt

    def give_up(self, *, now: float) -> None:
        """Let all failures count until a host answers: those that did before are gone for good."""
        self._away = False  # what was lost meanwhile counts
        self.vouch(now=now)
        self._all_vouched_until = _FOR_GOOD

    def vouch(self, *, now: float) -> None:
        """Let failures count again, for a witness has answered."""
        self._vouched = {
            each: vouch
            for each, vouch in self._vouched.items()
            if vouch.until + LONGEST_OUTAGE > now
        }
        self._vouched |= {each: _Vouch(now + _VOUCHED) for each in self._suspects}
        self._all_vouched_until = now + _ALL_VOUCHED
        self._end_doubt(now)

    def _is_vouched(self, origin: tuple[str, str], now: float, *, last: bool) -> bool:
        """Return whether a failure is its origin's own, for a witness answered after the last."""
        vouch = self._vouched.get(origin)
        if vouch is None:
            return False
        if now >= vouch.until:
            del self._vouched[origin]
        # The network may have gone away since an earlier failure. That costs the origin
        # one of several, but not itself.
        return now < vouch.until + LONGEST_OUTAGE and not (last and vouch.used)

    def _end_doubt(self, now: float) -> None:
        if self._away:
            self._away, self._back_at = False, now
        self._answered_at = now
        if self.in_doubt:
            self._doubt_ended_at = now
        self._doubted_since = None
        self._suspects.clear()
