"""How many requests at once a host is asked for that is new here: one, and more as it answers.

As TCP's slow start does, each answer brings one more where the host is no slower for it;
where it is, or is slow by itself, ten pages do. Until some pages are finished they are few
all the same: a host that limits its requests refuses all that are under way.
"""

from dataclasses import dataclass

_PAGES_A_STEP = 10
#: So many at once, however fast the answers are, until so many pages are finished.
_FEW = 3
FIRST_PAGES = 24
#: Seconds. Such an answer is fast, however much faster others were.
_FAST = 0.1
#: A slower one may take so many times as long as the fastest, and no longer than this.
_AS_FAST = 2.0
_LONGEST = 1.0


@dataclass(slots=True)
class SlowStart:
    """What one host has shown since it was leased, or has failed."""

    fastest: float = float("inf")  #: the seconds that its fastest answer took
    steps: int = 0  #: answers that were fast

    def answered(self, *, latency: float) -> None:
        """Note an answer that came after *latency* seconds."""
        self.fastest = min(self.fastest, latency)
        if latency <= max(_FAST, min(_AS_FAST * self.fastest, _LONGEST)):
            self.steps += 1

    def failed(self) -> None:
        """Note that the host has failed: what it can bear is to be found out anew."""
        self.steps = 0

    def window(self, *, finished: int) -> int:
        """Return how many requests at once are allowed, *finished* pages of it behind us."""
        window = 1 + finished // _PAGES_A_STEP + self.steps
        return min(window, _FEW) if finished < FIRST_PAGES else window
