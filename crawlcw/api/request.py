"""What a spider asks for, and how that becomes a task."""

import json as json_module
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Self
from urllib.parse import urlencode

from crawlcw.errors import FetchError, SpiderError
from crawlcw.model import urls, values
from crawlcw.model.task import BlobRef, Task, task_id
from crawlcw.model.urls import Location

Callback = Callable[..., object] | str
_PRIORITIES = range(-100, 101)


class Request:
    """A URL to fetch, and the spider's method that is to parse it.

    - *callback*, *errback*: a method of the spider, or its name. They are stored
      by name, so that any process can go on with the task.
    - *body*: bytes or text; or *json*: anything JSON can hold; or *data*: form
      fields. The two last set the Content-Type and make the method POST.
    - *context*: a mapping handed on to the response as it is. It is stored, so
      it holds plain values (text, numbers, dates, bytes, lists, mappings).
    - *priority*: -100 to 100, higher first.
    - *dont_filter*: make a task of its own even if the URL is known already.

    Any text will do as a URL: a link that cannot be fetched is dropped by the
    crawl, and counted. Raises `SpiderError` where the arguments contradict each
    other, or *url* is no text.
    """

    __slots__ = (
        "_refusal",
        "body",
        "callback",
        "context",
        "dont_filter",
        "errback",
        "headers",
        "method",
        "priority",
        "url",
    )

    def __init__(
        self,
        url: str,
        callback: Callback | None = None,
        *,
        method: str | None = None,
        headers: Mapping[str, str] | Sequence[tuple[str, str]] | None = None,
        body: bytes | str | None = None,
        json: object = None,
        data: Mapping[str, Any] | None = None,
        context: Mapping[str, Any] | None = None,
        priority: int = 0,
        dont_filter: bool = False,
        errback: Callback | None = None,
    ) -> None:
        if not isinstance(url, str):
            raise SpiderError(f"Request(url=...) takes text, not {type(url).__name__}")
        if priority not in _PRIORITIES:
            raise SpiderError(f"Request(priority={priority!r}) must be a whole number, -100 to 100")
        if not isinstance(body, bytes | str | None):
            raise SpiderError(f"Request(body=...) takes bytes or text, not {type(body).__name__}")
        self._refusal: FetchError | None = None
        self.url = url
        self.callback = "parse" if callback is None else _name(callback, "callback")
        self.errback = None if errback is None else _name(errback, "errback")
        self.headers = _pairs(headers) if headers else ()
        self.method = "GET" if method is None else _method(method)
        self.body = body.encode() if isinstance(body, str) else body
        if json is not None or data is not None:
            self._set_content(json, data, posts=method is None)
        self.context = context
        self.priority = priority
        self.dont_filter = dont_filter

    def _set_content(self, json: object, data: Mapping[str, Any] | None, *, posts: bool) -> None:
        """Make a body of *json* or *data*; *posts*: no method was given."""
        if self.body is not None or (json is not None and data is not None):
            raise SpiderError("Request takes one of body, json and data")
        if data is not None:
            self.body = urlencode(data, doseq=True).encode()
            kind = "application/x-www-form-urlencoded"
        else:
            self.body = json_module.dumps(json).encode()
            kind = "application/json"
        if "content-type" not in (name.lower() for name, _ in self.headers):
            self.headers = (*self.headers, ("Content-Type", kind))
        if posts:
            self.method = "POST"

    @classmethod
    def refused(
        cls, link: str, refusal: FetchError, callback: Callback | None = None, **options: Any
    ) -> Self:
        """Return a request for a link that leads nowhere: its `identity` raises *refusal*."""
        request = cls(link, callback, **options)
        request._refusal = refusal.with_traceback(None)  # it would keep the whole page
        return request

    @classmethod
    def of(cls, task: Task) -> Self:
        """Return the request that *task* was made of."""
        assert not isinstance(task.context, BlobRef), "nothing of a crawl is kept aside"
        return cls(
            task.url,
            task.callback,
            method=task.method,
            headers=task.headers,
            body=task.body,
            context=task.context,
            priority=task.priority,
            errback=task.errback,
        )

    def identity(self, salt: bytes = b"") -> tuple[Location, bytes]:
        """Return where the request leads and the id of its task; raises `FetchError`.

        *salt* tells one `dont_filter` request from another; it must be the
        same when the page that yields it is parsed again.
        """
        if self._refusal is not None:
            raise FetchError(self._refusal.reason, self._refusal.message)
        plain = self.body is None and self.method == "GET" and not self.dont_filter
        if plain and len(self.url) <= urls.LONGEST_CACHED:
            return _identity_of_get(self.url)
        location = urls.locate(self.url)
        salt = salt if self.dont_filter else b""
        return location, task_id(location, method=self.method, body=self.body or b"", salt=salt)

    def task(
        self,
        *,
        now: datetime,
        depth: int = 0,
        parent: bytes | None = None,
        hops: int = 0,
        salt: bytes = b"",
    ) -> Task:
        """Return the task of this request, new and due at *now*.

        *salt* is that of `identity`. Raises `FetchError` for a URL that cannot
        be fetched.
        """
        location, identity = self.identity(salt)
        return Task(
            id=identity,
            url=location.url,
            host=location.host,
            method=self.method,
            headers=self.headers,
            body=self.body,
            callback=self.callback,
            errback=self.errback,
            context=values.clean(self.context) if self.context is not None else None,
            depth=depth,
            parent=parent,
            hops=hops,
            priority=self.priority,
            due=now,
            update_time=now,
            create_time=now,
        )

    def __repr__(self) -> str:
        return f"<Request {self.method} {self.url!r} callback={self.callback}>"


@lru_cache(maxsize=1 << 14)
def _identity_of_get(url: str) -> tuple[Location, bytes]:
    # Most links of a site lead to the same few pages.
    location = urls.locate(url)
    return location, task_id(location)


def _name(callback: Callback, what: str) -> str:
    if isinstance(callback, str):
        return callback
    name = getattr(callback, "__name__", "")
    if not name.isidentifier() or not hasattr(callback, "__self__"):
        raise SpiderError(
            f"Request({what}=...) takes a method of the spider or its name, not {callback!r}"
        )
    return str(name)


def _method(method: str) -> str:
    if not method.isascii() or not method.isalpha():
        raise SpiderError(f"Request(method={method!r}) is not an HTTP method")
    return method.upper()


def _pairs(
    headers: Mapping[str, str] | Sequence[tuple[str, str]],
) -> tuple[tuple[str, str], ...]:
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return tuple((str(name), str(value)) for name, value in pairs)
