"""The layer that chooses a proxy for each exchange, and another one if it fails."""

import asyncio
import time
from collections.abc import Awaitable

from crawlcw.api.attempt import Attempt, Next
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.downloader.proxy_pool import ProxyPool, own_proxy
from crawlcw.errors import FetchError, ProxiesAwayError, ProxyFailedError, Reason
from crawlcw.model.proxies import DIRECT, Proxy

#: So many seconds a request waits for a proxy here; those that rest longer are waited for
#: without it.
_PATIENCE = 5.0


class Proxies:
    """Send requests through the proxies of a pool, of their session, or the one they name.

    Raises `ProxiesAwayError` where nothing was asked because no proxy can be used now;
    the error of a request that was sent has its `proxy`.
    """

    def __init__(self, pool: ProxyPool) -> None:
        self._pool = pool

    def __call__(self, attempt: Attempt, request: Request, call_next: Next) -> Awaitable[Response]:
        """Return the response; an attempt has one proxy, as far as that can be used."""
        named = request.options.proxy
        if named == DIRECT or (named is None and not self._pool.asks_for(request.url)):
            attempt.proxy = None
            return call_next(attempt, request)
        return self._asked(attempt, request, call_next)

    async def _asked(self, attempt: Attempt, request: Request, call_next: Next) -> Response:
        tried: set[Proxy] = set()
        began = time.monotonic()
        while True:
            try:
                proxy = self._proxy_for(attempt, request, tried)
            except ProxiesAwayError as away:
                left = _PATIENCE - (time.monotonic() - began)
                if left <= 0 or away.is_dead or self._pool.is_lost:
                    raise
                with attempt.deadline:
                    await asyncio.sleep(max(0.01, min(away.wait, left)))
                tried.clear()
                continue
            attempt.proxy = proxy
            if proxy is None:
                return await call_next(attempt, request)
            try:
                return await self._through(proxy, attempt, request, call_next)
            except ProxyFailedError as error:
                # Nothing was sent to the server, so another one may do it.
                self._pool.failed(proxy, error)
                tried.add(proxy)

    async def _through(
        self, proxy: Proxy, attempt: Attempt, request: Request, call_next: Next
    ) -> Response:
        try:
            response = await call_next(attempt, request)
        except ProxyFailedError as failure:
            if failure.otherwise is not None and self._pool.health(proxy).has_worked:
                failure.otherwise.proxy = proxy
                raise failure.otherwise from None
            attempt.proxy = attempt.kept_proxy = None
            raise
        except FetchError as error:
            error.proxy = proxy
            raise
        self._pool.answered(proxy, response)
        response.proxy = proxy
        return response

    def _proxy_for(self, attempt: Attempt, request: Request, tried: set[Proxy]) -> Proxy | None:
        """Return the proxy for an exchange, None for none; raises `FetchError`."""
        named = request.options.proxy
        if named == DIRECT:
            return None
        if named is not None:
            return self._if_ready(own_proxy(named), tried, waits=False)
        if not self._pool.asks_for(request.url):
            return None
        if attempt.session is not None and (fixed := attempt.session.proxy) is not None:
            return self._if_ready(fixed, tried, waits=True)
        if attempt.kept_proxy is None:
            attempt.kept_proxy = self._pool.choose(request.url, without=tried)
        return attempt.kept_proxy

    def _if_ready(self, proxy: Proxy, tried: set[Proxy], *, waits: bool) -> Proxy:
        """Return a proxy that no other can stand for; *waits* for one that is dead as well."""
        wait, why = self._pool.rest(proxy), self._pool.health(proxy).why
        if proxy not in tried and wait <= 0:
            return proxy
        is_dead = self._pool.is_dead(proxy)
        if is_dead and not waits:
            raise FetchError(Reason.PROXY, why)
        raise ProxiesAwayError(why, wait=max(wait, 0.0), is_dead=is_dead)
