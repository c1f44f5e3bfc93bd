"""Answers kept on disk while a spider is written: each page is asked for once, not at every try.

This is no cache of HTTP: what servers say of freshness is not looked at, and an
answer counts until it is `cache_expires` old. Libraries for that sit on another
client, or inside aiohttp's, where bodies are not decoded and bounded yet.
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
#: The statuses of answers that stay so, as far as a spider's author is concerned.
_KEPT = frozenset({200, 203, 301, 302, 303, 307, 308, 404, 410})


class DevCache:
    """The layer that answers GET requests as they were answered before.

    Files that are saved, and answers that are cut, throttled or broken, are not kept,
    nor are answers to requests with a session or with cookies.
    """

    @classmethod
    def of(cls, settings: Settings, memory: MemoryBudget) -> Self | None:
        """Return the cache that the settings want; None: they want none."""
        return None if settings.cache == "off" else cls(settings, memory)

    def __init__(self, settings: Settings, memory: MemoryBudget, *, folder: Path = FOLDER) -> None:
        """Take the *memory* of kept bodies where the downloader takes that of its own."""
        self._folder = folder
        self._expires = settings.cache_expires.total_seconds()
        self._is_read = settings.cache == "dev"
        self._max_body = settings.max_body
        self._memory = memory
        self._limiter = anyio.CapacityLimiter(_THREADS)
        self._is_told = False  #: whether the user knows that nothing can be kept

    async def __call__(self, attempt: Attempt, request: Request, call_next: Next) -> Response:
        """Return the answer that is kept, or a new one."""
        options = request.options
        if (
            request.method != "GET"
            or request.body
            or options.save_to is not None
            # A kept answer serves every reader, and a cookie that is set has to be set each time.
            or options.cookies
            or (attempt.session is not None and attempt.session.jar is not None)
        ):
            return await call_next(attempt, request)
        asked = (request.url, sorted((name.lower(), value) for name, value in request.headers))
        key = blake2b(repr(asked).encode(), digest_size=20).hexdigest()
        path = self._folder / key[:2] / key
        if self._is_read and (known := await self._kept(path, attempt, request)) is not None:
            return known
        response = await call_next(attempt, request)
        if response.status in _KEPT and response.truncated is None and response.file is None:
            await self._keep(path, attempt, response)
        return response

    async def _kept(self, path: Path, attempt: Attempt, request: Request) -> Response | None:
        """Return the kept answer; None: there is none, it is too old, or a crash has cut it."""
        share, body = None, b""
        try:
            with attempt.deadline:
                found = await to_thread.run_sync(path.stat, limiter=self._limiter)
            if time.time() - found.st_mtime >= self._expires:
                return None
            with attempt.deadline:
                if found.st_size > _LARGE:
                    waits = attempt.waits_for_memory
                    share = await self._memory.take(found.st_size, waits=waits)
                content = await to_thread.run_sync(path.read_bytes, limiter=self._limiter)
            told, _, body = content.partition(b"\n")
            head, most = json.loads(told), request.options.max_body
            if len(body) != head["size"] or len(body) > (self._max_body if most is None else most):
                return None
            return Response(
                request.url,
                request=request,
                status=head["status"],
                headers=head["headers"],
                body=body,
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None
        finally:
            if share is not None:
                share.shrink(len(body))
                attempt.keep(share)

    async def _keep(self, path: Path, attempt: Attempt, response: Response) -> None:
        head = {"status": response.status, "headers": dict(response.headers)}
        told = json.dumps(head | {"size": response.size}).encode()
        try:
            with attempt.deadline:
                content = (told, b"\n", response.body)
                await to_thread.run_sync(_write, path, content, limiter=self._limiter)
        except OSError as error:
            if not self._is_told:
                self._is_told = True
                logger.warning(
                    "pages are not kept in %s: %s",
                    self._folder,
                    error.strerror or error,
                    extra={"event": "cache_unwritable"},
                )


def _write(path: Path, content: tuple[bytes, ...]) -> None:
    # Pages may hold secrets, and other users must not read these.
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with NamedTemporaryFile(dir=path.parent, delete=False) as stream:
        written = Path(stream.name)
        try:
            stream.writelines(content)
            stream.flush()
            written.replace(path)
        except OSError:
            written.unlink()
            raise
