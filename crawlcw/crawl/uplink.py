"""Checks of our own uplink, and requests whose answers only show whether a server answers."""

import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta

import anyio

from crawlcw.api.attempt import Attempt, Next, Purpose
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.errors import FetchError, Reason
from crawlcw.fetch.redirects import status_error, throttles
from crawlcw.model.durations import format_duration
from crawlcw.model.health import LONGEST_OUTAGE, Cause, State, Uplink
from crawlcw.model.standstill import Rests

logger = logging.getLogger(__name__)

#: Seconds that the first good page has to itself.
_FIRST_ALONE = 0.5


class UplinkWatch:
    """Finds out whether our own network is away, and waits until it is back."""

    def __init__(
        self,
        ask: Next,
        rests: Rests,
        *,
        ledger_now: Callable[[], datetime],
    ) -> None:
        """*rests* is told since when the network has been away."""
        self.uplink = Uplink(on_check=lambda: self._checks.set())
        self._ask_server = ask
        self._rests = rests
        self._ledger_now = ledger_now
        self._on_change: Callable[[], None] = lambda: None
        self._on_asked: Callable[[str, float], None] = lambda _host, _sent: None
        self._checks = anyio.Event()
        self._changed = anyio.Event()

    async def run(
        self, on_change: Callable[[], None], on_asked: Callable[[str, float], None]
    ) -> None:
        """Ask the good pages whenever a failure comes in silence, until cancelled.

        Call *on_change* when tasks may be begun with again, and *on_asked* for a host that has
        answered, with the monotonic time of the request.
        """
        self._on_change = on_change
        self._on_asked = on_asked
        while True:
            await self._checks.wait()
            self._checks = anyio.Event()
            while not await self._any_answers():
                pause = self.uplink.unanswered(now=time.monotonic())
                if self.uplink.breaker.state is State.DEAD:
                    break
                self._is_away()
                # A page that was under way may answer before a good page does.
                with anyio.move_on_after(pause):
                    await self._changed.wait()
            self._is_back()

    async def settled(self) -> None:
        """Wait until tasks may be begun with."""
        while self.uplink.is_blocked:
            await self._changed.wait()

    async def is_to_blame(
        self, host: str, reason: Reason, *, sent: float, page: bytes | None = None
    ) -> bool:
        """Return whether a failure does not count, as `Uplink.failed` has it; await a check."""
        while True:
            now = time.monotonic()
            cause = self.uplink.failed(host, reason, sent=sent, now=now, page=page)
            if cause is not None:
                return cause is Cause.UPLINK
            await self._changed.wait()

    def answered(self) -> None:
        """Note that any host answered, whatever it said."""
        was_blocked = self.uplink.is_blocked
        self.uplink.answered(now=time.monotonic())
        if was_blocked:
            self._wake()

    async def ask(self, url: str) -> Response:
        """Return what *url* answers, redirects not followed.

        Raises `FetchError` where it does not answer in time, or asks to wait.
        """
        request = Request(url)
        async with Attempt(request=request, purpose=Purpose.PROBE) as attempt:
            response = await self._ask_server(attempt, request)
        if throttles(response):
            raise status_error(response, now=self._ledger_now())
        return response

    def _is_away(self) -> None:
        if self._rests.network_away_since is None:
            self._rests.network_away_since = self._ledger_now()
            logger.warning(
                "no host answers any more, those that did before neither: the network "
                "seems to be away; nothing counts as failed until one answers",
                extra={"event": "network_away"},
            )
            self._wake()

    def _is_back(self) -> None:
        if self.uplink.breaker.state is State.DEAD:
            logger.warning(
                "the network has been away for %s: from here on failures are the hosts' own",
                format_duration(timedelta(seconds=LONGEST_OUTAGE)),
                extra={"event": "network_given_up"},
            )
        elif self._rests.network_away_since is not None:
            logger.warning("the network is back", extra={"event": "network_back"})
        self._rests.network_away_since = None
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
        self._on_change()

    async def _any_answers(self) -> bool:
        """Ask the last good page, and then all; return whether any host answers."""
        async with anyio.create_task_group() as asking:

            async def ask(host: str, url: str) -> None:
                sent = time.monotonic()
                try:
                    await self.ask(url)
                except FetchError as error:
                    if error.status is None:
                        return
                # Its next request keeps its distance from this one.
                self._on_asked(host, sent)
                self.uplink.answered(now=time.monotonic())
                asking.cancel_scope.cancel()

            for number, (host, url) in enumerate(self.uplink.good_pages):
                if not self.uplink.is_blocked:
                    break
                asking.start_soon(ask, host, url)
                if number == 0:
                    # Where only hosts are dead, one request tells.
                    await anyio.sleep(_FIRST_ALONE)
        return not self.uplink.is_blocked
