"""How many pages of a host a crawl asks for, and which hosts have had them."""

from collections.abc import Container
from dataclasses import dataclass

from crawlcw.model.hosts import Host


@dataclass(slots=True, kw_only=True)
class PageLimit:
    """The most pages of a host; the hosts that have had them are *full*."""

    most: int | None
    unlimited: Container[str]  #: hosts that it does not hold for
    full: set[str]
    #: Whether all start URLs are known: before that nobody knows the crawl's own hosts.
    seeded: bool = False

    def is_reached(self, state: Host) -> bool:
        """Return whether a host is full."""
        return self.limits(state.name) and state.finished >= (self.most or 0)

    def limits(self, name: str) -> bool:
        """Return whether the pages of a host are to be counted."""
        return self.most is not None and name not in self.unlimited
