"""The kinds of settings that may hold a secret: no error, log or `repr` shows their values."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import yarl

from crawlcw.api.settings_fields import SettingField, is_none
from crawlcw.errors import SettingsError
from crawlcw.model import proxies
from crawlcw.model.proxies import Proxy

Pairs = Mapping[str, str] | Iterable[tuple[str, str]] | str
UserAndPassword = tuple[str, str] | str
ProxyTexts = Iterable[str | Proxy] | str

#: RFC 9110, sections 5.1 and 5.5.
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*\Z")
_OF_THE_DOWNLOADER = frozenset(
    {
        *("accept-encoding", "connection", "content-length", "host", "keep-alive"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    }
)


class SecretPairs(tuple[tuple[str, str], ...]):
    """Headers, whose values are not shown."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<headers {', '.join(name for name, _ in self) or 'none'}>"


class SecretLogin(tuple[str, str]):
    """A user and a password, which are not shown."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<a user and a password>"


class SecretProxies(tuple[Proxy, ...]):
    """Proxies, whose users and passwords are not shown."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<proxies {', '.join(map(str, self)) or 'none'}>"


class SecretUrl(str):
    """A URL that may have a key in its path, which is not shown."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<a URL>"


class Headers(SettingField[Pairs, SecretPairs]):
    """Headers by name; in text one `Name: value` a line."""

    def read(self, value: Pairs) -> SecretPairs:
        return SecretPairs(_checked(name, content) for name, content in _pairs(value))


class Login(SettingField[UserAndPassword | None, SecretLogin | None]):
    """A user and a password: a pair, or in text `user:password`, or `none`."""

    def read(self, value: UserAndPassword | None) -> SecretLogin | None:
        if value is None or is_none(value):
            return None
        pair: Any = value.partition(":")[::2] if isinstance(value, str) and ":" in value else value
        if (
            not isinstance(pair, list | tuple)
            or len(pair) != 2
            or not all(isinstance(each, str) and each.isprintable() for each in pair)
            or ":" in pair[0]
        ):
            raise SettingsError("it is no user with a password: write user:password, or a pair")
        return SecretLogin(pair)


class Proxies(SettingField[ProxyTexts, SecretProxies]):
    """Proxies by their URLs; in text parted by commas or spaces, or `none`."""

    def read(self, value: ProxyTexts) -> SecretProxies:
        if isinstance(value, str):
            value = [] if is_none(value) else value.replace(",", " ").split()
        try:
            given = list(value)
        except TypeError:
            raise SettingsError("they are no list of proxies") from None
        found = []
        for number, each in enumerate(given, 1):
            try:
                found.append(each if isinstance(each, Proxy) else proxies.parse(each))
            except SettingsError as error:
                which = "the proxy" if len(given) == 1 else f"proxy {number} of {len(given)}"
                raise SettingsError(f"{which}: {error}") from None
        # One that is named twice is asked twice as often.
        return SecretProxies(found)


class Webhook(SettingField[str | None, SecretUrl | None]):
    """The URL of a server, or None (in text: `none`)."""

    def read(self, value: str | None) -> SecretUrl | None:
        if value is None or is_none(value):
            return None
        try:
            url = yarl.URL(value.strip())
            well = url.scheme in ("http", "https") and bool(url.host)
        except (AttributeError, TypeError, ValueError):
            well = False
        if not well:
            raise SettingsError("it is no URL to post to: write https://host/path")
        return SecretUrl(value.strip())


def _pairs(value: Pairs) -> list[tuple[Any, Any]]:
    given: Any = value
    if isinstance(value, str):
        lines = [] if is_none(value) else [each for each in value.splitlines() if each.strip()]
        if not all(":" in each for each in lines):
            raise SettingsError("they are no headers: write `Name: value`, one a line")
        given = [[part.strip() for part in each.split(":", 1)] for each in lines]
    if isinstance(given, Mapping):
        return list(given.items())
    try:
        return [(name, content) for name, content in given]
    except (TypeError, ValueError):
        raise SettingsError("they are no headers: write a mapping of names to values") from None


def _checked(name: object, content: object) -> tuple[str, str]:
    if not isinstance(name, str) or not _NAME.match(name):
        raise SettingsError("the name of one of the headers is not that of a header")
    if not isinstance(content, str) or not _VALUE.match(content):
        raise SettingsError(f"the value of {name} is not one line of text")
    if name.lower() == "user-agent":
        raise SettingsError("write the setting user_agent instead, which robots.txt is asked for")
    if name.lower() in _OF_THE_DOWNLOADER:
        raise SettingsError(f"{name} is the downloader's own to send")
    return name, content
