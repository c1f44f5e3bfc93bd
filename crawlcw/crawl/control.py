"""What people tell the crawls of a ledger while these run: to pause, to stop, other settings.

It is written down in the ledger for all processes on it, and stays until it is taken
back. Where nothing is written down, nothing was told. No I/O.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any, Self

from crawlcw.api.settings import Settings
from crawlcw.errors import SettingsError

#: The settings that a crawl follows while it runs.
ADJUSTABLE = ("concurrency", "delay", "per_host_concurrency")
#: Seconds after which the crawls that run follow what was written down.
FOLLOWED_WITHIN = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What is written down, each part by its name. Times are the ledger's."""

    paused: datetime | None = None  #: since when nothing is to be begun with
    stopped: datetime | None = None  #: crawls that began before are to end
    fed: str | None = None  #: another text each time that somebody has added tasks
    settings: Mapping[str, str] = field(default_factory=dict)  #: instead of the crawls' own

    @classmethod
    def of(cls, written: Mapping[str, Any]) -> Self:
        """Return what a ledger has written down; raises `SettingsError` where it makes no sense."""
        settings = {name: str(written[name]) for name in ADJUSTABLE if name in written}
        check(settings)
        fed = written.get("fed")
        return cls(
            paused=_moment(written, "paused"),
            stopped=_moment(written, "stopped"),
            fed=None if fed is None else str(fed),
            settings=settings,
        )

    def stops(self, began: datetime) -> bool:
        """Return whether a crawl that began then is to end."""
        return self.stopped is not None and began <= self.stopped

    def applied(self, settings: Settings) -> Settings:
        """Return *settings* as they are to be followed; raises `SettingsError`."""
        return replace(settings, **self.settings)

    def fields(self) -> dict[str, Any]:
        """Return what a program is told of it: `paused` and `set`."""
        paused = None if self.paused is None else written_moment(self.paused)
        return {"paused": paused, "set": dict(self.settings)}


def written_moment(moment: datetime) -> str:
    """Return a time as it is written down."""
    return moment.isoformat().replace("+00:00", "Z")


def check(settings: Mapping[str, str]) -> None:
    """Raise `SettingsError` for settings that no crawl follows, or that make no sense."""
    for name in settings:
        if name in ADJUSTABLE:
            continue
        known = name in {each.name for each in fields(Settings)}
        why = "is read when a crawl begins" if known else "is no setting"
        raise SettingsError(
            f"{name!r} {why}: a running crawl follows {', '.join(ADJUSTABLE[:-1])} and "
            f"{ADJUSTABLE[-1]}"
        )
    replace(Settings(), **settings)


def _moment(written: Mapping[str, Any], name: str) -> datetime | None:
    text = written.get(name)
    try:
        moment = None if text is None else datetime.fromisoformat(text)
        if moment is None or moment.tzinfo is not None:
            return moment
    except (TypeError, ValueError):
        pass
    raise SettingsError(f"the ledger says {name}={text!r}, which is no time")
