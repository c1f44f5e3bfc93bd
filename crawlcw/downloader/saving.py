"""The layer that saves an answer in a file, where the layers below have it in memory."""

from collections.abc import Awaitable

from crawlcw.api.attempt import Attempt, Next, Purpose
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.downloader.file_transfer import FileTransfers
from crawlcw.errors import FetchError, Reason

_BUFFER = 1 << 18


class SaveFile:
    """Save the answers to requests with `save_to`; most downloaders stream by themselves."""

    purposes = frozenset({Purpose.PAGE, Purpose.LOGIN})

    def __init__(self, settings: Settings) -> None:
        self._files = FileTransfers(settings, buffer=_BUFFER)

    def __call__(self, attempt: Attempt, request: Request, call_next: Next) -> Awaitable[Response]:
        """Return the response, its body in a file where that is asked for."""
        if request.options.save_to is None:
            return call_next(attempt, request)
        return self._saved(attempt, request, call_next)

    async def _saved(self, attempt: Attempt, request: Request, call_next: Next) -> Response:
        response = await call_next(attempt, request)
        if response.file is not None or not 200 <= response.status < 300:
            return response
        if response.truncated in ("coding", "checksum"):
            raise FetchError(Reason.PAYLOAD_TRUNCATED, "the content coding is cut off")
        if response.truncated:
            raise FetchError(Reason.BODY_TOO_LARGE, "a part of the file has come, and no more")
        async with self._files.transfer(attempt, request) as transfer:
            await transfer.begin(response.status, {}, length=response.size, coded=False)
            await transfer.take(response.body)
            return await transfer.kept(response)
