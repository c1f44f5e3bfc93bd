"""Keep the cookie jars of Scrapy's `CookiesMiddleware` in the spider state.

The spider state stores a value for each domain of a jar. `request.meta["cookiejar"]` is the key of
a jar. So the processes of a crawl share all jars, and a killed crawl continues with its cookies.
Two processes overwrite each other's cookies only if they change the same domain of the same jar at
the same time.
"""

import json
import logging
from collections.abc import MutableMapping, Sequence
from http.cookiejar import Cookie
from typing import Any

import scrapy

from crawlcw.errors import SpiderError
from crawlcw.model.sanitize import printable
from crawlcw.model.task import PRIVATE_KEY

logger = logging.getLogger(__name__)

_PREFIX = f"{PRIVATE_KEY} cookies "
#: The attributes of each cookie in the spider state, in their stored order.
_ATTRIBUTES = (
    *("path", "name", "expires", "value", "version", "port", "port_specified", "path_specified"),
    *("domain", "domain_specified", "domain_initial_dot", "secure", "discard"),
)
_MAX_EXPIRES = 1 << 62  #: the latest Unix time, because the spider state has integers of 64 bits


class Jars:
    """The jars of *middleware*, any object whose attribute `jars` maps keys to cookie jars.

    If *middleware* is None, the methods do nothing, because the project uses no cookies.
    """

    def __init__(self, middleware: Any, state: MutableMapping[str, Any]) -> None:
        self._middleware, self._state = middleware, state
        self._values: dict[str, Any] = {}  #: the state's values at the last read, by name
        self._replaced: dict[str, Any] = {}  #: the values that this process has replaced, by name
        #: The stored cookies of each jar by domain; `[None]` if the state has changed since.
        self._stored: dict[Any, dict[str, list[Any]]] = {}
        self._unstored_keys: set[Any] = set()  #: keys of jars that the state cannot store

    def read(self) -> None:
        """Copy the cookies that other processes have changed into the jars."""
        if self._middleware is None:
            return
        values = {n: value for n, value in self._state.items() if n.startswith(_PREFIX)}
        old_values, self._values = self._values, values
        for name in values.keys() | old_values.keys() if values != old_values else ():
            cookies, old_cookies = values.get(name, []), old_values.get(name, [])
            if cookies == old_cookies:
                continue
            domain, key = _hashable(json.loads(name.removeprefix(_PREFIX)))
            self._stored.setdefault(key, {})[domain] = [None]
            # The state returns to an earlier value if the ledger could not record a page. The jar
            # keeps the cookies of such a page, as in Scrapy.
            if cookies != self._replaced.get(name):
                for cookie in cookies:
                    if cookie not in old_cookies:
                        self._middleware.jars[key].set_cookie(_cookie(cookie))

    def keep(self, request: scrapy.Request) -> None:
        """Write the jar of *request* to the spider state, if its cookies have changed."""
        key = request.meta.get("cookiejar")
        if self._middleware is None or key in self._unstored_keys:
            return
        self.read()
        stored = self._stored.get(key, {})
        cookies: dict[str, list[Any]] = {domain: [] for domain in stored}
        for cookie in self._middleware.jars[key]:
            cookies.setdefault(cookie.domain, []).append(cookie)
        # A cookie is equal only to itself, and a jar replaces a cookie to change it.
        changed = {d: members for d, members in cookies.items() if members != stored.get(d)}
        self._stored[key] = cookies
        try:
            for domain, members in changed.items():
                self._write(_PREFIX + json.dumps([domain, key]), members)
        except (SpiderError, TypeError) as error:
            if not self._unstored_keys:
                message = "the jar %s stays in memory, so a killed crawl loses its new cookies: %s"
                event = {"event": "cookies_unstored"}
                logger.warning(message, printable(repr(key)), error, extra=event)
            self._unstored_keys.add(key)

    def _write(self, name: str, cookies: list[Cookie]) -> None:
        old_value = self._values.get(name, [])
        values = {(cookie.path, cookie.name): _value(cookie) for cookie in cookies}
        for path, cookie_name, _, *rest in old_value:
            # The server has deleted a cookie that the jar lacks. Store the cookie as expired,
            # because other processes keep the cookies that a value lacks.
            values.setdefault((path, cookie_name), [path, cookie_name, 0, *rest])
        value = [values[cookie_id] for cookie_id in sorted(values)]
        if value != old_value:
            self._state[name] = value
            self._replaced[name], self._values[name] = old_value, self._state[name]


def _value(cookie: Cookie) -> list[Any]:
    expires = None if cookie.expires is None else min(cookie.expires, _MAX_EXPIRES)
    values = vars(cookie) | {"expires": expires}
    return [values[attribute] for attribute in _ATTRIBUTES]


def _cookie(value: Sequence[Any]) -> Cookie:
    attributes = dict(zip(_ATTRIBUTES, value, strict=True))
    return Cookie(**attributes, comment=None, comment_url=None, rest={})


def _hashable(key: Any) -> Any:
    return tuple(_hashable(member) for member in key) if isinstance(key, list) else key
