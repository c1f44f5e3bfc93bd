"""A child for suspects, as it sees itself: it downloads, runs the spider's methods, and may die.

It has no ledger and decides nothing. It works on one thing at a time, and ends
with its parent, whatever it is doing just then.
"""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import assert_never

from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider, begin, end
from crawlcw.assembly import web
from crawlcw.cli.exit_codes import OK
from crawlcw.cli.processes import messages, worker
from crawlcw.cli.processes.messages import (
    Answer,
    Broken,
    End,
    Faulty,
    Fetch,
    Fetched,
    GoOn,
    Kept,
    Links,
    Mistaken,
    Order,
    Ready,
    Refused,
    Run,
    Stopped,
    Told,
)
from crawlcw.crawl.callbacks import Produced
from crawlcw.crawl.hooks import hooked
from crawlcw.crawl.own_downloader import downloader_of
from crawlcw.crawl.parsing import Parsing
from crawlcw.crawl.runner import InProcess
from crawlcw.crawl.spider_fault import SpiderFaultError
from crawlcw.crawl.start_names import NoStartNames
from crawlcw.downloader.credentials import AuthorizingDownloader
from crawlcw.downloader.protocol import Downloader
from crawlcw.engine.stats import FinishReason, Report, Stats
from crawlcw.engine.watchdog import Watchdog
from crawlcw.errors import CrawlcwError, FetchError, SpiderError, StopCrawl
from crawlcw.ledger.protocol import Counts
from crawlcw.model.sanitize import printable
from crawlcw.model.task import Task
from crawlcw.model.tracebacks import text_of

#: Nobody reads it: the parent is gone.
_ORPHANED = 1
_NEVER = timedelta(days=1)


class Parent:
    """The other end of the channel."""

    def __init__(self, channel: int) -> None:
        """Make this process a child, before any code of the spider runs in it."""
        worker.prepare(channel)
        # They are for the parent, who ends this process: a child that dies of one
        # would be taken for a proof.
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        self._socket = socket.socket(fileno=channel)
        self._orders: asyncio.Queue[Order] = asyncio.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None
        threading.Thread(target=self._listen, name="parent", daemon=True).start()

    def say(self, answer: Answer) -> None:
        """Send an answer."""
        self._socket.sendall(messages.packed(answer))

    async def order(self) -> Order:
        """Wait for the next order."""
        return await self._orders.get()

    def attach(self) -> None:
        """Let orders come to the running loop; there are none before the first answer."""
        self._loop = asyncio.get_running_loop()

    def _listen(self) -> None:
        # A thread, for the loop may stand still in a callback when the parent goes.
        while True:
            try:
                order = messages.received(self._socket)
            except (EOFError, OSError):
                os._exit(_ORPHANED)
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._orders.put_nowait, order)


def run(parent: Parent, made: Callable[[], tuple[Spider, Settings]]) -> int:
    """Work for *parent* with the spider that is *made*; return the exit code."""
    from crawlcw.cli import loop

    try:
        spider, settings = made()
    except CrawlcwError as error:
        parent.say(Broken(message=str(error)))
        return OK
    return loop.run(_Work(parent, spider, settings).until_told_to_end())


class _Nothing:
    """A child holds nothing that is to be renewed."""

    async def renew(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""


class _Work:
    """What a child does, one order after the other."""

    def __init__(self, parent: Parent, spider: Spider, settings: Settings) -> None:
        self._parent = parent
        self._spider = spider
        self._settings = settings
        self._response: Response | None = None
        self._pages = self._items = 0
        self._parsing = Parsing(settings)
        self._watchdog = Watchdog(
            Stats(), limit=settings.callback_timeout, renew_every=_NEVER, upkeep=_Nothing()
        )

    async def until_told_to_end(self) -> int:
        """Open the spider, follow orders, and close the spider."""
        self._parent.attach()
        default = web(self._spider, self._settings, public_names=NoStartNames())
        try:
            async with downloader_of(self._spider, default) as downloader:
                try:
                    await begin(self._spider)
                except Exception as error:
                    message = f"the spider's opened() raised {type(error).__name__}: {error}"
                    self._parent.say(Broken(message=message))
                    return OK
                self._parent.say(Ready())
                # What hangs is as bad as what crashes, and is found out in the same way.
                async with self._watchdog, self._parsing:
                    await self._follow_orders(downloader)
        except SpiderError as error:
            self._parent.say(Broken(message=str(error)))
            return OK
        await end(self._spider, self._report())
        return OK

    async def _follow_orders(self, downloader: Downloader) -> None:
        while True:
            order = await self._parent.order()
            match order:
                case Fetch():
                    answer = await self._fetched(downloader, order)
                case Run():
                    answer = await self._run(order)
                case End() | GoOn():
                    return
                case _:
                    assert_never(order)
            self._parent.say(answer)

    async def _fetched(self, downloader: Downloader, order: Fetch) -> Answer:
        self._response = None
        authorizing = AuthorizingDownloader(downloader, order.credentials)
        way = hooked(authorizing, self._spider, self._watchdog)
        try:
            response = await way.fetch(order.request, url=order.url)
        except SpiderFaultError as error:
            return Faulty(name=error.name, raised=error.raised)
        except StopCrawl as told:
            return Stopped(why=printable(text_of(told)))
        except FetchError as error:
            return Refused.of(error)
        except Exception as error:
            return Broken(message=f"{type(error).__name__}: {error}")
        self._response = response
        return Fetched(
            url=response.url,
            status=response.status,
            headers=dict(response.headers),
            elapsed=response.elapsed,
            truncated=response.truncated,
            size=response.size,
            refresh=response.refresh,
        )

    async def _run(self, order: Run) -> Answer:
        runner = InProcess(
            spider=self._spider,
            scope=order.scope,
            seen=frozenset(),
            now=lambda: order.now,
            watch=self._watchdog,
            parsing=self._parsing,
            write=self._written,
        )
        arguments = (self._whole(argument) for argument in order.arguments)
        try:
            produced = await runner.run(order.callback, *arguments, task=order.task)
        except SpiderError as error:
            return Mistaken(message=str(error))
        except Exception as error:
            return Broken(message=f"{type(error).__name__}: {error}")
        if isinstance(produced, Produced):
            self._pages += 1
            self._items += len(produced.items)
        return produced

    async def _written(self, tasks: list[Task], too_deep: list[Task]) -> None:
        """Have the parent write links, and wait until it has."""
        self._parent.say(Links(tasks=tasks, too_deep=too_deep))
        answer = await self._parent.order()
        assert isinstance(answer, GoOn), answer

    def _whole(self, argument: object) -> object:
        match argument:
            case Kept():
                return self._kept(argument)
            case Told():
                error, answer = argument.error.error(), argument.response
                error.response = self._kept(answer) if isinstance(answer, Kept) else answer
                return error
        return argument

    def _kept(self, kept: Kept) -> Response:
        assert self._response is not None, "nothing was downloaded"
        self._response.request = kept.request
        self._response.elapsed = kept.elapsed
        return self._response

    def _report(self) -> Report:
        return Report(
            spider=self._spider.name,
            finish_reason=FinishReason.STOPPED,
            elapsed=0.0,
            pages=self._pages,
            items=self._items,
            released=0,
            counts=Counts(),
            failures={},
            host_failures={},
            links_dropped={},
            leases_lost=0,
        )
