"""The children of a worker: each works on one suspect at a time until it dies.

They are started when there is a suspect, end when there was none for a while,
and are this process's own command once more, with a hidden option.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Container
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Self

import anyio

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.cli.processes import messages
from crawlcw.cli.processes.messages import (
    Answer,
    Broken,
    End,
    Faulty,
    Fetch,
    Fetched,
    GoOn,
    Kept,
    KeptResponse,
    Links,
    Mistaken,
    Order,
    Ready,
    Refused,
    Run,
    Stopped,
    Told,
)
from crawlcw.cli.processes.own_command import own_command, own_environment
from crawlcw.crawl.callbacks import Produced, Scope
from crawlcw.crawl.runner import Runner
from crawlcw.crawl.socket_process import ProcessEndedError, SocketProcess
from crawlcw.crawl.suspects import ChildDiedError, NoChildError
from crawlcw.crawl.url_lists import WriteLinks
from crawlcw.downloader.credentials import Credentials
from crawlcw.downloader.protocol import Downloader
from crawlcw.errors import FetchError
from crawlcw.model.sanitize import printable
from crawlcw.model.task import ChangedTask, Task
from crawlcw.model.transitions import Failed

logger = logging.getLogger(__name__)

_MOST = 4
#: Seconds without a suspect until a child ends.
_IDLE = 10.0
#: What a child gets for its start, and for its end.
_STARTS_WITHIN = 60.0
_ENDS_WITHIN = 5.0
#: So much longer than a callback may take it has to be silent.
_LONGER = 10.0
#: After so many failures in a row nobody tries to start one any more.
_FAILURES = 3


class ChildProcess:
    """One child, as its parent sees it."""

    def __init__(self, *, patience: float | None) -> None:
        """*patience* is how long it may run a method, in seconds."""
        self.patience = patience
        self._process = SocketProcess()
        self.idle_from = 0.0  #: the loop's time
        self._at_work = False

    def downloader(self, credentials: Credentials) -> Downloader:
        """See `Child`."""
        return _ChildsDownloader(child=self, credentials=credentials)

    def runner(
        self,
        *,
        scope: Scope,
        seen: Container[bytes],
        now: Callable[[], datetime],
        write: WriteLinks,
    ) -> Runner:
        """See `Child`."""
        return _Runner(child=self, scope=scope, seen=seen, now=now, write=write)

    @property
    def is_ready(self) -> bool:
        """Whether it lives, as far as is known, and nothing is under way in it."""
        return self._process.lives and not self._at_work

    async def start(self) -> None:
        """Start it and wait until it is ready; raises `NoChildError`."""
        try:
            await self._process.start(
                lambda number: own_command(f"--suspects-channel={number}"), env=own_environment()
            )
            with anyio.fail_after(_STARTS_WITHIN):
                answer = await self._answer()
            if not isinstance(answer, Ready):
                raise NoChildError(answer.message if isinstance(answer, Broken) else "no answer")
        except BaseException as error:
            await self._process.kill()
            if isinstance(error, OSError | TimeoutError):
                raise NoChildError(f"it cannot be started: {error}") from error
            if isinstance(error, ChildDiedError):
                raise NoChildError(f"it died at its start: {error}") from error
            raise

    async def end(self) -> None:
        """Let it close its spider and end; kill it where it does not in time."""
        with suppress(OSError), anyio.move_on_after(_ENDS_WITHIN):
            self._send(End())
            await self._process.wait()
        await self.kill()

    async def kill(self) -> None:
        """End it at once, if it has not ended yet."""
        await self._process.kill()

    def _send(self, order: Order) -> None:
        self._process.send(messages.packed(order))

    async def asked(self, order: Order, *, within: float | None = None) -> Answer:
        """Return the answer to an order; raises `ChildDiedError`.

        Of one that is silent for longer than *within*, in seconds, as well.
        """
        # A caller that is cancelled in between leaves a child at work.
        self._at_work = True
        self._send(order)
        try:
            with anyio.fail_after(within):
                answer = await self._answer()
        except TimeoutError:
            raise ChildDiedError(f"it was silent for {within:g} s, and killed") from None
        self._at_work = False
        return answer

    async def _answer(self) -> Answer:
        """Wait for an answer; raises `ChildDiedError`."""
        try:
            head = await self._process.read(messages.LENGTH_SIZE)
            content = await self._process.read(messages.length(head))
        except ProcessEndedError as end:
            raise ChildDiedError(str(end)) from None
        answer: Answer = messages.unpacked(content)
        return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChildsDownloader:
    """Downloads in a child."""

    child: ChildProcess
    credentials: Credentials

    async def fetch(self, request: Request, *, url: str) -> Response:
        """See `Downloader.fetch`; the body stays in the child."""
        order = Fetch(request=request, url=url, credentials=self.credentials)
        answer = await self.child.asked(order)
        match answer:
            case Fetched():
                return KeptResponse(answer, request=request)
            case Refused() | Faulty() | Stopped():
                raise answer.error()
        raise _unexpected(answer)

    async def close(self) -> None:
        """Do nothing: the worker that started the child ends it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runner:
    """Runs the spider's methods in a child."""

    child: ChildProcess
    scope: Scope
    seen: Container[bytes]
    now: Callable[[], datetime]
    write: WriteLinks

    async def run(self, callback: str, *arguments: object, task: Task) -> Produced | Failed:
        """See `Runner.run`."""
        order = Run(
            callback=callback,
            arguments=tuple(_sent(argument) for argument in arguments),
            task=task,
            scope=self.scope,
            now=self.now(),
        )
        answer = await self.child.asked(order, within=self.child.patience)
        while isinstance(answer, Links):
            await self.write(answer.tasks, answer.too_deep)
            answer = await self.child.asked(GoOn(), within=self.child.patience)
        match answer:
            case Produced():
                answer.tasks = [
                    found
                    for found in answer.tasks
                    if found.id not in self.seen or isinstance(found, ChangedTask)
                ]
                return answer
            case Failed():
                return answer
            case Mistaken():
                raise answer.error()
        raise _unexpected(answer)


