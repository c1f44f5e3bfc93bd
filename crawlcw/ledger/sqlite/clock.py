"""The time of this machine, as a ledger takes it."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from crawlcw.ledger.sqlite.rows import EPOCH
from crawlcw.model.clock import LedgerClock

_CLOCK_SET_EVERY = 60.0
#: What the machine's clock lacks beyond this was taken from it: it was set back.
_LONGEST_STANDSTILL = timedelta(minutes=1)


def _time_of_day() -> datetime:
    return datetime.now(UTC)


def machine_clock(
    clock: LedgerClock, *, time_of_day: Callable[[], datetime] = _time_of_day
) -> Callable[[], datetime]:
    """Return this machine's time by *clock*, which is set to the time of day once a minute.

    Where the time of day was set back it goes on: what is due would be due much later.
    """
    measured = clock.monotonic()
    shown = EPOCH

    def now() -> datetime:
        nonlocal measured, shown
        reading = clock.monotonic()
        if reading - measured >= _CLOCK_SET_EVERY:
            found = time_of_day()
            if found >= shown - _LONGEST_STANDSTILL:
                clock.set(found, asked=reading, answered=reading)
            measured = reading
        shown = clock.now()
        return shown

    return now
