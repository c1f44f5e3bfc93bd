"""Log a session in: only one process runs the spider's `login` for the session.

That process has a lease of the session in the ledger. If the lease expires, another process takes
the login over.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
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
from crawlcw.engine.session import WorkerSession
from crawlcw.errors import Defer, FetchError, Reason, StopCrawl
from crawlcw.fetch.cookies import SiteCookies
from crawlcw.model import identities, urls, values
from crawlcw.model.counters import FinishReason
from crawlcw.model.identities import Identity
from crawlcw.model.proxies import Proxy
from crawlcw.model.sanitize import describe_error, printable, text_of
from crawlcw.model.values import frozen

logger = logging.getLogger(__name__)

#: Time before the next try of a login that failed because of our network or a proxy.
_LATER = timedelta(seconds=2)
#: Maximum seconds to write the cancellation of a login to the ledger.
_LAST_WORDS = 2.0
_LONGEST_REASON = 300


@dataclass(slots=True)
class Login:
    """One login of a session: its lease in the ledger, its requests and its cookies."""

    identity: Identity  #: the session to log in
    proxy: Proxy | None  #: proxy for the login's requests
    _: KW_ONLY
    spider: Spider
    process: WorkerSession
    ask: Next
    settings: Settings
    admission: Admission
    end: Callable[[FinishReason, str], None]  #: ends the crawl
    _login_cookies: SiteCookies = field(init=False, default_factory=SiteCookies)
    _origins: dict[str, None] = field(init=False, default_factory=dict)
    _is_innocent: bool = False  #: whether our network or a proxy may be the cause of a failure

    async def run(self) -> Identity | None:
        """Return the session after its login; None if another process took the login over."""
        final_identity: Identity | None = None
        try:
            final_identity = await self._outcome()
        finally:
            if final_identity is None:
                with anyio.move_on_after(_LAST_WORDS, shield=True):
                    now = self.process.ledger.now()
                    await self._write(identities.login_deferred(self.identity, not_before=now))
        return final_identity if await self._write(final_identity) else None

    async def _outcome(self) -> Identity:
        """Return the session after the spider's login."""
        name, data = self.identity.name, self.identity.data
        session = LoginSession(name, send=self._send, add_cookie=self._add_cookie, data=data)
        message = await self._failure(session)
        now = self.process.ledger.now()
        if self._is_innocent:
            return identities.login_deferred(self.identity, not_before=now + _LATER)
        if message is None:
            logger.info("session %s is logged in", name, extra={"event": "logged_in"})
            return identities.logged_in(
                self.identity,
                cookies=self._login_cookies.all(),
                headers=tuple(session.headers.items()),
                origins=tuple(dict.fromkeys([*self._origins, *session.origins])),
                data=frozen(values.clean(session.data)),
            )
        message = printable(message, limit=_LONGEST_REASON)
        logger.warning(
            "the login of session %s failed: %s", name, message, extra={"event": "login_failed"}
        )
        failed, policy = f"login() failed: {message}", self.settings.login_policy
        return identities.login_failed(self.identity, failed, now=now, policy=policy)

    @calls_user_code
    async def _failure(self, session: LoginSession) -> str | None:
        """Run the spider's `login`; return why the login failed, or None."""
        cancellation = Cancellation()
        # The watchdog reads the variable `called` from this stack frame.
        called = Called(name="login", subject=session.name)
        try:
            limit_s = self.settings.login_timeout.total_seconds()
            async with time_limit(called, limit_s, stalled=self.process.watchdog.stall_since):
                await self.spider.login(session)
            await cancellation.raise_pending()
            session.headers = dict(arguments.headers(session.headers, of="session.headers"))
        except StopCrawl as stop_request:
            self.end(FinishReason.STOPPED_BY_SPIDER, printable(text_of(stop_request)))
            return f"the spider stopped the crawl: {text_of(stop_request)}"
        except BaseException as error:  # the spider's code may raise anything
            if cancellation.passes(error):
                raise
            await cancellation.raise_pending_after(error)
            return describe_error(error)
        return None

    async def _send(self, request: Request) -> Response:
        """Return the response to a request after all redirects; raises `FetchError`."""
        location, _ = request.identity()
        url, admission = location.url, self.admission
        self._origins[urls.origin_of(url)] = None
        login_session = Session(
            identity=Identity(name=""), jar=self._login_cookies, proxy=self.proxy
        )
        async with Attempt(
            request=request, purpose=Purpose.LOGIN, session=login_session, may_wait=False
        ) as attempt:
            try:
                await admission.admit(attempt, url)
            except Defer as wait:
                # Defer the login, so that this try counts as no failure.
                self._is_innocent = True
                raise FetchError(Reason.HOST_UNREACHABLE, wait.cause) from wait
            started_at = time.monotonic()
            try:
                return await self.ask(attempt, request)
            except FetchError as error:
                self._is_innocent |= await admission.is_innocent(url, error, started_at=started_at)
                raise
            finally:
                admission.note_request(url)

    def _add_cookie(self, url: str, name: str, value: str) -> None:
        """Add a cookie that the spider sets; raises `ValueError`."""
        self._login_cookies.add(name, value, url=urls.parse(url))

    async def _write(self, final_identity: Identity) -> bool:
        """Write how the login ended; return False if another process took the login over."""
        # Shield the write, because a cancelled write may have an unknown result.
        with anyio.CancelScope(shield=True):
            if await self.process.ledger.sessions.change(self.identity, final_identity):
                return True
        name = self.identity.name
        logger.info(
            "took over the login of session %s from another worker",
            name,
            extra={"event": "login_taken_over", "session": name},
        )
        return False
