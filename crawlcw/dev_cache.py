"""Cache responses on disk, so that each page is fetched only once while a spider is developed.

The cache ignores the servers' rules of freshness, and uses a response until the response is
`cache_expires` old. No library for HTTP caches fits. Some need a different client. Others cache
bodies inside of aiohttp's client, before this crawler has decoded and limited the bodies.
"""

import json
import logging
import time
from hashlib import blake2b
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Self

import anyio
from anyio import to_thread

from crawlcw.api.attempt import Attempt, Next
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.fetch.body import MemoryBudget

logger = logging.getLogger(__name__)

FOLDER = Path(".crawlcw/cache")
_THREADS = 4
_LARGE = 1 << 18
#: HTTP statuses that the cache stores, because a repeated request would get the same status.
_CACHED_STATUSES = frozenset({200, 203, 301, 302, 303, 307, 308, 404, 410})


class DevCache:
    """Layer that answers GET requests with stored responses.

    The cache does not store a response that is incomplete, throttled, broken, or saved as a file.
    The cache also stores no response to a request with a session or with cookies.
    """

    @classmethod
    def of(cls, settings: Settings, memory: MemoryBudget) -> Self | None:
        """Return the cache, or None if the settings do not use it."""
        return None if settings.cache == "off" else cls(settings, memory)

    def __init__(self, settings: Settings, memory: MemoryBudget, *, folder: Path = FOLDER) -> None:
        """Reserve memory for stored bodies in *memory*, the downloader's memory budget."""
        self._folder = folder.absolute()
        self._expires = settings.cache_expires.total_seconds()
        self._is_read = settings.cache == "dev"
        self._max_body = settings.max_body
        self._memory = memory
        self._limiter = anyio.CapacityLimiter(_THREADS)
        self._is_told = False  #: whether the log has a warning that no page can be stored

    async def __call__(self, attempt: Attempt, request: Request, call_next: Next) -> Response:
        """Return the stored response, or a new response."""
        options = request.options
        if (
            request.method != "GET"
            or request.body
            or options.save_to is not None
            # Do not cache if cookies are used, because a stored response would set no cookies.
            or options.cookies
            or (attempt.session is not None and attempt.session.jar is not None)
        ):
            return await call_next(attempt, request)
        identity = (request.url, sorted((name.lower(), value) for name, value in request.headers))
        key = blake2b(repr(identity).encode(), digest_size=20).hexdigest()
        path = self._folder / key[:2] / key
        if (
            self._is_read
            and (stored_response := await self._stored_response(path, attempt, request)) is not None
        ):
            return stored_response
        response = await call_next(attempt, request)
        if (
            response.status in _CACHED_STATUSES
            and response.truncated is None
            and response.file is None
        ):
            await self._store(path, attempt, response)
        return response

    async def _stored_response(
        self, path: Path, attempt: Attempt, request: Request
    ) -> Response | None:
        """Return the stored response; None if it is missing, too old, or incomplete."""
        reservation, body = None, b""
        try:
            with attempt.deadline:
                file_stat = await to_thread.run_sync(path.stat, limiter=self._limiter)
            if time.time() - file_stat.st_mtime >= self._expires:
                return None
            with attempt.deadline:
                if file_stat.st_size > _LARGE:
                    waits = attempt.waits_for_memory
                    reservation = await self._memory.take(file_stat.st_size, waits=waits)
                content = await to_thread.run_sync(path.read_bytes, limiter=self._limiter)
            header_line, _, body = content.partition(b"\n")
            header, max_body = json.loads(header_line), request.options.max_body
            if len(body) != header["size"] or len(body) > (
                self._max_body if max_body is None else max_body
            ):
                return None
            return Response(
                request.url,
                request=request,
                status=header["status"],
                headers=header["headers"],
                body=body,
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None
        finally:
            if reservation is not None:
                reservation.shrink(len(body))
                attempt.keep(reservation)

    async def _store(self, path: Path, attempt: Attempt, response: Response) -> None:
        header = {"status": response.status, "headers": dict(response.headers)}
        header_line = json.dumps(header | {"size": response.size}).encode()
        try:
            with attempt.deadline:
                content = (header_line, b"\n", response.body)
                await to_thread.run_sync(_write, path, content, limiter=self._limiter)
        except OSError as error:
            if not self._is_told:
                self._is_told = True
                logger.warning(
                    "cannot store pages in %s: %s",
                    self._folder,
                    error.strerror or error,
                    extra={"event": "cache_unwritable"},
                )


def _write(path: Path, content: tuple[bytes, ...]) -> None:
    # Let only the owner read the folder, because pages may contain secrets.
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with NamedTemporaryFile(dir=path.parent, delete=False) as stream:
        temporary_file = Path(stream.name)
        try:
            stream.writelines(content)
            stream.flush()
            temporary_file.replace(path)
        except OSError:
            temporary_file.unlink()
            raise
