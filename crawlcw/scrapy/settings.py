"""Read the settings of a Scrapy project as settings of crawlcw.

Settings that Scrapy's own components read stay theirs: cookies, depth, redirects, HTTP errors,
caches, CLOSESPIDER_*. LOG_LEVEL has no effect, because `crawlcw run --log-level` sets the level.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from crawlcw.api.host_limits import Limit, Limits
from crawlcw.api.settings import BUDGET_IN_BODIES, Settings
from crawlcw.errors import SettingsError
from crawlcw.model import urls

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

RETRY = "scrapy.downloadermiddlewares.retry.RetryMiddleware"
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
#: The setting of crawlcw for a setting of Scrapy, and the method of Scrapy's settings to read it.
_COUNTERPARTS = {
    "CONCURRENT_REQUESTS": ("concurrency", "getint"),
    "CONCURRENT_REQUESTS_PER_DOMAIN": ("per_host_concurrency", "getint"),
    "DOWNLOAD_DELAY": ("delay", "getfloat"),
    "AUTOTHROTTLE_ENABLED": ("auto_throttle", "getbool"),
    "ROBOTSTXT_OBEY": ("obey_robots", "getbool"),
}


def crawlcw_settings(settings: "BaseSettings") -> Settings:
    """Return the settings of crawlcw for a project's *settings*.

    Raises `SettingsError`, with Scrapy's name of the setting, for a value that crawlcw refuses.
    """
    converted = _COMMON
    for name, convert in _conversions(settings):
        try:
            converted = replace(converted, **convert())
        except (SettingsError, ValueError, TypeError) as error:
            raise SettingsError(f"Scrapy's {name} is {settings.get(name)!r}: {error}") from None
    return converted


def _conversions(
    settings: "BaseSettings",
) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Yield the name of each setting of Scrapy, and a function that returns crawlcw's settings."""
    for scrapy_name, (name, read) in _COUNTERPARTS.items():
        yield scrapy_name, partial(_read, settings, scrapy_name, name, read)
    yield "DOWNLOAD_TIMEOUT", lambda: _timeouts(settings.getfloat("DOWNLOAD_TIMEOUT"))
    yield "DOWNLOAD_MAXSIZE", lambda: _sizes(settings.getint("DOWNLOAD_MAXSIZE"))
    # The User-Agent header is Scrapy's; this name only selects the group in robots.txt.
    name = "ROBOTSTXT_USER_AGENT" if settings.get("ROBOTSTXT_USER_AGENT") else "USER_AGENT"
    yield name, lambda: {"user_agent": (settings.get(name) or "").strip() or "Scrapy"}
    yield "DOWNLOAD_VERIFY_CERTIFICATES", lambda: {"insecure": not _verifies(settings)}
    yield "SPLASH_URL", lambda: {"allow_private": _named_hosts(settings)}
    if uses_retry(settings):
        yield "RETRY_TIMES", lambda: {"max_retry": settings.getint("RETRY_TIMES") + 1}
        yield "RETRY_HTTP_CODES", lambda: {"retry_statuses": _retry_statuses(settings)}
    else:
        yield "RETRY_ENABLED", lambda: {"max_retry": 1, "retry_statuses": ()}


def _read(settings: "BaseSettings", scrapy_name: str, name: str, method: str) -> dict[str, Any]:
    return {name: getattr(settings, method)(scrapy_name)}


def uses_retry(settings: "BaseSettings") -> bool:
    """Return whether the project uses Scrapy's own RetryMiddleware."""
    middlewares = settings.getwithbase("DOWNLOADER_MIDDLEWARES")
    positions = {
        key if isinstance(key, str) else f"{key.__module__}.{key.__qualname__}": position
        for key, position in middlewares.items()
    }
    return settings.getbool("RETRY_ENABLED") and positions.get(RETRY) is not None


def limits_of(settings: "BaseSettings") -> dict[str, Limit]:
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


def _named_hosts(settings: "BaseSettings") -> list[str]:
    """Return the hosts of the URLs in *settings*, such as a Splash server's, for any address."""
    values = [value for value in settings.values() if isinstance(value, str)]
    locations = [urls.located(value) for value in values if value.startswith(_WEB)]
    return [entry.host for entry in locations if not isinstance(entry, urls.Refusal)]


def _timeouts(seconds: float) -> dict[str, Any]:
    timeout = seconds or _NO_TIMEOUT
    connect_timeout = min(timeout, _LONGEST_CONNECT)
    return {"timeout": timeout, "read_timeout": timeout, "connect_timeout": connect_timeout}


def _sizes(number: int) -> dict[str, int]:
    max_body = min(number or _LARGEST_BODY, _LARGEST_BODY)
    return {"max_body": max_body, "memory_budget": BUDGET_IN_BODIES * max_body}


def _verifies(settings: "BaseSettings") -> bool:
    # Before Scrapy 2.15, no setting of this name exists, and no certificate is verified.
    return settings.getbool("DOWNLOAD_VERIFY_CERTIFICATES")


def _retry_statuses(settings: "BaseSettings") -> Any:
    return sorted(int(status) for status in settings.getlist("RETRY_HTTP_CODES")) or "none"
