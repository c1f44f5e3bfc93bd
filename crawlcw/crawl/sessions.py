"""Give each page its session, and find out whether a session is logged in.

All processes share the sessions in the ledger. A process writes changed cookies to the ledger
before the outcomes of their pages. If a page's session is not ready, the page is deferred while one
process logs the session in.

A page that looks logged out has one of two causes: the session is logged out, or it has no right to
the page. A **login probe** tells which: it is a page that only a logged-in session can see. If the
login probe fails too, the session logs in again; if the login probe is good, the page has failed.
If no login probe is known, a login that has not helped any page has failed.
"""

import asyncio
import logging
import random
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime, timedelta

import anyio

from crawlcw.api.attempt import Attempt, LoggedOutError, Next, Purpose, Session
from crawlcw.api.request import Request
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider, logs_in
from crawlcw.crawl.admission import Admission
from crawlcw.crawl.logins import Login
from crawlcw.engine.session import WorkerSession
from crawlcw.errors import Defer, FetchError, StopCrawl
from crawlcw.fetch.cookies import SiteCookies
from crawlcw.fetch.pipeline import RENDERED
from crawlcw.fetch.proxies import ProxyPool
from crawlcw.ledger.sessions import SessionChanges
from crawlcw.model import identities
from crawlcw.model.counters import FinishReason
from crawlcw.model.health import remember
from crawlcw.model.identities import POOLED, Identity
from crawlcw.model.proxies import Proxy
from crawlcw.model.sanitize import printable
from crawlcw.model.task import Task

logger = logging.getLogger(__name__)

#: Seconds between two polls for the end of a login that another process runs.
_POLL_EVERY = 0.2
#: Maximum seconds that a fetcher waits for a login before the fetcher defers the page.
_MAX_WAIT_S = 5.0
_POLL_DELAY = timedelta(seconds=1)
#: Seconds between two writes of changed cookies, and between two reads of other processes' changes.
_KEEP_EVERY = 0.5
_READ_EVERY = 2.0
#: This process forgets a session that has had no page for this number of seconds.
_FORGET_AFTER_S = 300.0
#: Maximum number of good pages to remember as candidates for the login probe.
_MAX_CANDIDATES = 4
#: Number of logins after which a page fails if it still shows a logged-out visitor.
_MAX_REFUSALS = 10
#: Number of logins after which a page fails if its callback still reports a logged-out session.
_MAX_RETIREMENTS = 4
#: The session of a visitor who is not logged in; this session has no cookies and stores none.
_LOGGED_OUT = Session(identity=Identity(name=""), jar=None)


@dataclass(slots=True)
class _SessionEntry:
    """What this process knows of a session."""

    identity: Identity
    jar: SiteCookies
    proxy: Proxy | None = None  #: the proxy that `identity.proxy` names
    ready: bool = False  #: whether pages can use the session, as far as this process knows
    not_before: datetime | None = None  #: earliest time of the next poll of the session
    useful_count: int = 0  #: pages that the login helped and the ledger has not counted yet
    candidates: deque[str] = field(default_factory=lambda: deque(maxlen=_MAX_CANDIDATES))
    read_at: float = 0.0  #: monotonic time of the last read of other processes' changes
    used_at: float = 0.0  #: when a page last used the session
    users: set[bytes] = field(default_factory=set)  #: tasks whose pages may use the session
    waiting: asyncio.Lock = field(default_factory=asyncio.Lock)  #: locked during a login
    keeping: asyncio.Lock = field(default_factory=asyncio.Lock)  #: locked during a write

    @property
    def has_news(self) -> bool:
        """Whether pages have made changes that must be written to the ledger."""
        return self.ready and (self.useful_count > 0 or bool(self.jar.changed))


