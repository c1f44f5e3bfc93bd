"""Permission to ask for URLs that are no tasks of their own, and notes of their requests.

These are targets of redirects, parts of rendered pages, requests of a user's layers that are
repeated, login probes, and logins: a few requests beside the pages of a host. They keep the
host's delay between each other, and the host's next page keeps it after them.
"""

from crawlcw.api.attempt import Attempt, Purpose
from crawlcw.crawl.callbacks import Scope
from crawlcw.crawl.causes import Causes
from crawlcw.crawl.hosts import HostTurns
from crawlcw.crawl.robots import Robots
from crawlcw.errors import FetchError, ProxiesAwayError
from crawlcw.model import urls
from crawlcw.model.health import HOST_FAILURES


class Admission:
    """Scope, robots.txt and the turns of hosts; fulfils `redirects.Admission`.

    Where a person tries a page, there is neither a scope nor a turn: a person does not ask often.
    """

    # Set when they are made: they ask by layers that have this.
    robots: Robots
    turns: HostTurns | None = None
    causes: Causes | None = None

    def __init__(self, scope: Scope | None = None) -> None:
        self._scope = scope

    async def admit(self, attempt: Attempt, url: str) -> None:
        """See `redirects.Admission.admit`."""
        if self._scope is not None and attempt.purpose is Purpose.PAGE:
            self._scope.admit_url(url)
        await self.robots.admit(url)
        # The wait is the crawl's own, and not the server's.
        with attempt.deadline:
            await self.turn(url)

    async def part(self, url: str, *, is_document: bool) -> None:
        """See `redirects.Admission.part`."""
        if self._scope is not None and is_document:
            self._scope.admit_url(url)
        await self.robots.admit(url)

    async def turn(self, url: str) -> None:
        """See `redirects.Admission.turn`."""
        if self.turns is not None:
            await self.turns.wait(url)

    def asked(self, url: str) -> None:
        """Note that a URL was asked for just now."""
        if self.turns is not None:
            self.turns.asked(url)

    async def is_innocent(self, url: str, error: FetchError, *, began: float) -> bool:
        """Return whether a proxy or our own network may be to blame for the failure of a login."""
        if self.causes is None:
            return False
        if isinstance(error, ProxiesAwayError):
            return True
        if self.causes.proxies.may_be_to_blame(error, url, is_fixed=True):
            return True
        if error.hop > 1 or error.underlying not in HOST_FAILURES:
            return False
        host = urls.locate(url).host
        return await self.causes.is_uplink(host, url, error.underlying, began=began)
