"""Links that are not followed: how many for each reason, and a few of them to look at."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from crawlcw.model.sanitize import printable, redacted

#: So many different links are kept of each reason.
KEPT_EXAMPLES = 3

#: Reason -> the first links that were dropped for it, made printable.
Examples = Mapping[str, Sequence[str]]


@dataclass(slots=True)
class DroppedLinks:
    """Counts links that are dropped, by reason, and keeps the first few different ones."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def note(self, reason: str, link: str) -> None:
        """Count one link; *link* is what stood there, which may be any text."""
        self.counts[reason] += 1
        kept = self.examples.setdefault(reason, [])
        # A large page may have thousands: cleaning them all would cost more than sorting them.
        if len(kept) < KEPT_EXAMPLES and (example := printable(redacted(link))) not in kept:
            kept.append(example)

    def add(self, other: "DroppedLinks") -> None:
        """Count what *other* has counted."""
        self.counts.update(other.counts)
        for reason, links in other.examples.items():
            kept = self.examples.setdefault(reason, [])
            _extend(kept, links)


def merged(all_examples: Iterable[Examples]) -> dict[str, list[str]]:
    """Return the first different examples of each reason that any of them has."""
    total: dict[str, list[str]] = {}
    for examples in all_examples:
        for reason, links in examples.items():
            _extend(total.setdefault(reason, []), links)
    return total


def _extend(kept: list[str], links: Iterable[str]) -> None:
    for link in links:
        if len(kept) == KEPT_EXAMPLES:
            return
        if link not in kept:
            kept.append(link)
