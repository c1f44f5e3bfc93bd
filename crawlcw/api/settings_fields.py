"""Define the kinds of settings, as descriptors that check values and read values from text.

A dataclass field with a descriptor of this module accepts every form of a value (`"30s"`, `30`, a
timedelta), and always stores one type. No error, log or `repr` shows a value that may hold a
secret: headers, a login, proxies, a webhook.
"""

import math
import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import yarl

from crawlcw.errors import SettingsError
from crawlcw.model import durations, proxies, visits
from crawlcw.model.proxies import Proxy
from crawlcw.model.retry import format_statuses, statuses
from crawlcw.model.visits import Recurrence

Input = TypeVar("Input", contravariant=True)
Stored = TypeVar("Stored")

Pairs = Mapping[str, str] | Iterable[tuple[str, str]] | str
UserAndPassword = tuple[str, str] | str
ProxyTexts = Iterable[str | Proxy] | str | None

#: Names and values of headers (RFC 9110, sections 5.1 and 5.5).
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*\Z")
_DOWNLOADER_HEADERS = frozenset(
    {
        *("accept-encoding", "connection", "content-length", "host", "keep-alive"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    }
)


class SettingField(Generic[Input, Stored]):
    """A setting with its default, its unit and its description."""

    def __init__(self, default: Input, doc: str, *, unit: str = "") -> None:
        self.doc = doc
        self.unit = unit
        self.name = ""
        self.default = self.read(default)
        self._default_input = default

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    if TYPE_CHECKING:
        # Only type checkers need `__get__`. At run time Python finds a setting in the instance's
        # dictionary first, without a call.
        def __get__(self, instance: object, owner: type) -> Stored: ...

    def __set__(self, instance: object, value: "Input | SettingField[Input, Stored]") -> None:
        if value is self:  # the dataclass default
            instance.__dict__[self.name] = self.default
            return
        try:
            instance.__dict__[self.name] = self.read(cast("Input", value))
        except SettingsError as error:
            raise SettingsError(f"setting {self.name}: {error}") from None

    def read(self, value: Input) -> Stored:
        """Return *value* converted to the field's type; raises `SettingsError` with a message."""
        raise NotImplementedError

    def shown(self) -> str:
        """Return the default as text that a user would write."""
        return "none" if self._default_input in (None, (), {}) else str(self._default_input)


class Count(SettingField[int | str, int]):
    """A setting with a whole number of at least *minimum*."""

    def __init__(self, default: int, doc: str, *, unit: str = "", minimum: int = 0) -> None:
        self.minimum = minimum
        super().__init__(default, doc, unit=unit)

    def read(self, value: int | str) -> int:
        number = None if isinstance(value, bool) else _whole_number(value)
        if number is None or number < self.minimum or number > 1 << 40:
            raise SettingsError(f"{value!r} is not a whole number of at least {self.minimum}")
        return number


class Ceiling(SettingField[int | str | None, int | None]):
    """A setting with a whole number of at least *minimum*, or None (`none`) for no limit."""

    def __init__(self, default: int | None, doc: str, *, unit: str = "", minimum: int = 1) -> None:
        self.minimum = minimum
        super().__init__(default, doc, unit=unit)

    def read(self, value: int | str | None) -> int | None:
        if value is None or is_none(value):
            return None
        number = None if isinstance(value, bool) else _whole_number(value)
        if number is None or number < self.minimum:
            raise SettingsError(
                f"{value!r} is neither a whole number of at least {self.minimum} nor none"
            )
        return number


class Tolerance(SettingField[int | float | str | None, int | float | None]):
    """A setting with a count (`100`), a share (`5%`, `0.05`), or None (`none`) for no limit."""

    def read(self, value: int | float | str | None) -> int | float | None:
        if value is None or is_none(value):
            return None
        number = None if isinstance(value, bool) else _count_or_share(value)
        if number is None or number < 0 or (isinstance(number, float) and not number <= 1):
            raise SettingsError(f"{value!r} is neither a count, nor a share such as 5%, nor none")
        return number

    def shown(self) -> str:
        return tolerance(self.default)


def tolerance(value: int | float | None) -> str:
    """Return a count or a share as text that a user would write."""
    if value is None:
        return "none"
    return f"{100 * value:g}%" if isinstance(value, float) else f"{value:,}"


class Duration(SettingField[timedelta | float | str, timedelta]):
    """A setting with a duration: a timedelta, a number of seconds, or text such as `30s`."""

    def __init__(self, default: str, doc: str, *, minimum: timedelta = timedelta(0)) -> None:
        self.minimum = minimum
        super().__init__(default, doc, unit="duration")

    def read(self, value: timedelta | float | str) -> timedelta:
        duration = durations.duration(value)
        if duration < self.minimum:
            minimum_seconds = self.minimum.total_seconds()
            raise SettingsError(f"{value!r} is too short: write at least {minimum_seconds:g} s")
        return duration


class Revisit(SettingField[timedelta | float | str | None, Recurrence]):
    """The time until the next visit of a page: a duration, `adaptive`, or `never` (also None)."""

    def read(self, value: timedelta | float | str | None) -> Recurrence:
        return visits.NEVER if value is None else visits.recurrence(value)


class Flag(SettingField[bool | str, bool]):
    """A setting that is true or false; in text also `1`, `0`, `yes`, `no`, `on`, `off`."""

    _WORDS = dict.fromkeys(("true", "1", "yes", "on"), True)
    _WORDS |= dict.fromkeys(("false", "0", "no", "off"), False)

    def read(self, value: bool | str) -> bool:
        if isinstance(value, bool):
            return value
        flag = self._WORDS.get(str(value).strip().lower())
        if flag is None:
            raise SettingsError(f"{value!r} is neither true nor false")
        return flag

    def shown(self) -> str:
        return str(self.default).lower()


class Size(SettingField[int | str, int]):
    """A setting with a number of bytes; in text also `64 KiB`, `10 MiB`, `1 GiB`."""

    _UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
    _UNITS |= {"kb": 10**3, "mb": 10**6, "gb": 10**9}
    _TEXT = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)\Z")

    def __init__(self, default: str, doc: str) -> None:
        super().__init__(default, doc, unit="bytes")

    def read(self, value: int | str) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        match = self._TEXT.match(str(value).strip().lower())
        number = float(match[1]) * self._UNITS.get(match[2], 0) if match else 0.0
        size = int(number) if math.isfinite(number) else 0
        if size <= 0:
            raise SettingsError(
                f"{value!r} is not a size: write a number of bytes, or a text such as 10 MiB"
            )
        return size


