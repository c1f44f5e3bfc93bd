"""Requests through proxies: a `Downloader` that chooses one for each, and another if it fails."""

import asyncio
import time

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.downloader.memory_budget import deadline_paused
from crawlcw.downloader.passages import through
from crawlcw.downloader.protocol import Downloader
from crawlcw.downloader.proxy_pool import ProxyPool, own_proxy
from crawlcw.downloader.routes import proxy_of_session, route
from crawlcw.errors import FetchError, ProxiesAwayError, ProxyFailedError, Reason
from crawlcw.model.proxies import DIRECT, Proxy

#: So many seconds a request waits for a proxy here; those that rest longer are waited for
#: without it.
_PATIENCE = 5.0


class ProxyingDownloader:
    """A `Downloader` whose requests go through the proxies of a pool, or the one they name.

    Raises `ProxiesAwayError` where nothing was asked because no proxy can be used now;
    the error of a request that was sent has its `proxy`.
    """

    def __init__(self, downloader: Downloader, pool: ProxyPool) -> None:
        self._downloader = downloader
        self._pool = pool

    async def fetch(self, request: Request, *, url: str) -> Response:
        """Return the response; see `Downloader`."""
        tried: set[Proxy] = set()
        began = time.monotonic()
        while True:
            try:
                proxy = self._proxy_for(request, url, tried)
            except ProxiesAwayError as away:
                left = _PATIENCE - (time.monotonic() - began)
                if left <= 0 or away.is_dead or self._pool.is_lost:
                    raise
                with deadline_paused():
                    await asyncio.sleep(max(0.01, min(away.wait, left)))
                tried.clear()
                continue
            if proxy is None:
                if (on := route.get()) is not None:
                    on.proxy = None
                return await self._downloader.fetch(request, url=url)
            try:
                return await self._through(proxy, request, url)
            except ProxyFailedError as error:
                # Nothing was sent to the server, so another one may do it.
                self._pool.failed(proxy, error)
                tried.add(proxy)

    async def close(self) -> None:
        """Close what it asks."""
        await self._downloader.close()

    async def _through(self, proxy: Proxy, request: Request, url: str) -> Response:
        on = route.get()
        if on is not None:
            on.proxy = proxy
        try:
            with through(proxy):
                response = await self._downloader.fetch(request, url=url)
        except ProxyFailedError as failure:
            if failure.otherwise is not None and self._pool.health(proxy).has_worked:
                failure.otherwise.proxy = proxy
                raise failure.otherwise from None
            if on is not None:
                on.proxy = on.kept = None
            raise
        except FetchError as error:
            error.proxy = proxy
            raise
        self._pool.answered(proxy, response)
        response.proxy = proxy
        return response

    def _proxy_for(self, request: Request, url: str, tried: set[Proxy]) -> Proxy | None:
        """Return the proxy for an exchange, None for none; raises `FetchError`."""
        named = request.options.proxy
        if named == DIRECT:
            return None
        if named is not None:
            return self._if_ready(own_proxy(named), tried, waits=False)
        if not self._pool.asks_for(url):
            return None
        if (fixed := proxy_of_session()) is not None:
            return self._if_ready(fixed, tried, waits=True)
        on = route.get()
        if on is None:
            return self._pool.choose(url, without=tried)
        if on.kept is None:
            on.kept = self._pool.choose(url, without=tried)
        return on.kept

    def _if_ready(self, proxy: Proxy, tried: set[Proxy], *, waits: bool) -> Proxy:
        """Return a proxy that no other can stand for; *waits* for one that is dead as well."""
        wait, why = self._pool.rest(proxy), self._pool.health(proxy).why
        if proxy not in tried and wait <= 0:
            return proxy
        is_dead = self._pool.is_dead(proxy)
        if is_dead and not waits:
            raise FetchError(Reason.PROXY, why)
        raise ProxiesAwayError(why, wait=max(wait, 0.0), is_dead=is_dead)
