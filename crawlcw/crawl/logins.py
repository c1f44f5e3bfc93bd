"""Logging a session in: the spider's `login`, run by one process while its lease lasts.

The lease is the session's own, in the ledger. It is renewed as long as the login
goes on; where this process dies, another one takes over.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

import anyio

from crawlcw.api import arguments
from crawlcw.api.attempt import Attempt, Next, Purpose, Session
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.sessions import LoginSession
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.api.user_code import Called, Cancellation, calls_user_code, time_limit
from crawlcw.crawl.admission import Admission
from crawlcw.errors import FetchError, StopCrawl
from crawlcw.fetch.cookies import SiteCookies
from crawlcw.ledger.protocol import Ledger
from crawlcw.model import identities, urls, values
from crawlcw.model.counters import FinishReason
from crawlcw.model.frozen import frozen
from crawlcw.model.identities import Identity
from crawlcw.model.proxies import Proxy
from crawlcw.model.sanitize import printable
from crawlcw.model.tracebacks import describe_error, text_of

logger = logging.getLogger(__name__)

#: A login that nobody is to blame for is begun again so much later.
_LATER = timedelta(seconds=2)
#: What writing down the end of a login may take that was cancelled.
_LAST_WORDS = 2.0
_LONGEST_REASON = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Logins:
    """Logs sessions of one spider in."""

    spider: Spider
    ledger: Ledger
    ask: Next
    settings: Settings
    admission: Admission
    stalled: Callable[[float], float]  #: see `time_limit`
    end: Callable[[FinishReason, str], None]  #: ends the crawl

    async def run(self, begun: Identity, *, proxy: Proxy | None = None) -> Identity | None:
        """Log in a session whose login this process has begun; return what became of it.

        Its requests go through *proxy*. None where somebody else has taken it over.
        Cancelled, it gives the login back.
        """
        holder = _Holder(self.ledger, begun, lease=self.settings.lease)
        jar = SiteCookies()
        ended: Identity | None = None
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(holder.renew, group.cancel_scope)
                ended = await self._outcome(holder, jar, proxy)
                group.cancel_scope.cancel()
        finally:
            if ended is None and not holder.lost:
                with anyio.move_on_after(_LAST_WORDS, shield=True):
                    now = self.ledger.now()
                    await holder.write(identities.login_put_off(holder.identity, until=now))
        if holder.lost or ended is None or not await holder.write(ended):
            return None
        return holder.identity

    async def _outcome(self, holder: "_Holder", jar: SiteCookies, proxy: Proxy | None) -> Identity:
        """Return what the spider's login makes of a session."""
        name = holder.identity.name
        login = _Login(self, jar, proxy)
        session = LoginSession(
            name, send=login.send, add_cookie=login.add_cookie, data=holder.identity.data
        )
        why = await self._failure(session)
        now = self.ledger.now()
        if why is None and not login.innocent:
            logger.info("session %s is logged in", name, extra={"event": "logged_in"})
            return identities.logged_in(
                holder.identity,
                cookies=jar.kept(),
                headers=tuple(session.headers.items()),
                origins=tuple(dict.fromkeys([*login.origins, *session.origins])),
                data=frozen(values.clean(session.data)),
            )
        if login.innocent:
            return identities.login_put_off(holder.identity, until=now + _LATER)
        why = printable(why or "", limit=_LONGEST_REASON)
        logger.warning(
            "the login of session %s failed: %s", name, why, extra={"event": "login_failed"}
        )
        return identities.login_failed(
            holder.identity, f"login() failed: {why}", now=now, policy=self.settings.login_policy
        )

    @calls_user_code
    async def _failure(self, session: LoginSession) -> str | None:
        """Run the spider's code; return why it failed, None where it did not."""
        cancellation = Cancellation()
        # The watchdog reads it from the frame.
        called = Called(name="login", subject=session.name)
        try:
            within = self.settings.login_timeout.total_seconds()
            async with time_limit(called, within, stalled=self.stalled):
                await self.spider.login(session)
            await cancellation.strike()
            session.headers = dict(arguments.headers(session.headers, of="session.headers"))
        except StopCrawl as told:
            self.end(FinishReason.STOPPED_BY_SPIDER, printable(text_of(told)))
            return f"the spider stopped the crawl: {text_of(told)}"
        except BaseException as error:  # the spider's code may raise anything
            if cancellation.passes(error):
                raise
            await cancellation.after(error)
            return describe_error(error)
        return None


class _Login:
    """The requests of one login."""

    def __init__(self, logins: Logins, jar: SiteCookies, proxy: Proxy | None) -> None:
        self._logins = logins
        self._jar = jar
        self._proxy = proxy
        self.origins: dict[str, None] = {}
        self.innocent = False  #: whether our own uplink may have been away

    async def send(self, request: Request) -> Response:
        """Return the answer to a request, redirects followed; raises `FetchError`."""
        location, _ = request.identity()
        self.origins[urls.origin_of(location.url)] = None
        logins, admission, url = self._logins, self._logins.admission, location.url
        session = Session(identity=Identity(name=""), jar=self._jar, proxy=self._proxy)
        async with Attempt(request=request, purpose=Purpose.LOGIN, session=session) as attempt:
            await admission.admit(attempt, url)
            began = time.monotonic()
            try:
                return await logins.ask(attempt, request)
            except FetchError as error:
                self.innocent |= await admission.is_innocent(url, error, began=began)
                raise
            finally:
                admission.asked(url)

    def add_cookie(self, url: str, name: str, value: str) -> None:
        """Have a cookie of the spider's own; raises `ValueError`."""
        self._jar.add(name, value, url=urls.parse(url))


class _Holder:
    """The lease of one login."""

    def __init__(self, ledger: Ledger, identity: Identity, *, lease: timedelta) -> None:
        self._ledger = ledger
        self._lease = lease
        self._writing = asyncio.Lock()
        self.identity = identity
        self.lost = False

    async def renew(self, scope: anyio.CancelScope) -> None:
        """Renew until cancelled; cancel the login where somebody else has it now."""
        while True:
            await anyio.sleep(self._lease.total_seconds() / 3)
            await self._change(
                lambda known: identities.login_renewed(
                    known, now=self._ledger.now(), lease=self._lease
                )
            )
            if self.lost:
                scope.cancel()

    async def write(self, ended: Identity) -> bool:
        """Write down how the login ended; return whether it still was ours."""
        # A renewal may have raised the fence since that was decided.
        return await self._change(lambda known: replace(ended, fence=known.fence + 1))

    async def _change(self, change: Callable[[Identity], Identity]) -> bool:
        # A renewal that is under way must not come in between, nor be cancelled half done.
        with anyio.CancelScope(shield=True):
            async with self._writing:
                after = change(self.identity)
                written = await self._ledger.sessions.change(self.identity, after)
        if written:
            self.identity = after
        else:
            self.lost = True
            logger.info(
                "the login of session %s was taken over",
                self.identity.name,
                extra={"event": "login_taken_over", "session": self.identity.name},
            )
        return written
