"""Orders of the user to running crawls: pause, stop, change settings.

`Control` is the set of orders; an order stays in the ledger until the user withdraws the order.
`Steering` polls the orders in each process of a crawl.
"""

import logging
import resource
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

import anyio

from crawlcw.api.settings import Settings
from crawlcw.errors import SettingsError
from crawlcw.model.counters import FinishReason
from crawlcw.model.durations import iso_time
from crawlcw.model.sanitize import printable

if TYPE_CHECKING:
    # Commands such as `crawlcw stop` import this module, and they must not load the crawler.
    from crawlcw.crawl.committer import TaskAdder
    from crawlcw.crawl.coordinator import Coordinator
    from crawlcw.engine.session import WorkerSession

logger = logging.getLogger(__name__)

#: Seconds between two polls of the orders; a poll reads one small document by its key.
POLL_INTERVAL_S = 0.5
#: The settings that an order can change while a crawl runs.
ADJUSTABLE = ("concurrency", "delay", "per_host_concurrency")
#: Seconds within which running crawls follow an order.
FOLLOWED_WITHIN = 1.0
#: Descriptors besides the sockets of fetchers: 100 for the connections of a MongoDB client (the
#: client's default), and 50 for the ledger's files, the log, pipes and children.
_OTHER_DESCRIPTORS = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The user's orders in a ledger; all times are by the ledger's clock."""

    paused: datetime | None = None  #: when the user paused the crawls
    stopped: datetime | None = None  #: crawls that began before this time must end
    fed: str | None = None  #: a text that changes each time the user adds or purges tasks
    settings: Mapping[str, str] = field(default_factory=dict)  #: override the spider's settings

    @classmethod
    def of(cls, written: Mapping[str, Any]) -> Self:
        """Return the orders of a ledger; raises `SettingsError` if they are invalid."""
        settings = {name: str(written[name]) for name in ADJUSTABLE if name in written}
        check(settings)
        return cls(
            paused=_time_of_order(written, "paused"),
            stopped=_time_of_order(written, "stopped"),
            fed=written.get("fed"),
            settings=settings,
        )

    def stops(self, started_at: datetime) -> bool:
        """Return whether an order to stop applies to a crawl that began at *started_at*."""
        return self.stopped is not None and started_at <= self.stopped

    def applied(self, settings: Settings) -> Settings:
        """Return *settings* changed by the orders; raises `SettingsError` if a value is invalid."""
        return replace(settings, **self.settings)

    def fields(self) -> dict[str, Any]:
        """Return the orders as JSON fields: `paused` and `set`."""
        paused = None if self.paused is None else iso_time(self.paused)
        return {"paused": paused, "set": dict(self.settings)}


def check(settings: Mapping[str, str]) -> None:
    """Raise `SettingsError` for invalid settings, and for those that no running crawl can apply."""
    for name in settings:
        if name in ADJUSTABLE:
            continue
        is_setting = name in {setting.name for setting in fields(Settings)}
        problem = "takes effect only at the start of a crawl" if is_setting else "is not a setting"
        raise SettingsError(
            f"{name!r} {problem}: a running crawl can change {', '.join(ADJUSTABLE[:-1])} and "
            f"{ADJUSTABLE[-1]}"
        )
    replace(Settings(), **settings)


def check_changes(changes: Mapping[str, str | None]) -> None:
    """Raise `SettingsError` if crawls cannot apply *changes*. A value of None resets the setting.

    If *changes* contains `concurrency`, also raise the limit of open files for this process.
    """
    check({name: "1" if value is None else value for name, value in changes.items()})
    if concurrency := changes.get("concurrency"):
        secure_descriptors(int(concurrency))


def _time_of_order(orders: Mapping[str, Any], name: str) -> datetime | None:
    text = orders.get(name)
    try:
        moment = None if text is None else datetime.fromisoformat(text)
        if moment is None or moment.tzinfo is not None:
            return moment
    except (TypeError, ValueError):
        pass
    raise SettingsError(f"the ledger has {name}={text!r}, which is not a time")


def secure_descriptors(concurrency: int) -> None:
    """Let this process and its children open as many files as *concurrency* fetchers need.

    If the limit on open files is too low, pages and the ledger's connections wait for descriptors.
    Raises `SettingsError` if the system does not allow the higher limit on open files.
    """
    # Double the number of descriptors, because idle connections and the spider's files need more.
    needed = 2 * (concurrency + _OTHER_DESCRIPTORS)
    limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit >= needed:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard_limit))
    except (ValueError, OSError):
        raise SettingsError(
            f"concurrency={concurrency} needs {needed:,} file descriptors in each process, but the "
            f"system allows {hard_limit:,}: decrease concurrency, or increase that limit (ulimit "
            "-Hn)"
        ) from None


@dataclass
class Steering:
    """Makes one process of a crawl follow the orders in its ledger."""

    session: "WorkerSession"
    settings: Settings  #: the crawl's own settings
    _: KW_ONLY
    coordinator: "Coordinator"
    adder: "TaskAdder"
    end: Callable[[FinishReason, str], None]
    _control: Control = Control()
    _last_warning: str = ""

    async def run(self) -> None:
        """Poll the orders until cancelled."""
        while True:
            await anyio.sleep(POLL_INTERVAL_S)
            await self.poll()

    async def poll(self) -> None:
        """Follow the current orders; raises `LedgerUnavailableError`."""
        try:
            control = Control.of(await self.session.ledger.notes.control())
        except SettingsError as error:
            # Another program wrote invalid orders, so the earlier orders stay in force.
            self._warn(error)
            return
        old_control, self._control = self._control, control
        coordinator = self.coordinator
        if control.settings != old_control.settings:
            coordinator.use_settings(self._settings_by(control))
        if control.fed != old_control.fed:
            # Forget the known tasks, so that the next link to a purged task adds the task again.
            self.adder.forget()
            coordinator.note_written(has_more=True, retry_hosts=[*coordinator.frontier.hosts])
        if control.paused != old_control.paused:
            coordinator.pause(control.paused)
        if control.paused and not old_control.paused:
            log_fields = {"event": "paused"}
            logger.info("paused: current requests finish, and no new ones start", extra=log_fields)
        elif old_control.paused and not control.paused:
            logger.info("resumed", extra={"event": "resumed"})
        if control.stops(self.session.started_at):
            self.end(FinishReason.STOPPED, "by `crawlcw stop`")

    def _settings_by(self, control: Control) -> Settings:
        """Return the settings changed by *control*, or the old settings if a change is invalid."""
        try:
            settings = control.applied(self.settings)
            if settings.concurrency > self.settings.concurrency:
                secure_descriptors(settings.concurrency)
        except SettingsError as error:
            self._warn(error)
            return self.settings
        orders_text = ", ".join(f"{name}={value}" for name, value in control.settings.items())
        logger.info(
            "settings from the ledger: %s",
            printable(orders_text) or "none, so the crawl uses its own again",
            extra={"event": "settings_changed"},
        )
        return settings

    def _warn(self, error: SettingsError) -> None:
        if str(error) != self._last_warning:
            self._last_warning = str(error)
            log_fields = {"event": "control_invalid"}
            logger.warning(
                "an order in the ledger is invalid, so the crawl ignores it: %s",
                error,
                extra=log_fields,
            )
