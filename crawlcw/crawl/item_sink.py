"""From what a callback yields to what is recorded: the spider's `item`, and its refusals."""

import inspect
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.spider import Spider
from crawlcw.errors import DropItem, InvalidItemError, SpiderError
from crawlcw.model.item_values import cleaned_item, is_item
from crawlcw.model.sanitize import printable
from crawlcw.model.tracebacks import text_of

#: So many reasons are told apart: a reason may have crawled text in it.
MOST_REASONS = 100
OTHER_REASONS = "other reasons"
_NOTHING_GIVEN = "item() yielded nothing"
_LONGEST_REASON = 120

Hook = Callable[[Any, Response | None], Any]


def note(counts: Counter[str], reason: str, number: int = 1) -> None:
    """Count *number* items dropped for *reason*; those of too many reasons together."""
    known = reason in counts or len(counts) < MOST_REASONS
    counts[reason if known else OTHER_REASONS] += number


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemPolicy:
    """What a spider does with the items of its callbacks."""

    hook: Hook | None = None  #: the spider's `item`, where it has its own
    drops_invalid: bool = False  #: an invalid item costs itself, and not its page

    @classmethod
    def of(cls, spider: Spider) -> Self:
        """Return what *spider* says."""
        own = type(spider).item is not Spider.item
        return cls(hook=spider.item if own else None, drops_invalid=spider.invalid_items == "item")

    @property
    def awaits(self) -> bool:
        """Whether the hook says by its form that it may wait."""
        hook = self.hook
        if hook is None:
            return False
        return inspect.iscoroutinefunction(hook) or inspect.isasyncgenfunction(hook)


class ItemSink:
    """Takes the items of one page."""

    def __init__(self, policy: ItemPolicy, response: Response | None) -> None:
        self._policy = policy
        self._response = response
        self.items: list[dict[str, Any]] = []
        self.dropped: Counter[str] = Counter()

    def take(self, thing: object) -> Awaitable[None] | None:
        """Take what a callback yielded as an item; return what is to be awaited, if anything.

        Raises `InvalidItemError`, unless such items are dropped; and whatever the hook raises.
        """
        hook = self._policy.hook
        if hook is None:
            self._keep(thing)
            return None
        try:
            result = hook(thing, self._response)
            if inspect.isawaitable(result) or isinstance(result, AsyncIterator):
                return self._awaited(result)
            self._take_result(result)
        except DropItem as told:
            self._drop(text_of(told))
        return None

    async def _awaited(self, result: Any) -> None:
        try:
            if inspect.isawaitable(result):
                result = await result
            if not isinstance(result, AsyncIterator):
                self._take_result(result)
                return
            count = 0
            async for thing in result:
                count += 1
                self._keep(thing)
            if not count:
                self._drop(_NOTHING_GIVEN)
        except DropItem as told:
            self._drop(text_of(told))

    def _take_result(self, result: object) -> None:
        """Keep what the hook returned: one item, or any number of them."""
        if result is None:
            # To forget the `return` would lose every item without a word.
            why = 'item() returned None: return the item, or raise DropItem("why")'
            self._refuse(InvalidItemError(why))
        elif is_item(result) or isinstance(result, str | bytes) or not isinstance(result, Iterable):
            self._keep(result)
        else:
            count = 0
            for thing in result:
                count += 1
                self._keep(thing)
            if not count:
                self._drop(_NOTHING_GIVEN)

    def _keep(self, thing: object) -> None:
        if isinstance(thing, Request):
            raise SpiderError("item() gave a Request: yield it in the callback")
        try:
            self.items.append(cleaned_item(thing))
        except InvalidItemError as error:
            self._refuse(error)

    def _refuse(self, error: InvalidItemError) -> None:
        if not self._policy.drops_invalid:
            raise error
        self._drop(text_of(error))

    def _drop(self, reason: str) -> None:
        note(self.dropped, printable(reason, limit=_LONGEST_REASON) or "no reason given")
