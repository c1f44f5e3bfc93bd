"""The state of a spider as its callbacks see it: `self.state`, kept from page to page.

Without a crawl, as in a test of a callback, it is a mapping in memory.
"""

import math
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

from crawlcw.errors import InvalidItemError
from crawlcw.model import values
from crawlcw.model.sanitize import printable
from crawlcw.model.spider_state import History, Page, is_number
from crawlcw.model.values import frozen

_LARGEST_INTEGER = (1 << 63) - 1


class State(MutableMapping[str, Any]):
    """The values that a spider keeps between its pages, by name; each is one that an item may have.

    A callback's change is durable before its page counts as done; a callback that raises changes
    nothing. All processes of a crawl share one state. If two pages assign one name, the later
    commit wins; what `add` counts is exact, however often a crash has a page run again. Lists and
    dictionaries that are read cannot be changed: assign another one.
    """

    def __init__(self) -> None:
        self.keep_in(History(), page=lambda: None)

    def keep_in(self, history: History, *, page: Callable[[], Page | None]) -> None:
        """Have the state of a crawl from here on; *page* returns the page whose callback runs."""
        self._history = history
        self._page = page

    def __getitem__(self, name: str) -> Any:
        self._page()
        return self._history.view[name]

    def __setitem__(self, name: str, value: Any) -> None:
        try:
            values.check({name: value})
        except InvalidItemError as error:
            raise TypeError(f"self.state cannot keep it: {error}") from None
        self._history.assign(self._page(), _checked(name), frozen(values.clean(value)))

    def __delitem__(self, name: str) -> None:
        page = self._page()
        if name not in self._history.view:
            raise KeyError(name)
        self._history.delete(page, name)

    def __iter__(self) -> Iterator[str]:
        self._page()
        return iter([*self._history.view])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def add(self, name: str, number: float = 1) -> None:
        """Add *number* to a value, 0 where there is none: exact in any number of processes.

        Raises `TypeError` for another type than a number, and `OverflowError` beyond 64 bits.
        """
        if not is_number(number) or not math.isfinite(number):
            raise TypeError(f"self.state.add() takes a number, not {printable(repr(number))}")
        page, value = self._page(), self.get(name, 0)
        if not is_number(value):
            kind = type(value).__name__
            raise TypeError(f"self.state[{printable(repr(name))}] is no number but {kind}")
        total = value + number
        if isinstance(total, int) and abs(total) > _LARGEST_INTEGER:
            raise OverflowError(f"self.state[{printable(repr(name))}] would have over 64 bits")
        self._history.add(page, _checked(name), number)

    def __repr__(self) -> str:
        return f"State({dict(self)!r})"


def _checked(name: object) -> str:
    if not isinstance(name, str):
        kind = printable(type(name).__name__)
        raise TypeError(f"a name in self.state is text, and {printable(repr(name))} is {kind}")
    return values.text(name)