class SizeCeiling(SettingField[int | str | None, int | None]):
    """A setting with a number of bytes like `Size`, or None (in text: `none`) for no limit."""

    def read(self, value: int | str | None) -> int | None:
        if value is None or is_none(value):
            return None
        return Size("1", "").read(value)


class Choice(SettingField[str, str]):
    """A setting whose value is one of a few words."""

    def __init__(self, default: str, doc: str, *, choices: tuple[str, ...]) -> None:
        self.choices = choices
        super().__init__(default, doc, unit=" or ".join(choices))

    def read(self, value: str) -> str:
        if value not in self.choices:
            raise SettingsError(f"{value!r} is not one of {', '.join(self.choices)}")
        return value


class Text(SettingField[str, str]):
    """A setting whose value is one line of visible text."""

    def read(self, value: str) -> str:
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            raise SettingsError(f"{value!r} is not one line of visible text")
        return value


class Statuses(SettingField[Iterable[int | str] | int | str, tuple[int, ...]]):
    """A setting with HTTP statuses: numbers, or text such as `404,500-599`, or `none`."""

    def __init__(self, default: Iterable[int], doc: str) -> None:
        super().__init__(tuple(default), doc, unit="statuses")

    def read(self, value: Iterable[int | str] | int | str) -> tuple[int, ...]:
        return statuses(value)

    def shown(self) -> str:
        return format_statuses(self.default)


class Names(SettingField[Iterable[str] | str, tuple[str, ...]]):
    """A setting with a list of names; in text separated by commas, or `none`.

    Without *choices*, a name may be any text.
    """

    def __init__(
        self, default: Iterable[str], doc: str, *, unit: str = "", choices: tuple[str, ...] = ()
    ) -> None:
        self.choices = choices
        super().__init__(default, doc, unit=unit)

    def read(self, value: Iterable[str] | str) -> tuple[str, ...]:
        if value == "none":
            return ()
        parts: Iterable[Any] = value.split(",") if isinstance(value, str) else value
        try:
            names = tuple(part.strip() for part in parts)
        except (TypeError, AttributeError):
            raise SettingsError(f"{value!r} is not a list of names") from None
        for name in filter(None, names):
            if self.choices and name not in self.choices:
                raise SettingsError(f"{name!r} is not one of {', '.join(self.choices)}")
        return tuple(filter(None, names))

    def shown(self) -> str:
        return ",".join(self.default) or "none"


class SecretPairs(tuple[tuple[str, str], ...]):
    """A tuple of headers whose `repr` hides the values."""

    def __repr__(self) -> str:
        return f"<headers {', '.join(name for name, _ in self) or 'none'}>"


class SecretLogin(tuple[str, str]):
    """A user and a password, which the `repr` hides."""

    def __repr__(self) -> str:
        return "<a user and a password>"


class SecretProxies(tuple[Proxy, ...]):
    """A tuple of proxies whose `repr` hides users and passwords."""

    def __repr__(self) -> str:
        return f"<proxies {', '.join(map(str, self)) or 'none'}>"


