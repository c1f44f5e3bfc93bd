"""Define the session that a spider logs in, and when a session counts as logged out or banned."""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.errors import FetchError, Reason, SpiderError
from crawlcw.model.values import thawed


class LoginSession:
    """The session that `Spider.login` logs in.

    - `name`: the name of the session
    - `data`: a mapping for the spider's use; plain values, stored with the session
    - `headers`: sent with every request to `origins`
    - `origins`: the origins that get the headers, as `https://host`; by default the origins that
      the login has sent requests to

    The crawl stores the cookies of the login's responses, and sends them in the session's requests.
    """

    def __init__(
        self,
        name: str,
        *,
        send: Callable[[Request], Awaitable[Response]],
        add_cookie: Callable[[str, str, str], None],
        data: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.data: dict[str, Any] = thawed(dict(data or {}))
        self.headers: dict[str, str] = {}
        self.origins: list[str] = []
        self._send = send
        self._add_cookie = add_cookie

    async def fetch(self, target: str | Request) -> Response:
        """Send a request, or a GET of a URL, and return the response after all redirects.

        A response may have any status. Raises `FetchError` if there is no response.
        """
        return await self._send(Request(target) if isinstance(target, str) else target)

    async def submit(self, request: Request) -> Response:
        """Send a request and return the response; a status of at least 400 raises `FetchError`."""
        response = await self._send(request)
        if response.status >= 400:
            raise FetchError(
                Reason.HTTP_STATUS,
                f"the response to {request.method} was HTTP {response.status}",
                status=response.status,
            )
        return response

    def add_cookies(self, url: str, cookies: Mapping[str, str]) -> None:
        """Add cookies for the host of *url*; raises `SpiderError` for an invalid cookie."""
        for name, value in cookies.items():
            try:
                self._add_cookie(url, name, value)
            except ValueError:
                raise SpiderError(f"the name or value of the cookie {name!r} is invalid") from None

    def __repr__(self) -> str:
        # Show only the name, because logs may show the text and the session has secrets.
        return f"<LoginSession {self.name}>"


def condition(spider: object, name: str) -> Callable[[Response], bool]:
    """Return a function that tests a response as the spider's attribute *name* says.

    The attribute is a status, several statuses, or a function or method that takes the response. If
    the attribute is None, no response passes the test. Raises `SpiderError` for any other value.
    The test raises `FetchError` (`parse-error`) if the spider's function raises.
    """
    declared = inspect.getattr_static(spider, name)
    if isinstance(declared, staticmethod):
        declared = declared.__func__
    if declared is None:
        return lambda _: False
    if isinstance(declared, int):
        return lambda response: response.status == declared
    if callable(declared):
        # A function in the class body gets `self` only if it has more than one parameter.
        parameter_count = len(inspect.signature(declared).parameters)
        function = (
            getattr(spider, name)
            if inspect.isfunction(declared) and parameter_count > 1
            else declared
        )

        def is_met(response: Response) -> bool:
            try:
                return bool(function(response))
            except Exception as error:  # user code may raise anything
                message = f"{name} raised {type(error).__name__}: {error}"
                raise FetchError(Reason.PARSE_ERROR, message) from error

        return is_met
    if isinstance(declared, Iterable) and not isinstance(declared, str):
        statuses = frozenset(declared)
        if all(isinstance(status, int) for status in statuses):
            return lambda response: response.status in statuses
    kind = type(spider).__name__
    raise SpiderError(
        f"{kind}.{name} = {declared!r}: write a status, several, or a function of the response"
    )
