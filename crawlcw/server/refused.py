"""The refusal of a request, as the code that refuses raises it. Nothing of an extra is needed."""

from collections.abc import Mapping

from crawlcw.errors import CrawlcwError


class RefusedError(CrawlcwError):
    """A request is not served."""

    def __init__(
        self, status: int, sentence: str, *, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.headers = headers or {}
