"""The way from other threads into the event loop that a tracker lives in."""

import asyncio
import threading

from anyio.from_thread import BlockingPortal

from crawlcw.errors import LedgerError, UsageError


class LoopPortal:
    """A portal into the running event loop, opened when the first thread asks for it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._opening = threading.Lock()
        self._hosting: asyncio.Task[None] | None = None
        self._portal: BlockingPortal | None = None
        self._closed = False

    def __call__(self) -> BlockingPortal:
        """Return the portal.

        Raises `UsageError` in the event loop's own thread, and `LedgerError` where it
        was closed before any thread asked for it.
        """
        if threading.get_ident() == self._thread:
            raise UsageError(
                "`tracker.sync` is for other threads: in a coroutine use the tracker itself"
            )
        with self._opening:
            if self._portal is None:
                opened = asyncio.run_coroutine_threadsafe(self._open(), self._loop)
                return opened.result()
            return self._portal

    async def _open(self) -> BlockingPortal:
        if self._closed:
            raise LedgerError("the tracker was closed")
        opened: asyncio.Future[BlockingPortal] = self._loop.create_future()
        self._hosting = asyncio.create_task(_host(opened), name="crawlcw portal")
        self._portal = await opened
        return self._portal

    async def close(self) -> None:
        """End it, with all that is still called through it."""
        self._closed = True
        if self._portal is not None and self._hosting is not None:
            await self._portal.stop(cancel_remaining=True)
            await self._hosting


async def _host(opened: "asyncio.Future[BlockingPortal]") -> None:
    async with BlockingPortal() as portal:
        opened.set_result(portal)
        await portal.sleep_until_stopped()