@dataclass
class Sessions:
    """Gives each page its session, and writes the changes of sessions to the ledger."""

    spider: Spider
    settings: Settings
    process: WorkerSession
    next_by_purpose: Mapping[str, Next]
    _: KW_ONLY
    admission: Admission
    proxies: ProxyPool  #: gives each session a proxy
    end: Callable[[FinishReason, str], None]  #: ends the crawl
    #: Functions that `TaskAdder` calls before it writes tasks, such as `keep` of this object.
    writes_before: list[Callable[[], Awaitable[None]]]
    _entries: dict[str, _SessionEntry] = field(init=False, default_factory=dict)
    #: For each task, the fences (numbers) of logins after which the page still showed a logged-out
    #: visitor.
    _refusals: OrderedDict[bytes, frozenset[int]] = field(init=False, default_factory=OrderedDict)

    def __post_init__(self) -> None:
        """Find out which sessions the spider and its settings define."""
        self._ledger = self.process.ledger
        self._logs_in = logs_in(self.spider)
        names_one = self._logs_in or self.settings.cookies
        #: Name of the session for requests without `session`; None if such requests use no session.
        self._default_name = self.spider.default_session if names_one else None
        self._pool_size = self.settings.sessions
        #: Whether each page has a session.
        self.by_default = bool(self._pool_size or self._default_name)
        self._last_index = random.randrange(self._pool_size) if self._pool_size else 0
        self._process_start = self._ledger.now()

    async def admit(self, task: Task, *, free: Callable[[], None] = lambda: None) -> Session | None:
        """Return a logged-in session for a page; raises `Defer` if a login takes long.

        Calls *free* to free the page's slot before a login, because the login needs a slot of the
        host.
        """
        name = task.options.session or self._pool_session_name(task) or self._default_name
        if name is None:
            return None
        entry = self._entry(name)
        entry.used_at = time.monotonic()
        entry.users.add(task.id)
        if entry.proxy is not None and self.proxies.health(entry.proxy).is_dead:
            entry.ready = False
        if not entry.ready:
            await self._make_ready(entry, free)
            entry.used_at = time.monotonic()
        return Session(identity=entry.identity, jar=entry.jar, proxy=entry.proxy)

    def _pool_session_name(self, task: Task) -> str | None:
        """Return the name of the pool's next session that a page can use without a wait.

        A session whose proxy has failed for the page is used only if no other session is usable.
        """
        now, tried_proxies, fallback_name = self._ledger.now(), self.proxies.tried(task.url), None
        for _ in range(self._pool_size):
            self._last_index = self._last_index % self._pool_size + 1
            name = f"{POOLED}{self._last_index}"
            entry = self._entries.get(name)
            must_wait = (
                entry is not None and entry.not_before is not None and entry.not_before > now
            )
            if entry is None or entry.ready or not must_wait:
                if entry is None or entry.proxy not in tried_proxies:
                    return name
                fallback_name = name
        return fallback_name or (f"{POOLED}{self._last_index}" if self._pool_size else None)

    async def banned(self, used: Session, why: str) -> None:
        """Replace a banned session by a new session with another proxy."""
        entry = self._entry(used.identity.name)
        async with entry.waiting:
            if await self._is_current(entry, used):
                await self._replace(entry, why)

    async def _replace(self, entry: _SessionEntry, reason: str) -> None:
        """Replace a session by a new session of the same name; the caller has locked `waiting`."""
        old_identity = entry.identity
        proxy = self.proxies.bound(old_identity.proxy, is_renewed=True)
        key = None if proxy is None else proxy.key
        new_identity = identities.replaced(
            old_identity, printable(reason), proxy=key, logs_in=self._logs_in
        )
        await self._change(entry, new_identity, "session_retired", "session %s is retired: %s")

    async def _change(
        self, entry: _SessionEntry, new_identity: Identity, event: str, message: str
    ) -> None:
        """Write a session's new state, unless another process has changed the state."""
        entry.ready = False
        if await self._ledger.sessions.change(entry.identity, new_identity):
            entry.identity = new_identity
            logger.info(message, new_identity.name, new_identity.reason, extra={"event": event})
            self._check_given_up(new_identity)

    def answered_well(self, used: Session, task: Task, *, probe: str | None) -> None:
        """Record that a session could see a page; *probe* is a URL to test the login, or None."""
        entry = self._entries.get(used.identity.name)
        if entry is None or entry.identity.fence != used.identity.fence:
            return
        if probe is not None:
            if probe not in entry.candidates:
                entry.candidates.append(probe)
            if self._refusals.pop(task.id, None):
                # The login has helped: before the login, the page showed a logged-out visitor.
                entry.useful_count += 1

    async def logged_out(self, used: Session, task: Task, why: str, *, by_callback: bool) -> bool:
        """Handle a page that shows a logged-out visitor; return whether the page has failed.

        A page that has not failed must be tried again. *by_callback* is true if the page's callback
        has reported that the session is logged out.
        """
        entry = self._entry(used.identity.name)
        async with entry.waiting:
            if not await self._is_current(entry, used):
                return False
            fences = self._refusals.get(task.id, frozenset()) | {used.identity.fence}
            remember(self._refusals, task.id, fences)
            if len(fences) >= (_MAX_RETIREMENTS if by_callback else _MAX_REFUSALS):
                return True
            if not by_callback and await self._is_alive(entry, used, task):
                return True
            if not self._logs_in:
                await self._replace(entry, why)
                return False
            useful = (
                entry.useful_count
                + entry.identity.score
                + (len(entry.candidates) if by_callback else 0)
            )
            scored_identity = replace(entry.identity, score=useful)
            now, policy = self._ledger.now(), self.settings.login_policy
            new_identity = identities.retired(
                scored_identity, printable(why), now=now, policy=policy
            )
            await self._change(entry, new_identity, "logged_out", "session %s is logged out: %s")
        return False

    async def _is_current(self, entry: _SessionEntry, used_session: Session) -> bool:
        """Return whether *used_session* is still the current session of its name."""
        is_same = entry.ready and entry.identity.fence == used_session.identity.fence
        return is_same and await self._read(entry)

    async def _is_alive(self, entry: _SessionEntry, used_session: Session, task: Task) -> bool:
        """Request the login probe; return whether the response shows a logged-in session."""
        probe_url = entry.identity.login_probe
        if probe_url is not None and probe_url != task.url:
            is_refused = await self._is_refused(probe_url, used_session)
            if is_refused is False:
                return True
            if entry.useful_count or entry.identity.score:
                return False
        return await self._has_probe(entry, used_session, task)

    async def _has_probe(self, entry: _SessionEntry, used_session: Session, task: Task) -> bool:
        """Find a login probe among good pages; return whether it shows a logged-in session."""
        for url in reversed(list(entry.candidates)):
            if url == task.url:
                continue
            is_refused = await self._is_refused(url, used_session)
            if is_refused is None:
                continue
            # The page was good with the session but is not good without a login, so use the page
            # as the login probe.
            if is_refused or await self._is_refused(url, _LOGGED_OUT):
                entry.useful_count += 1
                entry.identity = replace(entry.identity, login_probe=url)
                return not is_refused
            # The page is good without a login too, so the page cannot be a login probe.
            if url in entry.candidates:
                entry.candidates.remove(url)
        return False

    async def _is_refused(self, url: str, session: Session) -> bool | None:
        """Return whether a page's response shows a logged-out visitor; None without a response."""
        request, purpose = Request(url), RENDERED if self.settings.browser else Purpose.PAGE
        try:
            async with Attempt(request=request, session=session, may_wait=False) as attempt:
                await self.admission.enter(attempt, url)
                await self.next_by_purpose[purpose](attempt, request)
            self.admission.note_request(url)
        except LoggedOutError:
            return True
        except (FetchError, StopCrawl, Defer):
            # Ignore a user hook's `StopCrawl`, because the hook raises it for the next page too.
            return None
        return False

    def _check_given_up(self, identity: Identity) -> None:
        if identities.is_given_up(identity, process_start=self._process_start):
            number = identity.failures
            logins = "1 login" if number == 1 else f"{number} logins in a row"
            self.end(
                FinishReason.LOGIN_FAILED,
                f"the crawl gave up session {identity.name} after {logins} that did not help; the "
                f"last one: {identity.reason}",
            )

    def _entry(self, name: str) -> _SessionEntry:
        entry = self._entries.get(name)
        if entry is None:
            entry = self._entries[name] = _SessionEntry(Identity(name=name), SiteCookies())
            if self.keep not in self.writes_before:
                self.writes_before.append(self.keep)
        return entry

    async def _make_ready(self, entry: _SessionEntry, free_slot: Callable[[], None]) -> None:
        """Wait until a session is logged in; first start a login unless one is in progress.

        Calls *free_slot* before it waits for a login.
        """
        started_at = time.monotonic()
        self._check_wait(entry)
        if entry.waiting.locked():
            free_slot()
        # Limit the wait, because a login may take minutes and other pages need the fetcher.
        with anyio.move_on_after(_MAX_WAIT_S) as wait_scope:
            await entry.waiting.acquire()
        if wait_scope.cancelled_caught:
            entry.not_before = self._ledger.now() + timedelta(seconds=_MAX_WAIT_S)
            self._check_wait(entry)
        try:
            while not entry.ready:
                if time.monotonic() - started_at > _MAX_WAIT_S:
                    entry.not_before = self._ledger.now() + _POLL_DELAY
                self._check_wait(entry)
                await self._poll(entry, free_slot)
        finally:
            entry.waiting.release()

    def _check_wait(self, entry: _SessionEntry) -> None:
        """Raise `Defer` if it is too early to poll a session."""
        if entry.not_before is not None and entry.not_before > self._ledger.now():
            reason_text = f": {identity.reason}" if (identity := entry.identity).reason else ""
            raise Defer(f"session {identity.name} is not ready{reason_text}", due=entry.not_before)

    async def _poll(self, entry: _SessionEntry, free_slot: Callable[[], None]) -> None:
        """Read a session from the ledger; if it is logged out, wait for a login or start one."""
        name = entry.identity.name
        stored_identity = await self._ledger.sessions.get(name)
        identity = stored_identity or Identity(name=name)
        proxy = self.proxies.bound(identity.proxy, pool_index=_pool_index(name))
        key = None if proxy is None else proxy.key
        if identity.is_ready:
            moved = identity if key == identity.proxy else identities.moved(identity, proxy=key)
            if moved is identity or await self._ledger.sessions.change(stored_identity, moved):
                self._adopt_identity(entry, moved, proxy)
            return
        now = self._ledger.now()
        login_at = identities.earliest_login(identity, now=now, process_start=self._process_start)
        if login_at is None:
            self._check_given_up(identity)
            entry.not_before = now + _POLL_DELAY
        elif login_at > now and identity.owner is None:
            entry.not_before = login_at
        elif login_at > now:
            free_slot()
            await anyio.sleep(min(_POLL_EVERY, (login_at - now).total_seconds()))
        else:
            pending = identities.login_begun(
                identity,
                owner=self.process.worker,
                now=now,
                lease=self.settings.login_timeout,
                proxy=key,
            )
            if not await self._ledger.sessions.change(stored_identity, pending):
                return
            login = Login(
                pending,
                proxy,
                spider=self.spider,
                process=self.process,
                ask=self.next_by_purpose[Purpose.LOGIN],
                settings=self.settings,
                admission=self.admission,
                end=self.end,
            )
            free_slot()
            final_identity = await login.run()
            if final_identity is None:
                return
            entry.identity = final_identity
            if final_identity.is_ready:
                self._adopt_identity(entry, final_identity, proxy)
            else:
                self._check_given_up(final_identity)

    def _adopt_identity(
        self, entry: _SessionEntry, identity: Identity, proxy: Proxy | None
    ) -> None:
        """Set the cookies and the login of *entry* to the values from the ledger."""
        if identity.fence != entry.identity.fence or not entry.ready:
            # Use a new jar, because late responses to requests of an earlier login may set cookies.
            entry.jar = SiteCookies()
            entry.useful_count = 0
            entry.candidates.clear()
        entry.jar.restore(identity.cookies)
        entry.identity, entry.ready, entry.not_before = identity, True, None
        entry.proxy = proxy
        entry.read_at = time.monotonic()

    async def run(self) -> None:
        """Until cancelled, write this process's changes of sessions and read other changes."""
        while True:
            await anyio.sleep(_KEEP_EVERY)
            for entry in list(self._entries.values()):
                await self._keep_cookies(entry)
                now = time.monotonic()
                if entry.ready and entry.used_at > entry.read_at < now - _READ_EVERY:
                    await self._read(entry)
                # Keep a session whose page is still in progress, because the page may set cookies.
                entry.users = {task_id for task_id in entry.users if task_id in self.process.leases}
                is_used = bool(entry.users) or entry.waiting.locked()
                if entry.used_at < now - _FORGET_AFTER_S and not is_used:
                    self._entries.pop(entry.identity.name, None)

    async def keep(self) -> None:
        """Write each session's changes to the ledger, by one write for each session."""
        # Also wait for writes in progress, because a write is durable only when it has ended.
        changed_sessions = [
            entry for entry in self._entries.values() if entry.has_news or entry.keeping.locked()
        ]
        if len(changed_sessions) == 1:
            await self._keep_cookies(changed_sessions[0])
        elif changed_sessions:
            async with anyio.create_task_group() as writers:
                for entry in changed_sessions:
                    writers.start_soon(self._keep_cookies, entry)

    async def _keep_cookies(self, entry: _SessionEntry) -> None:
        async with entry.keeping:
            if not entry.has_news:
                return
            changes = SessionChanges(
                cookies=entry.jar.take_changes(),
                score=entry.useful_count,
                login_probe=entry.identity.login_probe,
            )
            name, fence = entry.identity.name, entry.identity.fence
            entry.useful_count = 0
            if not await self._ledger.sessions.keep(name, fence, changes):
                entry.ready = entry.ready and entry.identity.fence != fence

    async def _read(self, entry: _SessionEntry) -> bool:
        """Read other processes' changes of a session; return whether the session is still valid."""
        async with entry.keeping:
            fence = entry.identity.fence
            identity = await self._ledger.sessions.get(entry.identity.name)
            entry.read_at = time.monotonic()
            if not entry.ready or entry.identity.fence != fence:
                return False
            if identity is None or identity.fence != fence or not identity.is_ready:
                entry.ready = False
                return False
            entry.jar.restore(identity.cookies)
            entry.identity = identity
            return True


def _pool_index(name: str) -> int | None:
    """Return the index of a session in the pool of sessions; None if it is not in the pool."""
    number = name.removeprefix(POOLED)
    return int(number) - 1 if name != number and number.isdigit() else None
