"""The downloader of a crawl: aiohttp behind the proxies and the development cache."""

import os
from collections.abc import Iterable

from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider, entry_urls
from crawlcw.fetch.addresses import PublicNames
from crawlcw.fetch.aiohttp import AiohttpDownloader
from crawlcw.fetch.dev_cache import DevCache
from crawlcw.fetch.pipeline import DefaultDownloader
from crawlcw.fetch.proxies import Proxies, ProxyPool
from crawlcw.model import urls
from crawlcw.model.proxies import ProxyEnvironment


def web(
    spider: Spider,
    settings: Settings,
    *,
    public_names: PublicNames | None = None,
    also: Iterable[str] = (),
    proxies: ProxyPool | None = None,
) -> DefaultDownloader:
    """Return the downloader that a crawl of *spider* uses; *also* are URLs beside its own.

    Its requests go through *proxies*, by default those of the settings and the environment.
    """
    origins = {urls.locate(url).host for url in [*entry_urls(spider), *also]}
    client = AiohttpDownloader(settings, start_origins=origins, public_names=public_names)
    cache = None if settings.cache == "off" else DevCache(settings)
    return DefaultDownloader(client, proxies=Proxies(proxies or proxy_pool(settings)), cache=cache)


def proxy_pool(settings: Settings) -> ProxyPool:
    """Return the proxies of the settings, else those of the environment; raises `SettingsError`."""
    if not settings.proxy_env:
        return ProxyPool(settings)
    read = ProxyEnvironment.exceptions if settings.proxies else ProxyEnvironment.of
    return ProxyPool(settings, read(os.environ))
