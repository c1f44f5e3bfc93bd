"""The shown spiders and use cases, with their ledgers, opened on demand."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Self

from crawlcw.dashboard.kept import Kept
from crawlcw.dashboard.observer import Observer
from crawlcw.dashboard.overview import Overview
from crawlcw.ledger.protocol import Ledger
from crawlcw.server.refused import RefusedError

#: Seconds between two reads of the list of names.
_NAMES_EVERY = 10.0


class Crawls:
    """The spiders and use cases of one ledger, closed at the end of the block."""

    def __init__(
        self,
        *,
        open_one: Callable[[str], Awaitable[Ledger]],
        recorded: Callable[[], Awaitable[Sequence[str]]],
        only: Sequence[str] = (),
    ) -> None:
        """*recorded* returns the names, *open_one* opens a ledger; show *only* these, or all."""
        self._open_one = open_one
        self._recorded = Kept(recorded, every=_NAMES_EVERY)
        self._only = only
        self._opened: dict[str, Overview] = {}
        self._opening = asyncio.Lock()
        self._closing = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._closing.aclose()

    async def names(self) -> list[str]:
        """Return the shown names that have tasks, sorted."""
        recorded = await self._recorded.get()
        return [name for name in recorded if not self._only or name in self._only]

    async def overview(self, name: str) -> Overview:
        """Return the overview of *name*; raises `RefusedError` for an unknown name."""
        async with self._opening:
            if (known := self._opened.get(name)) is not None:
                return known
            if name not in await self.names():
                raise RefusedError(404, f"nothing is recorded for a spider or use case {name!r}")
            ledger = await self._open_one(name)
            self._closing.push_async_callback(ledger.close)
            observer = await self._closing.enter_async_context(Observer(ledger, name))
            self._opened[name] = Overview(ledger, observer)
            return self._opened[name]

    async def ledger(self, name: str) -> Ledger:
        """Return the ledger of *name*; raises the errors of `overview`."""
        return (await self.overview(name)).ledger
