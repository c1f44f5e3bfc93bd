"""Logging a session in: the spider's `login`, run by one process while its lease lasts.

The lease is the session's own, in the ledger. It is renewed as long as the login
goes on; where this process dies, another one takes over.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
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
from crawlcw.crawl.opening import Admission
from crawlcw.engine.session import WorkerSession
from crawlcw.errors import FetchError, StopCrawl
from crawlcw.fetch.cookies import SiteCookies
from crawlcw.model import identities, urls, values
from crawlcw.model.counters import FinishReason
from crawlcw.model.identities import Identity
from crawlcw.model.proxies import Proxy
from crawlcw.model.sanitize import printable
from crawlcw.model.tracebacks import describe_error, text_of
from crawlcw.model.values import frozen

logger = logging.getLogger(__name__)

#: The pause before a login that failed for our uplink, or a proxy, is begun again.
_LATER = timedelta(seconds=2)
#: What writing down the end of a login may take that was cancelled.
_LAST_WORDS = 2.0
_LONGEST_REASON = 300


class Login:
    """One login of a session: its lease in the ledger, its requests and its cookies."""

    def __init__(
        self,
        begun: Identity,
        proxy: Proxy | None,
        *,
        spider: Spider,
        process: WorkerSession,
        ask: Next,
        settings: Settings,
        admission: Admission,
        end: Callable[[FinishReason, str], None],
    ) -> None:
        """Log in a session whose login *process* has begun; *end* ends the crawl, and is told why.

        Its requests go through *proxy*.
        """
        self._spider = spider
        self._sessions = process.ledger.sessions
        self._now = process.ledger.now
        self._stalled = process.watchdog.stalled
        self._ask = ask
        self._settings = settings
        self._admission = admission
        self._end = end
        self._identity = begun
        self._writing = asyncio.Lock()
        self._lost = False
        self._jar = SiteCookies()
        self._asked_as = Session(identity=Identity(name=""), jar=self._jar, proxy=proxy)
        self._origins: dict[str, None] = {}
        self._innocent = False  #: whether our own uplink may have been away

    async def run(self) -> Identity | None:
        """Return the session after its login; None where another process has taken it over.

        Cancelled, it gives the login back.
        """
        ended: Identity | None = None
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._renew, group.cancel_scope)
                ended = await self._outcome()
                group.cancel_scope.cancel()
        finally:
            if ended is None and not self._lost:
                with anyio.move_on_after(_LAST_WORDS, shield=True):
                    now = self._now()
                    await self._write(identities.login_put_off(self._identity, until=now))
        if self._lost or ended is None or not await self._write(ended):
            return None
        return self._identity

    async def _outcome(self) -> Identity:
        """Return the session after the spider's login."""
        name, data = self._identity.name, self._identity.data
        session = LoginSession(name, send=self._send, add_cookie=self._add_cookie, data=data)
        why = await self._failure(session)
        now = self._now()
        if self._innocent:
            return identities.login_put_off(self._identity, until=now + _LATER)
        if why is None:
            logger.info("session %s is logged in", name, extra={"event": "logged_in"})
            return identities.logged_in(
                self._identity,
                cookies=self._jar.kept(),
                headers=tuple(session.headers.items()),
                origins=tuple(dict.fromkeys([*self._origins, *session.origins])),
                data=frozen(values.clean(session.data)),
            )
        why = printable(why, limit=_LONGEST_REASON)
        logger.warning(
            "the login of session %s failed: %s", name, why, extra={"event": "login_failed"}
        )
        failed, policy = f"login() failed: {why}", self._settings.login_policy
        return identities.login_failed(self._identity, failed, now=now, policy=policy)

    @calls_user_code
    async def _failure(self, session: LoginSession) -> str | None:
        """Run the spider's code; return why it failed, None where it did not."""
        cancellation = Cancellation()
        # The watchdog reads it from the frame.
        called = Called(name="login", subject=session.name)
        try:
            within = self._settings.login_timeout.total_seconds()
            async with time_limit(called, within, stalled=self._stalled):
                await self._spider.login(session)
            await cancellation.strike()
            session.headers = dict(arguments.headers(session.headers, of="session.headers"))
        except StopCrawl as told:
            self._end(FinishReason.STOPPED_BY_SPIDER, printable(text_of(told)))
            return f"the spider stopped the crawl: {text_of(told)}"
        except BaseException as error:  # the spider's code may raise anything
            if cancellation.passes(error):
                raise
            await cancellation.after(error)
            return describe_error(error)
        return None

    async def _send(self, request: Request) -> Response:
        """Return the answer to a request, redirects followed; raises `FetchError`."""
        location, _ = request.identity()
        url, admission = location.url, self._admission
        self._origins[urls.origin_of(url)] = None
        asked_as = self._asked_as
        async with Attempt(
            request=request, purpose=Purpose.LOGIN, session=asked_as, may_wait=False
        ) as attempt:
            await admission.admit(attempt, url)
            began = time.monotonic()
            try:
                return await self._ask(attempt, request)
            except FetchError as error:
                self._innocent |= await admission.is_innocent(url, error, began=began)
                raise
            finally:
                admission.asked(url)

    def _add_cookie(self, url: str, name: str, value: str) -> None:
        """Have a cookie of the spider's own; raises `ValueError`."""
        self._jar.add(name, value, url=urls.parse(url))

    async def _renew(self, scope: anyio.CancelScope) -> None:
        """Renew the lease until cancelled; cancel the login where another worker has it now."""
        lease = self._settings.lease
        while not self._lost:
            await anyio.sleep(lease.total_seconds() / 3)
            await self._change(
                lambda known: identities.login_renewed(known, now=self._now(), lease=lease)
            )
        scope.cancel()

    async def _write(self, ended: Identity) -> bool:
        """Write down how the login ended; return whether it still was ours."""
        # A renewal may have raised the fence since that was decided.
        return await self._change(lambda known: replace(ended, fence=known.fence + 1))

    async def _change(self, change: Callable[[Identity], Identity]) -> bool:
        # A renewal that is under way must not come in between, nor be cancelled half done.
        with anyio.CancelScope(shield=True):
            async with self._writing:
                after = change(self._identity)
                written = await self._sessions.change(self._identity, after)
        if written:
            self._identity = after
        else:
            self._lost = True
            logger.info(
                "the login of session %s was taken over",
                self._identity.name,
                extra={"event": "login_taken_over", "session": self._identity.name},
            )
        return written
