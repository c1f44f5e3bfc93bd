"""A session as a spider sees it while it logs it in, and what tells that it is logged out."""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.errors import FetchError, Reason, SpiderError
from crawlcw.model.values import thawed


class LoginSession:
    """The session that `Spider.login` makes ready.

    - `name`: which one it is
    - `data`: a mapping of the spider's own; plain values, kept with the session
    - `headers`: sent with every page of `origins`
    - `origins`: where the headers go, as `https://host`: those that the login has asked

    Cookies that the answers set are kept, and sent back, by themselves.
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
        """Return the answer to a request, or to a GET of a URL, redirects followed.

        Whatever its status. Raises `FetchError` where there is no answer.
        """
        return await self._send(Request(target) if isinstance(target, str) else target)

    async def submit(self, request: Request) -> Response:
        """Return the answer to a request, such as a form; raises `FetchError` for 4xx and 5xx."""
        response = await self._send(request)
        if response.status >= 400:
            raise FetchError(
                Reason.HTTP_STATUS,
                f"{request.method} was answered by HTTP {response.status}",
                status=response.status,
            )
        return response

    def add_cookies(self, url: str, cookies: Mapping[str, str]) -> None:
        """Have cookies for the host of *url*; raises `SpiderError` for what can be none."""
        for name, value in cookies.items():
            try:
                self._add_cookie(url, name, value)
            except ValueError:
                raise SpiderError(f"{name!r} cannot be a cookie of that value") from None

    def __repr__(self) -> str:
        # It may be logged, and has secrets.
        return f"<LoginSession {self.name}>"


def condition(spider: object, name: str) -> Callable[[Response], bool]:
    """Return the condition in the spider's attribute *name*; raises `SpiderError`.

    The attribute is a status, several, or a function of the response: a method, or
    a function that was assigned. None: no response. The condition raises `FetchError`
    (`parse-error`) where the spider's function raises.
    """
    wanted = inspect.getattr_static(spider, name)
    if isinstance(wanted, staticmethod):
        wanted = wanted.__func__
    if wanted is None:
        return lambda _: False
    if isinstance(wanted, int):
        return lambda response: response.status == wanted
    if callable(wanted):
        # A function that was assigned in the class is a method to Python.
        takes = len(inspect.signature(wanted).parameters)
        asked = getattr(spider, name) if inspect.isfunction(wanted) and takes > 1 else wanted

        def says(response: Response) -> bool:
            try:
                return bool(asked(response))
            except Exception as error:  # the user's code may raise anything
                message = f"{name} raised {type(error).__name__}: {error}"
                raise FetchError(Reason.PARSE_ERROR, message) from error

        return says
    if isinstance(wanted, Iterable) and not isinstance(wanted, str):
        statuses = frozenset(wanted)
        if all(isinstance(status, int) for status in statuses):
            return lambda response: response.status in statuses
    kind = type(spider).__name__
    raise SpiderError(
        f"{kind}.{name} = {wanted!r}: write a status, several, or a function of the response"
    )
