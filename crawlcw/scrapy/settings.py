"""Read the settings of a Scrapy project as settings of crawlcw.

Settings that Scrapy's own components read stay theirs: cookies, depth, redirects, HTTP errors,
caches, CLOSESPIDER_*. LOG_LEVEL has no effect, because `crawlcw run --log-level` sets the level.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from scrapy.settings import BaseSettings

from crawlcw.api.host_limits import Limit, Limits
from crawlcw.api.settings import BUDGET_IN_BODIES, Settings
from crawlcw.errors import SettingsError
from crawlcw.model import urls
from crawlcw.scrapy.components import RETRY, path_of

_LARGEST_BODY = 64 << 20
_LONGEST_CONNECT = 30.0
#: Seconds that stand for no limit, because Scrapy's DOWNLOAD_TIMEOUT = 0 means none.
_NO_TIMEOUT = 24 * 3600.0
_NO_LIMIT = 1 << 30
_WEB = ("http://", "https://")
#: Settings of crawlcw that hold for every Scrapy project.
_COMMON = Settings(
    accept_types=["*/*"],
    truncate=False,
    any_port=True,
    # Scrapy's middlewares follow redirects.
    max_redirects=0,
    # HttpProxyMiddleware reads the proxies of the environment.
    proxy_env=False,
    # Scrapy has no limits against crawler traps, except URLLENGTH_LIMIT.
    max_pages_per_host=None,
    max_links_per_page=_NO_LIMIT,
    max_url_length=None,
    max_path_segments=None,
    max_segment_repeats=None,
    max_query_parameters=None,
    # Scrapy retries without a wait; a short wait lets an overloaded site recover.
    backoff_base="1s",
    backoff_max="60s",
    host_backoff_base="1s",
    host_backoff_max="30s",
    # Callbacks and pipelines of Scrapy projects often block, for example with Selenium.
    callback_timeout="10m",
)


def _timeouts(seconds: float) -> dict[str, Any]:
    timeout = seconds or _NO_TIMEOUT
    connect_timeout = min(timeout, _LONGEST_CONNECT)
    return {"timeout": timeout, "read_timeout": timeout, "connect_timeout": connect_timeout}


def _sizes(number: int) -> dict[str, Any]:
    max_body = min(number or _LARGEST_BODY, _LARGEST_BODY)
    return {"max_body": max_body, "memory_budget": BUDGET_IN_BODIES * max_body}


#: How to read a setting of Scrapy, and the settings of crawlcw for its value.
_CONVERSIONS: dict[str, tuple[Callable[..., Any], Callable[[Any], dict[str, Any]]]] = {
    "CONCURRENT_REQUESTS": (BaseSettings.getint, lambda number: {"concurrency": number}),
    "CONCURRENT_REQUESTS_PER_DOMAIN": (
        BaseSettings.getint,
        lambda number: {"per_host_concurrency": number},
    ),
    "DOWNLOAD_DELAY": (BaseSettings.getfloat, lambda seconds: {"delay": seconds}),
    "AUTOTHROTTLE_ENABLED": (BaseSettings.getbool, lambda is_on: {"auto_throttle": is_on}),
    "ROBOTSTXT_OBEY": (BaseSettings.getbool, lambda is_on: {"obey_robots": is_on}),
    "DOWNLOAD_TIMEOUT": (BaseSettings.getfloat, _timeouts),
    "DOWNLOAD_MAXSIZE": (BaseSettings.getint, _sizes),
    # Scrapy before 2.15 has no setting of this name, and verifies no certificate.
    "DOWNLOAD_VERIFY_CERTIFICATES": (BaseSettings.getbool, lambda is_on: {"insecure": not is_on}),
    "RETRY_TIMES": (BaseSettings.getint, lambda number: {"max_retry": number + 1}),
    "RETRY_HTTP_CODES": (
        BaseSettings.getlist,
        lambda texts: {"retry_statuses": [int(text) for text in texts] or "none"},
    ),
    # The name selects the group in robots.txt. Scrapy sets the header. The last setting counts.
    "USER_AGENT": (BaseSettings.get, lambda text: {"user_agent": (text or "").strip() or "Scrapy"}),
    "ROBOTSTXT_USER_AGENT": (BaseSettings.get, lambda text: {"user_agent": text} if text else {}),
}


def crawlcw_settings(settings: BaseSettings) -> Settings:
    """Return the settings of crawlcw for a project's *settings*.

    Raises `SettingsError`, with Scrapy's name of the setting, for a value that crawlcw refuses.
    """
    converted = replace(_COMMON, allow_private=_named_hosts(settings))
    for name, (read, convert) in _CONVERSIONS.items():
        try:
            converted = replace(converted, **convert(read(settings, name)))
        except (SettingsError, ValueError, TypeError) as error:
            raise SettingsError(f"Scrapy's {name} is {settings.get(name)!r}: {error}") from None
    return converted if uses_retry(settings) else replace(converted, max_retry=1)


def uses_retry(settings: BaseSettings) -> bool:
    """Return whether the project uses Scrapy's own RetryMiddleware."""
    middlewares = settings.getwithbase("DOWNLOADER_MIDDLEWARES")
    positions = {path_of(kind): position for kind, position in middlewares.items()}
    return settings.getbool("RETRY_ENABLED") and positions.get(RETRY) is not None


def _named_hosts(settings: BaseSettings) -> list[str]:
    """Return the hosts of the URLs in *settings*, such as a Splash server's, for any address."""
    values = [value for value in settings.values() if isinstance(value, str)]
    locations = [urls.located(value) for value in values if value.startswith(_WEB)]
    return [entry.host for entry in locations if not isinstance(entry, urls.Refusal)]


def limits_of(settings: BaseSettings) -> dict[str, Limit]:
    """Return the limits of single hosts in DOWNLOAD_SLOTS; raises `SettingsError`."""
    try:
        limits = {
            host: Limit(concurrency=slot.get("concurrency"), delay=slot.get("delay"))
            for host, slot in settings.getdict("DOWNLOAD_SLOTS").items()
        }
        Limits(limits)
    except (SettingsError, ValueError, TypeError, AttributeError) as error:
        raise SettingsError(f"Scrapy's DOWNLOAD_SLOTS: {error}") from None
    return limits
