"""Asking the witnesses while the network is in doubt, until one of them answers."""

import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta

import anyio

from crawlcw.crawl.probes import Probes
from crawlcw.errors import FetchError
from crawlcw.model.durations import format_duration
from crawlcw.model.network import LONGEST_OUTAGE, Network
from crawlcw.model.standstill import Rests

logger = logging.getLogger(__name__)

#: Seconds that the first witness has to itself.
_FIRST_ALONE = 0.5
#: Seconds between two rounds of questions: twice the last pause, up to the longest.
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 8.0


class NetworkWatch:
    """Finds out whether the network is away, and waits until it is back."""

    def __init__(self, probes: Probes, rests: Rests, *, ledger_now: Callable[[], datetime]) -> None:
        """*rests* is told since when the network has been away."""
        self.network = Network(on_doubt=self._wake)
        self._probes = probes
        self._rests = rests
        self._ledger_now = ledger_now
        self._on_change: Callable[[], None] = lambda: None
        self._on_asked: Callable[[str, float], None] = lambda _host, _sent: None
        self._doubted = anyio.Event()
        self._settled = anyio.Event()

    async def run(
        self, on_change: Callable[[], None], on_asked: Callable[[str, float], None]
    ) -> None:
        """Ask whenever there is doubt, until cancelled.

        Call *on_change* when a doubt has ended, and *on_asked* for a host that has
        answered, with the monotonic time of the request.
        """
        self._on_change = on_change
        self._on_asked = on_asked
        while True:
            await self._doubted.wait()
            self._doubted = anyio.Event()
            away = False
            pause = _FIRST_PAUSE
            while self.network.in_doubt and not await self._anybody_answers():
                if self.network.doubted_for(now=time.monotonic()) >= LONGEST_OUTAGE:
                    self._give_up_waiting()
                    break
                if not away and self.network.in_doubt:
                    away = True
                    self.network.away()
                    self._rests.network_away_since = self._ledger_now()
                    logger.warning(
                        "no host answers any more, those that did before neither: the network "
                        "seems to be away; nothing counts as failed until one answers",
                        extra={"event": "network_away"},
                    )
                # A page that was under way may answer before a witness does.
                with anyio.move_on_after(pause):
                    await self._settled.wait()
                pause = min(2 * pause, _LONGEST_PAUSE)
            if away:
                logger.warning("the network is back", extra={"event": "network_back"})
            self._settle()

    async def settled(self) -> None:
        """Wait until there is no doubt."""
        while self.network.in_doubt:
            await self._settled.wait()

    def answered(self, host: str, *, witness: str | None = None) -> None:
        """Note that *host* answered, see `Network.answered`."""
        doubted = self.network.in_doubt
        self.network.answered(host, now=time.monotonic(), witness=witness)
        if doubted:
            self._settle()

    def _give_up_waiting(self) -> None:
        logger.warning(
            "the network has been away for %s: from here on failures are the hosts' own",
            format_duration(timedelta(seconds=LONGEST_OUTAGE)),
            extra={"event": "network_given_up"},
        )
        self.network.give_up(now=time.monotonic())

    def _wake(self) -> None:
        self._doubted.set()

    def _settle(self) -> None:
        self._rests.network_away_since = None
        self._settled.set()
        self._settled = anyio.Event()
        self._on_change()

    async def _anybody_answers(self) -> bool:
        """Ask the last witness, and then all; return whether one answers, whatever it says."""
        async with anyio.create_task_group() as asking:

            async def ask(host: str, url: str) -> None:
                sent = time.monotonic()
                try:
                    await self._probes.ask(url)
                except FetchError as error:
                    if error.status is None:
                        return
                # Its next request keeps its distance from this one.
                self._on_asked(host, sent)
                self.network.vouch(now=time.monotonic())
                asking.cancel_scope.cancel()

            for number, (host, url) in enumerate(self.network.witnesses):
                asking.start_soon(ask, host, url)
                if number == 0:
                    # Where only hosts are dead, one request tells.
                    await anyio.sleep(_FIRST_ALONE)
        return not self.network.in_doubt