class ChildProcesses:
    """See `suspects.Children`; they end with the block."""

    def __init__(self, *, fetchers: int, callback_timeout: timedelta) -> None:
        """Of so many *fetchers* half at most work on suspects, one by each child.

        Within the *callback_timeout* a child ends itself; one that is stopped cannot.
        """
        seconds = callback_timeout.total_seconds()
        self._patience = seconds + _LONGER if seconds else None
        self._most = min(_MOST, (os.cpu_count() or 1) + 1, max(1, fetchers // 2))
        self._in_use = 0
        self._starts = False  #: whether one is being started just now
        self._idle: list[ChildProcess] = []
        self._ending: set[asyncio.Task[None]] = set()
        self._failures = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        with anyio.CancelScope(shield=True):
            for child in self._idle[:]:
                self._end_later(child)
            await asyncio.gather(*self._ending)

    @property
    def usable(self) -> bool:
        """See `Children`."""
        return self._failures < _FAILURES

    @property
    def free(self) -> bool:
        """See `Children`."""
        # One after the other: the first is ready sooner, and may have done by then
        # what the others would have been started for.
        return bool(self._idle) or (not self._starts and self._in_use < self._most)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[ChildProcess]:
        """See `Children`."""
        self._in_use += 1
        try:
            child = await self._idle_one() or await self._new()
            try:
                yield child
            finally:
                if child.is_ready:
                    self._idle.append(child)
                    loop = asyncio.get_running_loop()
                    child.idle_from = loop.time()
                    loop.call_later(_IDLE, self._end_idle, child, child.idle_from)
                else:
                    await child.kill()
        finally:
            self._in_use -= 1

    async def _idle_one(self) -> ChildProcess | None:
        while self._idle:
            child = self._idle.pop()
            if child.is_ready:
                return child
            await child.kill()  # it died, and of nothing that it was given
        return None

    async def _new(self) -> ChildProcess:
        child = ChildProcess(patience=self._patience)
        self._starts = True
        try:
            await child.start()
        except NoChildError as error:
            self._failures += 1
            if not self.usable:
                logger.warning(
                    "no process for suspects can be started, so they run in this one, alone: %s",
                    printable(str(error)),
                    extra={"event": "no_children"},
                )
            raise
        finally:
            self._starts = False
        self._failures = 0
        return child

    def _end_idle(self, child: ChildProcess, since: float) -> None:
        if child in self._idle and child.idle_from == since:
            self._end_later(child)

    def _end_later(self, child: ChildProcess) -> None:
        self._idle.remove(child)
        ending = asyncio.get_running_loop().create_task(child.end())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)


def _sent(argument: object) -> object:
    if isinstance(argument, KeptResponse):
        return _kept(argument)
    if isinstance(argument, FetchError):
        answer = argument.response
        response = _kept(answer) if isinstance(answer, KeptResponse) else answer
        return Told(error=Refused.of(argument), response=response)
    return argument


def _kept(response: KeptResponse) -> Kept:
    return Kept(request=response.request, elapsed=response.elapsed)


def _unexpected(answer: Answer) -> RuntimeError:
    said = answer.message if isinstance(answer, Broken) else type(answer).__name__
    return RuntimeError(f"in a child: {said}")
