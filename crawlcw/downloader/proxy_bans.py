"""Which hosts have banned which proxies, and for how long these are left aside for them."""

import logging
from collections import OrderedDict
from collections.abc import Callable
from datetime import timedelta

from crawlcw.model.durations import format_duration
from crawlcw.model.proxies import Proxy
from crawlcw.model.sanitize import printable

logger = logging.getLogger(__name__)

#: Seconds of the first ban; each further one takes twice as long.
_FIRST = 600.0
_LONGEST = 6 * 3600.0
_KEPT = 10_000


class ProxyBans:
    """The bans that one process knows of."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Count by *clock*, in seconds."""
        self._clock = clock
        #: Until when a ban lasts, and how often there was one.
        self._known: OrderedDict[tuple[Proxy, str], tuple[float, int]] = OrderedDict()

    def ban(self, proxy: Proxy, host: str) -> None:
        """Leave a proxy aside for a host that has banned it; bans side by side count once."""
        until, times = self._known.pop((proxy, host), (0.0, 0))
        now = self._clock()
        if until > now:
            self._known[proxy, host] = until, times
            return
        lasts = min(_FIRST * (1 << min(times, 10)), _LONGEST)
        self._known[proxy, host] = now + lasts, times + 1
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)
        logger.info(
            "the proxy %s is banned by %s: left aside for %s",
            proxy,
            printable(host),
            format_duration(timedelta(seconds=lasts)),
            extra={"event": "proxy_banned", "proxy": str(proxy), "host": host},
        )

    def unban(self, host: str) -> None:
        """Take back the bans of a host that bans whichever proxy asks."""
        for key in [key for key in self._known if key[1] == host]:
            del self._known[key]

    def until(self, proxy: Proxy, host: str) -> float:
        """Return when a ban is over, by the clock; 0 where there is none."""
        return self._known.get((proxy, host), (0.0, 0))[0]
