"""Check the arguments of a request that the ledger stores, and refuse unknown arguments."""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

from crawlcw.api.scrapy_words import REQUEST_ARGUMENTS
from crawlcw.errors import InvalidItemError, SettingsError, SpiderError
from crawlcw.model import durations, proxies, values, visits
from crawlcw.model.identities import SESSION_NAMES, is_session_name
from crawlcw.model.retry import statuses
from crawlcw.model.task import RequestOptions

Statuses = int | str | Iterable[int | str]

#: A token of RFC 9110, section 5.6.2: the name of a header, or of a cookie.
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
#: A header value (RFC 9110, section 5.5): no surrogate, and no control character except the tab.
_HEADER = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]*\Z")
#: A cookie's value (RFC 6265, section 4.1.1); spaces and commas are also allowed, as in browsers.
_COOKIE = re.compile(r"[\x20-\x3a\x3c-\x7e]*\Z")


def options(values: Iterable[Any]) -> RequestOptions:
    """Return a request's options; *values* are the request's arguments in the order of `OPTIONS`.

    Raises `SpiderError`.
    """
    read = {}
    for (name, reader), value in zip(OPTIONS.items(), values, strict=True):
        if value is not None:
            try:
                read[name] = reader(value)
            except SettingsError as error:
                raise SpiderError(f"Request({name}=...): {error}") from None
    return RequestOptions(**read)


def headers(fields: object, *, of: str = "Request(headers=...)") -> tuple[tuple[str, str], ...]:
    """Return header fields as pairs of texts; a number becomes text. Raises `SpiderError`."""
    pairs = _name_value_pairs("headers", fields)
    for name, value in pairs:
        # The error message omits the value, which may be a secret.
        if not isinstance(name, str) or not isinstance(value, str | int):
            raise SpiderError(
                f"{of}: {name!r} is {_type_phrase(value)}: write its name and value as text, "
                "or leave out the header"
            )
        if not _TOKEN.match(name):
            raise SpiderError(f"{of}: {name!r} is not the name of a header")
        if not _HEADER.match(str(value)):
            raise SpiderError(f"{of}: the value of {name} is not one line of text")
    return tuple((name, str(value)) for name, value in pairs)


def form(data: Any) -> bytes:
    """Return form fields encoded as a body; raises `SpiderError`."""
    pairs = _name_value_pairs("data", data)
    for name, value in pairs:
        if value is None or (isinstance(value, list | tuple) and None in value):
            raise SpiderError(
                f"Request(data=...): {name!r} is None: write '' for an empty field, "
                "or leave the field out"
            )
    _check_values("data", dict(pairs))
    return urlencode(pairs, doseq=True).encode()


def check_context(context: object) -> None:
    """Raise `SpiderError` if the ledger could not return the request's *context* unchanged."""
    if not isinstance(context, Mapping):
        raise SpiderError(
            f"Request(context=...) takes a mapping, not a value {_type_phrase(context)}"
        )
    _check_values("context", context)


def unknown_argument(name: str, known_names: Iterable[str]) -> SpiderError:
    """Return the error for an argument that `Request` does not accept."""
    if name in REQUEST_ARGUMENTS:
        replacement = REQUEST_ARGUMENTS[name]
        return SpiderError(f"Request({name}=...) means nothing here: write {replacement}")
    close_names = difflib.get_close_matches(name, known_names, n=1)
    hint = (
        f"did you mean {close_names[0]}=?"
        if close_names
        else "`crawlcw guide requests` lists its arguments"
    )
    return SpiderError(f"Request has no argument {name}=: {hint}")


def _whole_number(name: str, *, minimum: int) -> Callable[[object], object]:
    def read_whole(value: object) -> object:
        if type(value) is not int or value < minimum:
            raise SpiderError(
                f"Request({name}={value!r}) must be a whole number, {minimum} or more"
            )
        return value

    return read_whole


def _seconds(timeout: timedelta | float | str) -> float:
    seconds = durations.duration(timeout).total_seconds()
    if not seconds:
        raise SpiderError(f"Request(timeout={timeout!r}) must be longer than 0 s")
    return seconds


def _session(name: str) -> str:
    if not is_session_name(name):
        raise SpiderError(f"Request(session={name!r}) is not a valid name: {SESSION_NAMES}")
    return name


def _proxy(proxy: str) -> str:
    try:
        return proxy if proxy == proxies.DIRECT else proxies.parse(proxy).url
    except SettingsError as error:
        # The error message omits the URL, which may have a password.
        raise SettingsError(f"{error}; or `direct`") from None


def _unchanged(value: object) -> object:
    return value


def _type_phrase(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"


def _name_value_pairs(name: str, value: object) -> list[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())
    if not isinstance(value, Iterable) or isinstance(value, str | bytes):
        raise SpiderError(
            f"Request({name}=...) takes a mapping or pairs, not a value {_type_phrase(value)}"
        )
    pairs = list(value)
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise SpiderError(
                f"Request({name}=...) takes a mapping, or pairs of a name and a value"
            )
    return [(first, second) for first, second in pairs]


def _check_values(name: str, fields: Mapping[Any, Any]) -> None:
    try:
        values.check(fields)
    except InvalidItemError as error:
        raise SpiderError(f"Request({name}=...): {error}") from None


def _cookie_pairs(cookies: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    if not isinstance(cookies, Mapping):
        raise SpiderError(
            f"Request(cookies=...) takes a mapping, not a value {_type_phrase(cookies)}"
        )
    for name, value in cookies.items():
        if not (_TOKEN.match(name) and isinstance(value, str) and _COOKIE.match(value)):
            # The error message omits the value, which may be a secret.
            raise SpiderError(
                f"Request(cookies=...): the name or value of the cookie {name!r} is invalid"
            )
    return tuple(cookies.items())


#: The options of a request, and the functions that read their values.
OPTIONS: Mapping[str, Callable[[Any], Any]] = {
    "max_retry": _whole_number("max_retry", minimum=1),
    "browser": _unchanged,
    "save_to": _unchanged,
    "truncate": _unchanged,
    "timeout": _seconds,
    "retry_statuses": statuses,
    "accept_statuses": statuses,
    "max_depth": _whole_number("max_depth", minimum=0),
    "revisit": lambda revisit: visits.stored(visits.recurrence(revisit)),
    "max_body": _whole_number("max_body", minimum=0),
    "session": _session,
    "proxy": _proxy,
    "cookies": _cookie_pairs,
}
