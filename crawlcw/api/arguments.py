"""The arguments of a request that need a look: those it is stored with, and those it has not."""

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

from crawlcw.api.scrapy_words import REQUEST_ARGUMENTS
from crawlcw.errors import InvalidItemError, SettingsError, SpiderError
from crawlcw.model import durations, proxies, values, visits
from crawlcw.model.identities import SESSION_NAMES, is_session_name
from crawlcw.model.statuses import statuses
from crawlcw.model.task import RequestOptions

Statuses = int | str | Iterable[int | str]

#: A token of RFC 9110, section 5.6.2: the name of a header, or of a cookie.
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
#: RFC 9110, section 5.5: no control character but the tab, and what UTF-8 can say.
_HEADER = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]*\Z")
#: RFC 6265, section 4.1.1; a value with a space or a comma is sent as browsers send it.
_COOKIE = re.compile(r"[\x20-\x3a\x3c-\x7e]*\Z")


def options(
    max_retry: int | None,
    timeout: timedelta | float | str | None,
    retry_statuses: Statuses | None,
    accept_statuses: Statuses | None,
    max_depth: int | None,
    browser: bool | None,
    save_to: str | None,
    truncate: bool | None,
    revisit: timedelta | float | str | None,
    max_body: int | None,
    session: str | None,
    proxy: str | None,
    cookies: Mapping[str, str] | None,
) -> RequestOptions:
    """Return the options of a request; raises `SpiderError`."""
    _check_whole("max_retry", max_retry, least=1)
    _check_whole("max_depth", max_depth, least=0)
    _check_whole("max_body", max_body, least=0)
    if session is not None and not is_session_name(session):
        raise SpiderError(f"Request(session={session!r}) is no name: {SESSION_NAMES}")
    return RequestOptions(
        max_retry=max_retry,
        timeout=None if timeout is None else _seconds(timeout),
        retry_statuses=_statuses("retry_statuses", retry_statuses),
        accept_statuses=_statuses("accept_statuses", accept_statuses),
        max_depth=max_depth,
        browser=browser,
        save_to=save_to,
        truncate=truncate,
        max_body=max_body,
        revisit=None if revisit is None else _recurrence(revisit),
        session=session,
        proxy=None if proxy is None else _proxy(proxy),
        cookies=_cookie_pairs(cookies) if cookies else None,
    )


def headers(given: object, *, of: str = "Request(headers=...)") -> tuple[tuple[str, str], ...]:
    """Return header fields as pairs of text; a number becomes text. Raises `SpiderError`."""
    pairs = _pairs("headers", given)
    for name, value in pairs:
        # Without the value, which may be a secret.
        if not isinstance(name, str) or not isinstance(value, str | int):
            raise SpiderError(
                f"{of}: {name!r} is {_kind(value)}: make both text, or leave the header out"
            )
        if not _TOKEN.match(name):
            raise SpiderError(f"{of}: {name!r} is not the name of a header")
        if not _HEADER.match(str(value)):
            raise SpiderError(f"{of}: the value of {name} is not one line of text")
    return tuple((name, str(value)) for name, value in pairs)


def form(data: Any) -> bytes:
    """Return form fields as they are sent; raises `SpiderError`."""
    pairs = _pairs("data", data)
    for name, value in pairs:
        if value is None or (isinstance(value, list | tuple) and None in value):
            raise SpiderError(
                f"Request(data=...): {name!r} is None: write '' for an empty field, "
                "or leave the field out"
            )
    _check_values("data", dict(pairs))
    return urlencode(pairs, doseq=True).encode()


def json_text(content: object) -> bytes:
    """Return *content* as JSON; raises `SpiderError` for what JSON cannot hold."""
    try:
        return json.dumps(content).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise SpiderError(f"Request(json=...): {error}") from None


def check_context(context: object) -> None:
    """Raise `SpiderError` for a context that would not come back from the ledger as it is."""
    if not isinstance(context, Mapping):
        raise SpiderError(f"Request(context=...) takes a mapping, not a value {_kind(context)}")
    _check_values("context", context)


def unknown(name: str, known: Iterable[str]) -> SpiderError:
    """Return the error for an argument that a request does not have."""
    if name in REQUEST_ARGUMENTS:
        written = REQUEST_ARGUMENTS[name]
        return SpiderError(f"Request({name}=...) means nothing here: write {written}")
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}=?" if near else "`crawlcw guide spiders` lists its arguments"
    return SpiderError(f"Request has no argument {name}=: {hint}")


def _check_whole(name: str, value: object, *, least: int) -> None:
    if value is not None and (type(value) is not int or value < least):
        raise SpiderError(f"Request({name}={value!r}) must be a whole number, {least} or more")


def _seconds(timeout: timedelta | float | str) -> float:
    try:
        seconds = durations.duration(timeout).total_seconds()
    except SettingsError as error:
        raise SpiderError(f"Request(timeout=...): {error}") from None
    if not seconds:
        raise SpiderError(f"Request(timeout={timeout!r}) must be longer than 0 s")
    return seconds


def _recurrence(revisit: timedelta | float | str) -> float | str:
    try:
        return visits.stored(visits.recurrence(revisit))
    except SettingsError as error:
        raise SpiderError(f"Request(revisit=...): {error}") from None


def _proxy(proxy: str) -> str:
    if proxy == proxies.DIRECT:
        return proxy
    try:
        return proxies.parse(proxy).url
    except SettingsError as error:
        # Without the text, which may have a password.
        raise SpiderError(f"Request(proxy=...): {error}; or `direct`") from None


def _statuses(name: str, given: Statuses | None) -> tuple[int, ...] | None:
    if given is None:
        return None
    try:
        return statuses(given)
    except SettingsError as error:
        raise SpiderError(f"Request({name}=...): {error}") from None


def _kind(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"


def _pairs(name: str, given: object) -> list[tuple[Any, Any]]:
    if isinstance(given, Mapping):
        return list(given.items())
    if not isinstance(given, Iterable) or isinstance(given, str | bytes):
        raise SpiderError(
            f"Request({name}=...) takes a mapping or pairs, not a value {_kind(given)}"
        )
    pairs = list(given)
    for each in pairs:
        if not isinstance(each, list | tuple) or len(each) != 2:
            raise SpiderError(
                f"Request({name}=...) takes a mapping or pairs: each a name and a value"
            )
    return [(first, second) for first, second in pairs]


def _check_values(name: str, fields: Mapping[Any, Any]) -> None:
    try:
        values.check(fields)
    except InvalidItemError as error:
        raise SpiderError(f"Request({name}=...): {error}") from None


def _cookie_pairs(cookies: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    if not isinstance(cookies, Mapping):
        raise SpiderError(f"Request(cookies=...) takes a mapping, not a value {_kind(cookies)}")
    for name, value in cookies.items():
        if not (_TOKEN.match(name) and isinstance(value, str) and _COOKIE.match(value)):
            # Without the value, which may be a secret.
            raise SpiderError(f"Request(cookies=...): {name!r} cannot be a cookie of that value")
    return tuple(cookies.items())
