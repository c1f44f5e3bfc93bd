"""Define a spider's request, and make the request's task for the ledger."""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from json import dumps
from typing import Any, Never, Self

from crawlcw.api import arguments
from crawlcw.api.arguments import Statuses
from crawlcw.errors import FetchError, SpiderError
from crawlcw.model import urls, values
from crawlcw.model.sanitize import redacted
from crawlcw.model.task import NO_OPTIONS, BlobRef, ChangedTask, Task, task_id
from crawlcw.model.urls import Location, Refusal
from crawlcw.model.visits import NEVER

Callback = Callable[..., object] | str
_PRIORITIES = range(-100, 101)
_NO_OPTIONS = (None,) * len(arguments.OPTIONS)
#: The time that *changed* has for the option *each_run*: it is later than the start of any run.
EACH_RUN = datetime.max.replace(tzinfo=UTC)


class Request(values.FileSource):
    """A URL to fetch, and the spider's method that parses the page.

    - *callback*, *errback*: a method of the spider, or the method's name. The ledger stores the
      method's name, so that any process can continue the task.
    - *body* (bytes or text), *json* (anything JSON can hold) or *data* (form fields): what to send.
      *json* and *data* set the Content-Type and make the method POST.
    - *context*: a mapping that the callback finds unchanged in `Response.context`. The ledger
      stores *context*, so its values are plain (text, numbers, dates, bytes, lists, mappings).
    - *priority*: from -100 to 100; the crawl fetches requests of a higher priority first.
    - *browser*: whether to render the page in a browser; with None the settings decide.
    - *save_to*: a folder, or an object store such as `s3://bucket/films`. The crawl streams the
      body to a file in the folder *save_to* (`Response.file`). The body may have any type, and any
      size up to the setting `max_file`. A request with *save_to* may be a value of an item.
    - *truncate*: True cuts a body over `max_body`; False fails the page as `body-too-large`; with
      None the settings decide.
    - *revisit*: the time until the next visit (`"7d"`, seconds, a timedelta), `"adaptive"` or
      `"never"`; with None the settings decide.
    - *max_body*: the limit of the response's body in bytes; with None the settings decide.
    - *session*: the name of the session for this request; None means the spider's
      `default_session`.
    - *proxy*: the URL of the proxy for this request, or `"direct"`; with None the settings decide.
      The ledger stores the proxy's URL, including the password.
    - *cookies*: additional cookies, stored in the ledger and sent only to the request's origin.
    - *dont_filter*: make one more task even if the URL already has a task.
    - *fingerprint*: bytes that identify the request's task in place of the method, URL and body.
      Requests to one host with the same *fingerprint* are one task. The task's id contains a digest
      of the *fingerprint*; the ledger stores the *fingerprint* nowhere else.
    - *changed*: when the page last changed, if you know it. A run fetches the page again, once, if
      the page's last visit was before *changed*. *each_run*: fetch the page in each run.
    - *max_retry*, *retry_statuses*, *accept_statuses*, *timeout*: settings for this request only. A
      *timeout* longer than `read_timeout` also replaces `read_timeout`.
    - *max_depth*: the setting `max_depth` for this request and for all links from its page. If it
      is 0, a start URL is crawled without its links, and a link is not followed.

    Any text is accepted as a URL, because the crawl drops and counts a link that cannot be fetched.
    Raises `SpiderError` if the arguments contradict each other, or if a value cannot be sent or
    stored.
    """

    __slots__ = (
        "_location",
        "_refusal",
        "body",
        "callback",
        "changed",
        "context",
        "dont_filter",
        "errback",
        "fingerprint",
        "headers",
        "method",
        "options",
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
        max_retry: int | None = None,
        browser: bool | None = None,
        save_to: str | os.PathLike[str] | None = None,
        truncate: bool | None = None,
        timeout: timedelta | float | str | None = None,
        retry_statuses: Statuses | None = None,
        accept_statuses: Statuses | None = None,
        max_depth: int | None = None,
        revisit: timedelta | float | str | None = None,
        max_body: int | None = None,
        changed: datetime | None = None,
        each_run: bool = False,
        session: str | None = None,
        proxy: str | None = None,
        cookies: Mapping[str, str] | None = None,
        fingerprint: bytes | None = None,
        **unknown: Never,
    ) -> None:
        for name in unknown:
            raise arguments.unknown_argument(name, _ARGUMENTS)
        if not isinstance(url, str):
            raise SpiderError(f"Request(url=...) takes text, not {type(url).__name__}")
        if priority not in _PRIORITIES:
            raise SpiderError(f"Request(priority={priority!r}) must be a whole number, -100 to 100")
        if not isinstance(body, bytes | str | None):
            raise SpiderError(f"Request(body=...) takes bytes or text, not {type(body).__name__}")
        if fingerprint is not None and not (isinstance(fingerprint, bytes) and fingerprint):
            raise SpiderError(f"Request(fingerprint={fingerprint!r}) must be bytes, and not empty")
        self._refusal: Refusal | None = None
        self._location: Location | None = None
        self.url = url
        self.callback = "parse" if callback is None else _callback_name(callback, "callback")
        self.errback = None if errback is None else _callback_name(errback, "errback")
        self.headers = arguments.headers(headers) if headers else ()
        self.method = "GET" if method is None else _method(method)
        self.body = body.encode() if isinstance(body, str) else body
        if json is not None or data is not None:
            self._set_content(json, data, posts=method is None)
        if context is not None:
            arguments.check_context(context)
        self.context = context
        self.priority = priority
        self.dont_filter = dont_filter
        self.fingerprint = fingerprint
        if changed is not None:
            changed = _in_utc(changed)
        self.changed = EACH_RUN if each_run else changed
        if each_run and revisit is None:
            revisit = NEVER  # a 304 to a revisit would skip the callback
        if save_to is not None:
            save_to = self._checked_place(save_to)
        option_values = (
            *(max_retry, browser, save_to, truncate, timeout, retry_statuses, accept_statuses),
            *(max_depth, revisit, max_body, session, proxy, cookies or None),
        )
        # Skip the check of options if there are none, because most requests have no options.
        self.options = (
            NO_OPTIONS if option_values == _NO_OPTIONS else arguments.options(option_values)
        )

    def _set_content(self, json: object, data: Mapping[str, Any] | None, *, posts: bool) -> None:
        """Encode *json* or *data* as the body; if *posts* is true, set the method to POST."""
        if self.body is not None or (json is not None and data is not None):
            raise SpiderError("Request takes one of body, json and data")
        if data is not None:
            self.body = arguments.form(data)
            content_type = "application/x-www-form-urlencoded"
        else:
            try:
                self.body = dumps(json).encode()
            except (TypeError, ValueError, RecursionError) as error:
                raise SpiderError(f"Request(json=...): {error}") from None
            content_type = "application/json"
        if "content-type" not in (name.lower() for name, _ in self.headers):
            self.headers = (*self.headers, ("Content-Type", content_type))
        if posts:
            self.method = "POST"

    def _checked_place(self, save_to: str | os.PathLike[str]) -> str:
        """Return *save_to* as text; raises `SpiderError` if *save_to* names no folder."""
        path = os.fspath(save_to)
        if not isinstance(path, str) or not path.strip() or not path.isprintable():
            raise SpiderError(f"Request(save_to={save_to!r}) must be the path of a folder")
        if self.method == "HEAD" or any(name.lower() == "range" for name, _ in self.headers):
            raise SpiderError(
                "Request(save_to=...) saves whole files: use neither HEAD nor a Range header"
            )
        return path

    @classmethod
    def refused(
        cls,
        link: str,
        refusal: FetchError | Refusal,
        callback: Callback | None = None,
        **options: Any,
    ) -> Self:
        """Return a request for an unusable link; the request's `identity` raises *refusal*."""
        request = cls(link, callback, **options)
        request._refusal = Refusal(refusal.reason, refusal.message)
        return request

    @classmethod
    def of(cls, task: Task) -> Self:
        """Return the request that *task* stores."""
        assert not isinstance(task.context, BlobRef), "a crawl has no blobs"
        # Do not check the task's values, because its request was checked when the task was made.
        request = object.__new__(cls)
        request._refusal = None
        request._location = None
        request.url = task.url
        request.callback = task.callback
        request.errback = task.errback
        request.headers = task.headers
        request.method = task.method
        request.body = task.body
        request.context = task.context
        request.priority = task.priority
        request.dont_filter = False
        request.fingerprint = None  # the task's id has only a digest of the fingerprint
        request.changed = None
        request.options = task.options
        return request

    def retargeted(
        self,
        url: str,
        *,
        method: str | None = None,
        headers: Sequence[tuple[str, str]] = (),
        body: bytes | None = None,
    ) -> Self:
        """Return a request for *url*, with the callback and options of this request.

        A request for another URL has no fingerprint, because it is another task.
        """
        request = type(self)(
            url,
            self.callback,
            method=method,
            headers=headers,
            body=body,
            priority=self.priority,
            errback=self.errback,
        )
        request.context = self.context
        request.fingerprint = self.fingerprint if url == self.url else None
        request.options = self.options
        if self.options.cookies and urls.origin_of(url) != urls.origin_of(self.url):
            request.options = replace(self.options, cookies=None)
        return request

    def with_location(self, location: Location) -> Self:
        """Return a copy of this request for another link of the same page."""
        twin = object.__new__(type(self))
        twin._refusal = self._refusal
        twin._location = location
        twin.url = location.url
        twin.callback = self.callback
        twin.errback = self.errback
        twin.headers = self.headers
        twin.method = self.method
        twin.body = self.body
        twin.context = self.context
        twin.priority = self.priority
        twin.dont_filter = self.dont_filter
        twin.fingerprint = self.fingerprint
        twin.changed = self.changed
        twin.options = self.options
        return twin

    @property
    def saves_file(self) -> bool:
        """Whether the request has *save_to*."""
        return self.options.save_to is not None

    @property
    def plain_url(self) -> str | None:
        """The request's URL if the URL alone identifies the request's task, else None."""
        location = self._location
        if (
            location is None
            or self.body is not None
            or self.changed is not None
            or self.dont_filter
            or self.fingerprint is not None
            or self.method != "GET"
            or location.url != self.url
        ):
            return None
        return location.url

    def set_header(self, name: str, value: str) -> None:
        """Set a header, in place of all headers with the same name."""
        # A spider may have assigned a mapping to `headers`.
        headers = arguments.headers(self.headers)
        other_headers = (pair for pair in headers if pair[0].lower() != name.lower())
        self.headers = (*other_headers, *arguments.headers([(name, value)]))

    def identity(self, salt: bytes = b"") -> tuple[Location, bytes]:
        """Return the location of the request and the id of its task; raises `FetchError`.

        *salt* distinguishes `dont_filter` requests for one URL. A crawl that parses a page again
        must give the same salts to the page's requests.
        """
        result = self.locate(salt)
        if isinstance(result, Refusal):
            raise result.error()
        return result

    def locate(self, salt: bytes = b"") -> tuple[Location, bytes] | Refusal:
        """Return what `identity` returns, or the reason why the URL cannot be fetched."""
        if self._refusal is not None:
            return self._refusal
        location = self._location
        if location is None or location.url != self.url:
            result = urls.located(self.url)
            if isinstance(result, Refusal):
                return result
            location = result
        is_plain = self.body is None and self.method == "GET" and not self.dont_filter
        if is_plain and self.fingerprint is None and len(self.url) <= urls.LONGEST_CACHED:
            return location, _id_of_get(location.host, location.canonical)
        salt = salt if self.dont_filter else b""
        body, fingerprint = self.body or b"", self.fingerprint
        return location, task_id(
            location, method=self.method, body=body, salt=salt, fingerprint=fingerprint
        )

    def task(
        self,
        *,
        now: datetime,
        depth: int = 0,
        parent: bytes | None = None,
        hops: int = 0,
        salt: bytes = b"",
        identity: tuple[Location, bytes] | None = None,
    ) -> Task:
        """Return the task of this request, new and due at *now*.

        *salt* is the argument of `identity`; *identity* is the result of `identity`, if already
        known. Raises `FetchError` for a URL that cannot be fetched.
        """
        location, task_id = identity or self.identity(salt)
        task_type = Task if self.changed is None else partial(ChangedTask, changed=self.changed)
        return task_type(
            id=task_id,
            url=location.url,
            host=location.host,
            method=self.method,
            # A spider may have assigned a mapping to `headers`.
            headers=arguments.headers(self.headers) if self.headers else (),
            body=self.body,
            callback=self.callback,
            errback=self.errback,
            context=values.clean(self.context) if self.context is not None else None,
            options=self.options,
            depth=depth,
            parent=parent,
            hops=hops,
            priority=self.priority,
            due=now,
            update_time=now,
            create_time=now,
        )

    def __repr__(self) -> str:
        # Redact the URL, because logs may show the request, and a start URL may have a password.
        return f"<Request {self.method} {redacted(self.url)!r} callback={self.callback}>"


_ARGUMENTS = tuple(inspect.signature(Request).parameters)


@lru_cache(maxsize=1 << 14)
def _id_of_get(host: str, canonical: str) -> bytes:
    # Cache the ids, because most links of a site lead to the same few pages.
    return task_id(Location(canonical, canonical, host))


def _callback_name(callback: Callback, argument: str) -> str:
    if isinstance(callback, str):
        return callback
    name = getattr(callback, "__name__", "")
    if not name.isidentifier() or not hasattr(callback, "__self__"):
        raise SpiderError(
            f"Request({argument}=...) takes a method of the spider or its name, not {callback!r}"
        )
    return str(name)


def _in_utc(changed: datetime) -> datetime:
    with suppress(AttributeError, OverflowError):
        if changed.tzinfo is not None:
            return changed.astimezone(UTC)
    raise SpiderError(
        f"Request(changed={changed!r}) must be a time with a time zone, in the years 1 to 9999"
    )


def _method(method: str) -> str:
    if not isinstance(method, str) or not method.isascii() or not method.isalpha():
        raise SpiderError(f"Request(method={method!r}) is not an HTTP method")
    return method.upper()
