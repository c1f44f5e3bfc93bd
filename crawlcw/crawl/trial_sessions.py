"""The sessions of pages that are only tried: logged in as a crawl does it, and kept in memory.

They are not the crawl's own, which stay as they are in its ledger.
"""

from datetime import timedelta

from crawlcw.api.attempt import Next, Session
from crawlcw.api.request import Request
from crawlcw.api.sessions import condition
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.crawl.logins import Logins
from crawlcw.crawl.robots import Robots
from crawlcw.errors import FetchError, Reason
from crawlcw.fetch.cookies import SiteCookies
from crawlcw.ledger.protocol import Ledger
from crawlcw.model import identities
from crawlcw.model.identities import Identity

#: Nobody else could take the login over.
_LEASE = timedelta(hours=1)


class TrialSessions:
    """The sessions that are logged in, by name; for the trials of one spider, one by one."""

    def __init__(self, spider: Spider, ledger: Ledger, settings: Settings) -> None:
        """Have them in *ledger*, one of their own that is gone afterwards."""
        self._spider = spider
        self._ledger = ledger
        self._settings = settings
        self._is_logged_out = condition(spider, "login_when")
        self._ready: dict[str, Session] = {}

    def knows(self, request: Request) -> bool:
        """Return whether the session of a request was logged in before."""
        return self._name(request) in self._ready

    def forget(self, request: Request) -> None:
        """Have the session of a request logged in anew when it is next asked for."""
        self._ready.pop(self._name(request), None)

    async def of(self, request: Request, ask: Next, robots: Robots) -> Session:
        """Return whom a request is made as, logged in; raises `FetchError` where that fails.

        A login asks by *ask*, and *robots* before.
        """
        name = self._name(request)
        if name not in self._ready:
            identity = await self._logged_in(name, ask, robots)
            jar = SiteCookies()
            jar.restore(identity.cookies)
            self._ready[name] = Session(
                identity=identity, jar=jar, is_logged_out=self._is_logged_out
            )
        return self._ready[name]

    def _name(self, request: Request) -> str:
        return request.options.session or self._spider.default_session

    async def _logged_in(self, name: str, ask: Next, robots: Robots) -> Identity:
        sessions, now = self._ledger.sessions, self._ledger.now()
        found = await sessions.get(name)
        known = found or Identity(name=name)
        begun = identities.login_begun(known, owner="trial", now=now, lease=_LEASE)
        await sessions.change(found, begun)
        logins = Logins(
            spider=self._spider,
            ledger=self._ledger,
            ask=ask,
            settings=self._settings,
            politeness=_Person(robots),
            stalled=lambda _: 0.0,
            stop=lambda _: None,
        )
        ended = await logins.run(begun)
        if ended is None or not ended.is_ready:
            why = "it came to nothing" if ended is None else ended.reason
            raise FetchError(Reason.LOGGED_OUT, f"session {name} could not be logged in: {why}")
        return ended


class _Person:
    """What a login owes that somebody tries by hand; fulfils `logins.Politeness`."""

    def __init__(self, robots: Robots) -> None:
        self._robots = robots

    async def before(self, url: str) -> None:
        """Raise `FetchError` where robots.txt forbids it."""
        await self._robots.admit(url)

    def asked(self, url: str) -> None:
        """Do nothing: a person does not ask often."""

    async def failed(self, url: str, error: FetchError, *, began: float) -> bool:  # noqa: ARG002  # the port's
        """Return False: the person who tries it sees whether the network is away."""
        return False
