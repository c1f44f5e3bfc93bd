"""A downloader whose answers are saved where the request says so, whatever it asks."""

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.downloader.file_transfer import FileTransfers
from crawlcw.downloader.protocol import Downloader
from crawlcw.errors import FetchError, Reason

_BUFFER = 1 << 18


class SavingDownloader:
    """A `Downloader` that saves what another one has in memory; most stream by themselves."""

    def __init__(self, downloader: Downloader, settings: Settings) -> None:
        self._downloader = downloader
        self._files = FileTransfers(settings, buffer=_BUFFER)

    async def fetch(self, request: Request, *, url: str) -> Response:
        """Return the response, its body in a file where that is asked for; see `Downloader`."""
        response = await self._downloader.fetch(request, url=url)
        wanted = request.options.save_to is not None and response.file is None
        if not wanted or not 200 <= response.status < 300:
            return response
        if response.truncated in ("coding", "checksum"):
            raise FetchError(Reason.PAYLOAD_TRUNCATED, "the content coding is cut off")
        if response.truncated:
            raise FetchError(Reason.BODY_TOO_LARGE, "a part of the file has come, and no more")
        async with self._files.transfer(request, url=url) as transfer:
            await transfer.begin(response.status, {}, length=response.size, coded=False)
            await transfer.take(response.body)
            return await transfer.kept(response)

    async def close(self) -> None:
        """Close what it asks."""
        await self._downloader.close()