class SecretUrl(str):
    """A URL that may have a secret key in its path, so `repr` hides the URL."""

    def __repr__(self) -> str:
        return "<a URL>"


class Headers(SettingField[Pairs, SecretPairs]):
    """A setting with headers by name; in text each line is `Name: value`."""

    def read(self, value: Pairs) -> SecretPairs:
        return SecretPairs(_checked_header(name, content) for name, content in _header_pairs(value))


class Login(SettingField[UserAndPassword | None, SecretLogin | None]):
    """A setting with a user and a password: a pair, or in text `user:password` or `none`."""

    def read(self, value: UserAndPassword | None) -> SecretLogin | None:
        if value is None or is_none(value):
            return None
        user_and_password: Any = (
            value.partition(":")[::2] if isinstance(value, str) and ":" in value else value
        )
        if (
            not isinstance(user_and_password, list | tuple)
            or len(user_and_password) != 2
            or not all(isinstance(text, str) and text.isprintable() for text in user_and_password)
            or ":" in user_and_password[0]
        ):
            raise SettingsError("it is not a user with a password: write user:password, or a pair")
        return SecretLogin(user_and_password)


class Proxies(SettingField[ProxyTexts, SecretProxies]):
    """A setting with URLs of proxies. A text separates the URLs by commas or spaces."""

    def read(self, value: ProxyTexts) -> SecretProxies:
        if isinstance(value, str):
            value = [] if is_none(value) else value.replace(",", " ").split()
        try:
            proxy_entries = [] if value is None else list(value)
        except TypeError:
            raise SettingsError(
                "it is neither a list of URLs such as http://host:port nor None"
            ) from None
        proxy_list = []
        for number, entry in enumerate(proxy_entries, 1):
            try:
                proxy_list.append(entry if isinstance(entry, Proxy) else proxies.parse(entry))
            except SettingsError as error:
                label = (
                    "the proxy"
                    if len(proxy_entries) == 1
                    else f"proxy {number} of {len(proxy_entries)}"
                )
                raise SettingsError(f"{label}: {error}") from None
        # Duplicates stay: a proxy that is listed twice gets twice as many requests.
        return SecretProxies(proxy_list)


class Webhook(SettingField[str | None, SecretUrl | None]):
    """A setting with the URL of a server, or None (in text: `none`)."""

    def read(self, value: str | None) -> SecretUrl | None:
        if value is None or is_none(value):
            return None
        try:
            url = yarl.URL(value.strip())
            is_valid = url.scheme in ("http", "https") and bool(url.host)
        except (AttributeError, TypeError, ValueError):
            is_valid = False
        if not is_valid:
            raise SettingsError("it is not the URL of a server: write https://host/path")
        return SecretUrl(value.strip())


def is_none(value: object) -> bool:
    """Return whether a text (empty or `none`) gives a setting no value."""
    return isinstance(value, str) and value.strip().lower() in ("", "none")


def _count_or_share(value: int | float | str) -> int | float | None:
    """Return a whole number as an int and a share as a float, or None for anything else."""
    if isinstance(value, int | float):
        return value
    if (number := _whole_number(value)) is not None:
        return number
    try:
        percent = value.strip().endswith("%")
        return float(value.strip().removesuffix("%")) / (100 if percent else 1)
    except (ValueError, AttributeError):
        return None


def _whole_number(value: int | str) -> int | None:
    """Return a whole number, or None for anything else, such as `8.5`."""
    try:
        return int(value) if isinstance(value, int | str) else None
    except ValueError:
        return None


def _header_pairs(value: Pairs) -> list[tuple[Any, Any]]:
    pairs: Any = value
    if isinstance(value, str):
        lines = [] if is_none(value) else [line for line in value.splitlines() if line.strip()]
        if not all(":" in line for line in lines):
            raise SettingsError("they are not headers: write `Name: value`, one a line")
        pairs = [[text.strip() for text in line.split(":", 1)] for line in lines]
    if isinstance(pairs, Mapping):
        return list(pairs.items())
    try:
        return [(name, content) for name, content in pairs]
    except (TypeError, ValueError):
        raise SettingsError("they are not headers: write a mapping of names to values") from None


def _checked_header(name: object, header_value: object) -> tuple[str, str]:
    if not isinstance(name, str) or not _HEADER_NAME.match(name):
        raise SettingsError("one of the headers has an invalid name")
    if not isinstance(header_value, str) or not _HEADER_VALUE.match(header_value):
        raise SettingsError(f"the value of {name} is not one line of text")
    if name.lower() == "user-agent":
        raise SettingsError(
            "set user_agent instead, because crawlcw also reads robots.txt by that name"
        )
    if name.lower() in _DOWNLOADER_HEADERS:
        raise SettingsError(f"only the downloader sets {name}: remove it")
    return name, header_value
