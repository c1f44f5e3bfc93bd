"""Following what people tell the crawls of a ledger while these run, see `control`."""

import logging
from collections.abc import Callable
from datetime import datetime
from functools import partial

import anyio

from crawlcw.api.settings import Settings
from crawlcw.crawl import descriptors
from crawlcw.crawl.control import Control
from crawlcw.crawl.coordinator import Coordinator
from crawlcw.crawl.hosts import FollowedLimits, Frontier
from crawlcw.engine.stats import FinishReason
from crawlcw.errors import SettingsError
from crawlcw.ledger.protocol import Ledger
from crawlcw.model.sanitize import printable

logger = logging.getLogger(__name__)

#: Seconds between two looks; each is a read of one small document by its key.
LOOK_EVERY = 0.5
_STOPPED = "by `crawlcw stop`"


class Steering:
    """Lets one process of a crawl follow what is written down in its ledger."""

    def __init__(
        self,
        ledger: Ledger,
        settings: Settings,
        *,
        began: datetime,
        coordinator: Coordinator,
        frontier: Frontier,
        limits: FollowedLimits,
        end: Callable[[FinishReason, str], None],
    ) -> None:
        """*settings* are the crawl's own, which began at *began*; *end* ends it.

        *limits* are those that the hosts of *frontier* are asked by.
        """
        self._ledger = ledger
        self._settings = settings
        self._began = began
        self._coordinator = coordinator
        self._frontier = frontier
        self._limits = limits
        self._end = end
        self._known = Control()
        self._followed = settings
        self._wrong = ""

    async def run(self) -> None:
        """Look now and then until cancelled."""
        while True:
            await anyio.sleep(LOOK_EVERY)
            await self.look()

    async def look(self) -> None:
        """Follow what is written down by now; raises `LedgerUnavailableError`."""
        try:
            control = Control.of(await self._ledger.notes.control())
        except SettingsError as error:
            # Somebody wrote it by hand; what was followed so far still is.
            self._warn(error)
            return
        known, self._known = self._known, control
        if control == known:
            return
        if control.settings != known.settings:
            self._followed = self._settings_by(control)
            self._limits.follow(self._followed, self._frontier)
        if control.fed != known.fed:
            self._look_at_all()
        if (control.paused, control.settings) != (known.paused, known.settings):
            self._log_pause(control, known)
            concurrency = self._followed.concurrency
            self._coordinator.follow(paused=control.paused, concurrency=concurrency)
        if control.stops(self._began):
            self._end(FinishReason.STOPPED, _STOPPED)

    def _settings_by(self, control: Control) -> Settings:
        """Return the settings to follow: the crawl's own where the others do not go with them."""
        try:
            settings = control.applied(self._settings)
            if settings.concurrency > self._settings.concurrency:
                descriptors.secure(settings.concurrency)
        except SettingsError as error:
            self._warn(error)
            return self._settings
        self._log_settings(control)
        return settings

    def _warn(self, error: SettingsError) -> None:
        if str(error) != self._wrong:
            self._wrong = str(error)
            logger.warning(
                "what the ledger tells is wrong: %s",
                printable(error),
                extra={"event": "control_invalid"},
            )

    def _look_at_all(self) -> None:
        """Look for tasks of all hosts that are held: somebody has added some."""
        for host in self._frontier:
            self._frontier.look(host.name)
        self._coordinator.wake()

    def _log_pause(self, control: Control, known: Control) -> None:
        say = partial(logger.info, extra={"event": "paused" if control.paused else "resumed"})
        if control.paused and not known.paused:
            say("paused: what is under way is finished, and nothing is begun with")
        elif known.paused and not control.paused:
            say("resumed")

    def _log_settings(self, control: Control) -> None:
        said = ", ".join(f"{name}={value}" for name, value in control.settings.items())
        logger.info(
            "settings from the ledger: %s",
            printable(said) or "the crawl's own again",
            extra={"event": "settings_followed"},
        )
