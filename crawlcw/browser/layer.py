"""Layer for pages that a browser renders; the browser starts with the first rendered page."""

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from crawlcw.api.attempt import Attempt, Next
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.errors import UsageError
from crawlcw.fetch.pipeline import RENDERED
from crawlcw.fetch.redirects import Admission

if TYPE_CHECKING:
    from crawlcw.browser.rendering import Render as Rendering


class Render:
    """Imports `rendering` when the first page is rendered, because Playwright is optional."""

    purposes = frozenset({RENDERED})

    def __init__(self, settings: Settings, admission: Admission) -> None:
        self._settings = settings
        self._admission = admission
        self._loaded: Rendering | None = None

    def __call__(self, attempt: Attempt, request: Request, call_next: Next) -> Awaitable[Response]:
        """Return the rendered page."""
        if self._loaded is None:
            try:
                from crawlcw.browser.rendering import Render as Rendering
            except ImportError:
                raise UsageError(
                    "a page needs a browser: run `pip install 'crawlcw[browser]'`, and install a "
                    "Chromium (`apt-get install chromium`, or `playwright install chromium`)"
                ) from None
            self._loaded = Rendering(self._settings, self._admission)
        return self._loaded(attempt, request, call_next)

    async def aclose(self) -> None:
        """End the browser, if it was started."""
        if self._loaded is not None:
            await self._loaded.aclose()
