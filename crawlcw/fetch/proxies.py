"""For each request, choose a proxy that works and that the request's host has not banned.

Each proxy has a circuit breaker (`health.ProxyBreaker`). If a proxy cannot be reached, the proxy
has failed. If a request through a reachable proxy fails, another proxy requests the page again:
- If the second request works, one failure counts against each proxy that failed.
- If the second request fails too, and at least one of the tried proxies works for other pages, the
  page or its origin has failed.

So a bad proxy does not make the crawl give up a host, and a bad host makes no proxy fail.
"""

import asyncio
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import timedelta
from types import MappingProxyType

import yarl

from crawlcw.api.attempt import Attempt, Next, replaced
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.errors import FetchError, ProxiesAwayError, ProxyFailedError, Reason, SettingsError
from crawlcw.model import proxies, urls
from crawlcw.model.durations import format_duration
from crawlcw.model.health import HOST_FAILURES, ProxyBreaker, remember
from crawlcw.model.proxies import DIRECT, Proxy, ProxyEnvironment
from crawlcw.model.sanitize import printable

logger = logging.getLogger(__name__)

#: Seconds for which a response through one proxy proves that the origin works.
_RECENT = 60.0
#: Maximum number of proxies that try one page. If all these proxies fail, the page has failed.
_MOST_TRIED = 10
#: Length of the first ban of a proxy by a host, in seconds; each later ban is twice as long.
_FIRST_BAN = 600.0
_LONGEST_BAN = 6 * 3600.0
#: Seconds that a request waits for a usable proxy before `ProxiesAwayError` is raised.
_PATIENCE = 5.0
#: Failures in a row after which a proxy is no longer used, if other proxies got these pages.
_MAX_FAILURES_IN_ROW = 3


