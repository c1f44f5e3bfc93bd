"""A page's place among the requests that its host is asked at once.

It is held from the page's turn until its answer is there and has been judged. What is
done with the answer, parsing above all, keeps a fetcher and not the host's place.
"""

from collections.abc import Callable


class Slot:
    """The place of one page; it is freed once."""

    def __init__(self, on_free: Callable[[], None]) -> None:
        """*on_free* is called when the host may be asked for another page."""
        self._on_free = on_free
        self._freed = False

    def free(self) -> None:
        """Let the host's next request begin, if this place is still held."""
        if not self._freed:
            self._freed = True
            self._on_free()
