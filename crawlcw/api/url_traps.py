"""Detect URLs of crawler traps.

A relative link that grows its own path, a search with forty filters: every page of such a
site links to new ones, for ever. Only the URL is checked. An endless site with ordinary
URLs, such as a calendar, is limited by `max_depth`, which has no default, and
`max_pages_per_host`.
"""

from collections import Counter
from dataclasses import dataclass

from crawlcw.errors import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class TrapPolicy:
    """The settings about traps; None: no limit."""

    max_length: int | None = 2000  #: characters
    max_path_segments: int | None = 20  #: one for each slash, so empty ones count
    max_segment_repeats: int | None = 3  #: of one segment in a path, but for empty ones
    max_query_parameters: int | None = 20  #: between `&` or `;`

    def why(self, url: str) -> Reason | None:
        """Return why *url* looks like a trap, or None; *url* is a `Location.canonical`."""
        # This runs for most links of every page: nothing is split before its
        # separators were counted.
        if self.max_length is not None and len(url) > self.max_length:
            return Reason.URL_TOO_LONG
        address, _, query = url.partition("?")
        if query and self.max_query_parameters is not None:
            parameters = query.count("&") + query.count(";") + 1
            if parameters > self.max_query_parameters:
                return Reason.TRAP_QUERY_PARAMETERS
        segments = address.count("/") - 2  # those of `https://`
        if self.max_path_segments is not None and segments > self.max_path_segments:
            return Reason.TRAP_PATH_SEGMENTS
        most = self.max_segment_repeats
        if most is not None and segments > most and _repeats(address.split("/")[3:], most):
            return Reason.TRAP_REPEATED_SEGMENT
        return None


def _repeats(segments: list[str], most: int) -> bool:
    """Return whether a segment that is not empty is there more than *most* times."""
    if len(segments) - len(set(segments)) < most:
        return False
    counts = Counter(segments)
    del counts[""]
    return any(number > most for number in counts.values())
