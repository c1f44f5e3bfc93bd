"""`RefusedError`, in a module of its own: importing it needs no extra."""

from collections.abc import Mapping

from crawlcw.errors import CrawlcwError


class RefusedError(CrawlcwError):
    """The server refuses a request."""

    def __init__(
        self, status: int, sentence: str, *, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.headers = headers or {}