class ProxyPool:
    """The proxies of one process, from the settings or else from the environment's variables."""

    def __init__(
        self,
        settings: Settings,
        variables: Mapping[str, str] = MappingProxyType({}),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the environment's proxies, and its `no_proxy` hosts, from *variables*.

        Raises `SettingsError` for an invalid proxy, or if a proxy needs a missing package.
        """
        self.proxies: tuple[Proxy, ...] = tuple(settings.proxies)
        read_environment = ProxyEnvironment.exceptions if self.proxies else ProxyEnvironment.of
        self._environment = read_environment(variables if settings.proxy_env else {})
        self._policy = settings.host_policy
        self._clock = clock
        self._health: OrderedDict[Proxy, ProxyBreaker] = OrderedDict()
        self._next_index = random.randrange(len(self.proxies)) if self.proxies else 0
        #: The end of the last ban and the number of bans, by proxy and host.
        self._bans: OrderedDict[tuple[Proxy, str], tuple[float, int]] = OrderedDict()
        #: For each URL, the failed proxies; their failures count if another proxy gets the page.
        self._failed_by_url: OrderedDict[str, tuple[Proxy, ...]] = OrderedDict()
        #: For each origin, the proxy that last got a response, and the time of that response.
        self._last_answer_by_origin: OrderedDict[str, tuple[Proxy, float]] = OrderedDict()
        #: Function that is called with a reason when all proxies have failed for good.
        self.on_lost: Callable[[str], None] = lambda _: None
        self._all = self.proxies or tuple(set(self._environment.by_scheme.values()))
        self.is_empty = not self._all  #: whether neither settings nor environment name a proxy
        for proxy in self._all:
            check_installed(proxy)

    @property
    def is_lost(self) -> bool:
        """Whether all proxies have failed for good, so that no request waits for a proxy."""
        now = self._clock()
        return bool(self._all) and all(self.health(proxy).is_lost(now=now) for proxy in self._all)

    def asks_for(self, url: str) -> bool:
        """Return whether requests for *url* use a proxy by default."""
        return bool(self._candidates(urls.parse(url)))

    def _candidates(self, target: yarl.URL) -> tuple[Proxy, ...]:
        host = target.raw_host or ""
        if self._environment.no_proxy.covers(host, target.port):
            return ()
        if self.proxies:
            return self.proxies
        proxy = self._environment.proxy_for(target.scheme, host, target.port)
        return () if proxy is None else (proxy,)

    def choose(self, url: str, *, without: Collection[Proxy] = ()) -> Proxy:
        """Return the next proxy for *url*; raises `ProxiesAwayError` if no proxy is usable now.

        The proxy is not in *without*, has not failed recently, and is not banned by the host.
        """
        target = urls.parse(url)
        candidates, host = self._candidates(target), target.raw_host or ""
        tried_proxies = self.tried(url)
        tried_proxy = None
        for step in range(len(candidates)):
            index = (self._next_index + step) % len(candidates)
            proxy = candidates[index]
            if proxy in without or self.wait(proxy, host) > 0:
                continue
            if proxy not in tried_proxies:
                self._next_index = index + 1
                return proxy
            tried_proxy = proxy
        if tried_proxy is not None:
            return tried_proxy
        best_proxy = min(candidates, key=lambda candidate: self.wait(candidate, host))
        is_banned = best_proxy not in without and self.wait(best_proxy) <= 0
        detail = f"{host} has banned it" if is_banned else self.health(best_proxy).cause
        wait_s = max(0.0, self.wait(best_proxy, host))
        raise ProxiesAwayError(f"no proxy is usable now: {detail}", wait=wait_s)

    def wait(self, proxy: Proxy, host: str = "") -> float:
        """Return for how many seconds *proxy* must not be used for *host* ("" means any host)."""
        banned_until, _ = self._bans.get((proxy, host), (0.0, 0))
        return max(self.health(proxy).ready_at, banned_until) - self._clock()

    def ban(self, proxy: Proxy, host: str) -> None:
        """Stop using *proxy* for *host*, which has banned the proxy; concurrent bans count once."""
        banned_until, times = self._bans.get((proxy, host), (0.0, 0))
        now = self._clock()
        if banned_until > now:
            return
        duration_s = min(_FIRST_BAN * (1 << min(times, 10)), _LONGEST_BAN)
        remember(self._bans, (proxy, host), (now + duration_s, times + 1))
        logger.info(
            "the proxy %s is banned at %s: crawlcw does not use it there for %s",
            proxy,
            printable(host),
            format_duration(timedelta(seconds=duration_s)),
            extra={"event": "proxy_banned", "proxy": str(proxy), "host": host},
        )

    def unban(self, host: str) -> None:
        """Forget all bans by *host*, because *host* has banned every proxy."""
        for proxy_and_host in [
            proxy_and_host for proxy_and_host in self._bans if proxy_and_host[1] == host
        ]:
            del self._bans[proxy_and_host]

    def health(self, proxy: Proxy) -> ProxyBreaker:
        """Return the circuit breaker of a proxy."""
        breaker = self._health.get(proxy)
        if breaker is None:
            breaker = ProxyBreaker()
            remember(self._health, proxy, breaker)
        return breaker

    def answered(self, proxy: Proxy, response: Response) -> None:
        """Record a success of *proxy*, unless *response* is an error that *proxy* may have sent."""
        if response.status >= 400 and _may_speak(proxy, response.url):
            return
        origin = urls.origin_of(response.url)
        self.health(proxy).answered()
        remember(self._last_answer_by_origin, origin, (proxy, self._clock()))

    def note_fetched(self, url: str, proxy: Proxy | None) -> None:
        """Record that *proxy* (None if unknown) has fetched *url*, perhaps after redirects.

        A failure counts against each proxy that failed for *url* before.
        """
        for other_proxy in self._failed_by_url.pop(url, ()):
            if proxy not in (None, other_proxy):
                self._note_proxy_failure(other_proxy)

    def _note_proxy_failure(self, proxy: Proxy) -> None:
        message = f"the proxy {proxy} failed for a URL that another proxy could fetch"
        self.failed(proxy, message, tolerated=_MAX_FAILURES_IN_ROW)

    def failed(self, proxy: Proxy, why: str, *, tolerated: int = 1, for_good: bool = False) -> None:
        """Record a failure; after *tolerated* failures in a row, stop the use of *proxy*."""
        breaker, now = self.health(proxy), self._clock()
        if not breaker.fault(
            why, now=now, policy=self._policy, tolerated=tolerated, is_permanent=for_good
        ):
            return
        logger.warning(
            "crawlcw does not use a proxy for %s: %s",
            format_duration(timedelta(seconds=round(breaker.ready_at - now))),
            printable(why),
            extra={"event": "proxy_failed", "proxy": str(proxy)},
        )
        if self.is_lost:
            number = len(self._all)
            subject = "the proxy does" if number == 1 else f"the proxies (all {number}) do"
            self.on_lost(f"{subject} not work: {printable(self.health(self._all[0]).cause)}")

    def tried(self, url: str) -> tuple[Proxy, ...]:
        """Return the proxies that failed for *url* with a cause that is still unknown."""
        return self._failed_by_url.get(url, ())

    def may_be_to_blame(self, error: FetchError, url: str, *, is_fixed: bool) -> bool:
        """Return whether to retry the page now, because the proxy may have caused *error*."""
        wait_s = self.another_in(error, url, is_fixed=is_fixed)
        return wait_s is not None and wait_s <= 0

    def another_in(self, error: FetchError, url: str, *, is_fixed: bool) -> float | None:
        """Return the seconds until another proxy can be tried, to find the cause of *error*.

        If the page or its origin is the cause, return None. *is_fixed* is true if the proxy belongs
        to a session. The failure of such a proxy counts only if another proxy got a response from
        the origin.
        """
        proxy = self._failed_proxy(error)
        if proxy is None:
            return None
        if error.reason is Reason.TIMEOUT_TOTAL and not self.health(proxy).has_worked:
            self.failed(
                proxy, f"the proxy {proxy} has not forwarded any response in time: {error.message}"
            )
            return 0.0
        if proxy not in self.proxies:
            return None
        if is_fixed:
            return 0.0 if self._fails_alone(proxy, error, url) else None
        tried_proxies = tuple(dict.fromkeys((*self._failed_by_url.pop(url, ()), proxy)))
        is_page_fault = len(tried_proxies) > 1 and any(
            self.health(candidate).is_proven for candidate in tried_proxies
        )
        if is_page_fault or len(tried_proxies) >= _MOST_TRIED:
            return None
        host, now = urls.parse(url).raw_host or "", self._clock()
        waits = [
            max(0.0, self.wait(candidate))
            for candidate in self.proxies
            if not (candidate in tried_proxies or self.health(candidate).is_dead)
            and self._bans.get((candidate, host), (0.0, 0))[0] <= now
        ]
        if not waits:
            return None
        remember(self._failed_by_url, url, tried_proxies)
        return min(waits)

    def _failed_proxy(self, error: FetchError) -> Proxy | None:
        """Return the proxy that may have caused *error*, or None if no proxy can be the cause."""
        if isinstance(error.proxy, Proxy):
            return error.proxy
        if not isinstance(error.response, Response):
            return None
        proxy, status = error.response.proxy, error.response.status
        if proxy is None or status < 400 or not _may_speak(proxy, error.response.url):
            return None
        # If the proxy has worked before, a 4xx other than 407 probably comes from the server.
        is_said_by_servers = status < 500 and status != 407
        return None if is_said_by_servers and self.health(proxy).is_proven else proxy

    def _fails_alone(self, proxy: Proxy, error: FetchError, url: str) -> bool:
        """Return whether *proxy* caused *error*, because the origin has answered another proxy."""
        other_proxy, answered_at = self._last_answer_by_origin.get(
            urls.origin_of(url), (proxy, 0.0)
        )
        is_recent = other_proxy != proxy and self._clock() - answered_at < _RECENT
        if is_recent and (error.underlying in HOST_FAILURES or error.proxy is None):
            self._note_proxy_failure(proxy)
            return True
        return False

    def bound(
        self, key: str | None, *, pool_index: int | None = None, is_renewed: bool = False
    ) -> Proxy | None:
        """Return the proxy of a session: the proxy with *key*, if that proxy is still usable.

        If the proxy with *key* is dead, or if *is_renewed* is true, choose a different proxy if
        possible. The search for a different proxy starts at *pool_index*. If the settings have no
        proxies, return None.
        """
        if not self.proxies:
            return None
        bound_proxies = [proxy for proxy in self.proxies if proxy.key == key]
        if bound_proxies and not is_renewed and not self.health(bound_proxies[0]).is_dead:
            return bound_proxies[0]
        start = self._next_index if pool_index is None else pool_index % len(self.proxies)
        self._next_index = (self._next_index + 1) % len(self.proxies)
        proxies_in_order = self.proxies[start:] + self.proxies[:start]
        alive = [
            candidate
            for candidate in proxies_in_order
            if candidate.key != key and not self.health(candidate).is_dead
        ]
        ready = [candidate for candidate in alive if self.wait(candidate) <= 0]
        return (ready or alive or bound_proxies or proxies_in_order)[0]

    def away(self) -> tuple[float, str] | None:
        """Return the seconds until a proxy is usable, and why; None if a proxy is usable now."""
        if self.is_empty:
            return None
        first_breaker = min(map(self.health, self._all), key=lambda breaker: breaker.ready_at)
        wait_s = first_breaker.ready_at - self._clock()
        return (wait_s, first_breaker.cause) if wait_s > 0 else None


def _may_speak(proxy: Proxy, url: str) -> bool:
    """Return whether *proxy* itself may have sent the response: it can do so without TLS."""
    return url.startswith("http:") and not proxy.is_socks


class Proxies:
    """Layer that sends a request through its own proxy, its session's proxy, or a pool's proxy.

    Sends nothing, and raises `ProxiesAwayError`, if no proxy is usable now. If a sent request
    fails, the error's attribute `proxy` names the proxy that was used.
    """

    def __init__(self, pool: ProxyPool) -> None:
        self._pool = pool

    def __call__(self, attempt: Attempt, request: Request, call_next: Next) -> Awaitable[Response]:
        """Return the response; later requests of the attempt use the same proxy if it is usable."""
        proxy_url = request.options.proxy
        if proxy_url == DIRECT or (
            proxy_url is None and (self._pool.is_empty or not self._pool.asks_for(request.url))
        ):
            attempt.proxy = None
            return call_next(attempt, request)
        return self._fetch(attempt, request, call_next)

    async def _fetch(self, attempt: Attempt, request: Request, call_next: Next) -> Response:
        tried_proxies: set[Proxy] = set()
        started_at = time.monotonic()
        while True:
            try:
                proxy = attempt.proxy = self._proxy_for(attempt, request, tried_proxies)
            except ProxiesAwayError as away:
                remaining_s = _PATIENCE - (time.monotonic() - started_at)
                if remaining_s <= 0 or away.is_dead or self._pool.is_lost:
                    raise
                with attempt.deadline:
                    await asyncio.sleep(max(0.01, min(away.wait, remaining_s)))
                tried_proxies.clear()
                continue
            try:
                response = await call_next(attempt, request)
            except ProxyFailedError as failure:
                if failure.request_failure is not None and self._pool.health(proxy).has_worked:
                    failure.request_failure.proxy = proxy
                    raise failure.request_failure from None
                # The server has got nothing yet, so another proxy may send the request.
                attempt.proxy = attempt.kept_proxy = None
                self._pool.failed(proxy, failure.message, for_good=failure.is_permanent)
                tried_proxies.add(proxy)
                continue
            except FetchError as error:
                error.proxy = proxy
                raise
            self._pool.answered(proxy, response)
            return replaced(response, proxy=proxy)

    def _proxy_for(self, attempt: Attempt, request: Request, tried_proxies: set[Proxy]) -> Proxy:
        """Return the proxy to send *request* through.

        Raises `FetchError`. Raises `SettingsError` if the proxy needs a package that is missing.
        """
        proxy_url = request.options.proxy
        if proxy_url is not None:
            proxy = proxies.parse(proxy_url)
            check_installed(proxy)
        elif attempt.session is not None and attempt.session.proxy is not None:
            proxy = attempt.session.proxy
        else:
            if attempt.kept_proxy is None:
                attempt.kept_proxy = self._pool.choose(request.url, without=tried_proxies)
            return attempt.kept_proxy
        # If the request or its session names a proxy, no other proxy can replace it.
        wait_s, health = self._pool.wait(proxy), self._pool.health(proxy)
        if proxy not in tried_proxies and wait_s <= 0:
            return proxy
        if health.is_dead and proxy_url is not None:
            raise FetchError(Reason.PROXY, health.cause)
        raise ProxiesAwayError(health.cause, wait=max(wait_s, 0.0), is_dead=health.is_dead)


def check_installed(proxy: Proxy) -> None:
    """Raise `SettingsError` if *proxy* needs a package that is not installed."""
    if proxy.is_socks:
        try:
            import python_socks.async_.asyncio  # noqa: F401  # an optional package
        except ImportError:
            raise SettingsError(
                f"the proxy {proxy} needs python-socks: pip install 'crawlcw[socks]'"
            ) from None
