"""Answers kept on disk while a spider is written: each page is asked for once, not at every try.

This is no cache of HTTP: what servers say of freshness is not looked at, and an
answer counts until it is `cache_expires` old. Libraries for that sit on another
client, or inside aiohttp's, where bodies are not decoded and bounded yet.
"""

import json
import logging
import os
import time
from functools import partial
from hashlib import blake2b
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import anyio
from anyio import to_thread

from crawlcw.api.attempt import Attempt, Next
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import BUDGET_IN_BODIES, Settings
from crawlcw.fetch.memory_budget import BodyRoom, MemoryBudget

logger = logging.getLogger(__name__)

FOLDER = Path(".crawlcw/cache")
_THREADS = 4
_LARGE = 1 << 18
#: What a page answers for good, as far as a spider's author is concerned.
_KEPT = frozenset({200, 203, 301, 302, 303, 307, 308, 404, 410})
_HEAD_SIZE = 8


class DevCache:
    """The layer that answers GET requests as they were answered before.

    Files that are saved, and answers that are cut, throttled or broken, are not kept,
    nor is what is asked for with a session or with cookies.
    """

    def __init__(self, settings: Settings, *, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._expires = settings.cache_expires.total_seconds()
        self._is_read = settings.cache == "dev"
        self._max_body = settings.max_body
        self._budget = MemoryBudget(settings.memory_budget // BUDGET_IN_BODIES)
        self._limiter = anyio.CapacityLimiter(_THREADS)
        self._is_told = False  #: whether somebody knows that nothing can be kept

    async def __call__(self, attempt: Attempt, request: Request, call_next: Next) -> Response:
        """Return the answer that is kept, or a new one."""
        # What is kept is anybody's, and a cookie that is set has to be set each time.
        has_jar = attempt.session is not None and attempt.session.jar is not None
        if has_jar or request.options.cookies or not may_keep(request):
            return await call_next(attempt, request)
        path = self._path(request)
        if self._is_read and (known := await self._kept(path, attempt, request)) is not None:
            return known
        response = await call_next(attempt, request)
        if response.status in _KEPT and response.truncated is None and response.file is None:
            await self._keep(path, attempt, response)
        return response

    def _path(self, request: Request) -> Path:
        asked = (request.url, sorted((name.lower(), value) for name, value in request.headers))
        key = blake2b(repr(asked).encode(), digest_size=20).hexdigest()
        return self._folder / key[:2] / key

    async def _kept(self, path: Path, attempt: Attempt, request: Request) -> Response | None:
        with attempt.deadline:
            size = await to_thread.run_sync(partial(self._size, path), limiter=self._limiter)
        if size is None:
            return None
        room = BodyRoom(self._budget, attempt, free=_LARGE, most=size)
        body = b""
        try:
            await room.make(size)
            with attempt.deadline:
                content = await to_thread.run_sync(partial(_read, path), limiter=self._limiter)
            if (parts := _parted(content)) is None:
                return None
            head, body = parts
            most = request.options.max_body
            if len(body) > (self._max_body if most is None else most):
                return None
        finally:
            room.close(len(body))
        return Response(
            request.url, request=request, status=head["status"], headers=head["headers"], body=body
        )

    def _size(self, path: Path) -> int | None:
        """Return the size of what is kept, None where that is nothing, or too old."""
        try:
            found = path.stat()
        except OSError:
            return None
        return found.st_size if time.time() - found.st_mtime < self._expires else None

    async def _keep(self, path: Path, attempt: Attempt, response: Response) -> None:
        head = {
            "status": response.status,
            "headers": dict(response.headers),
            "size": response.size,
        }
        told = json.dumps(head).encode()
        content = (len(told).to_bytes(_HEAD_SIZE, "big"), told, response.body)
        try:
            with attempt.deadline:
                await to_thread.run_sync(partial(_write, path, content), limiter=self._limiter)
        except OSError as error:
            if not self._is_told:
                self._is_told = True
                logger.warning(
                    "pages are not kept in %s: %s",
                    self._folder,
                    error.strerror or error,
                    extra={"event": "cache_unwritable"},
                )


def may_keep(request: Request) -> bool:
    """Return whether the answer to a request may be kept, where it has no cookies."""
    return request.method == "GET" and not request.body and request.options.save_to is None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _write(path: Path, content: tuple[bytes, ...]) -> None:
    # Pages may hold secrets; these are nobody else's to read.
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with NamedTemporaryFile(dir=path.parent, delete=False) as stream:
        try:
            stream.writelines(content)
            stream.close()
            os.replace(stream.name, path)  # noqa: PTH105  # it is a text
        except BaseException:
            Path(stream.name).unlink(missing_ok=True)
            raise


def _parted(content: bytes) -> tuple[dict[str, Any], bytes] | None:
    """Return the head and the body of what is kept; None where a crash has left less."""
    begin = _HEAD_SIZE + int.from_bytes(content[:_HEAD_SIZE], "big")
    try:
        head = json.loads(content[_HEAD_SIZE:begin])
        is_whole = head["size"] == len(content) - begin and isinstance(head["headers"], dict)
    except (ValueError, KeyError, TypeError):
        return None
    return (head, content[begin:]) if is_whole else None
