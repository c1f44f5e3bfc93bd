"""Save the response of a request with `save_to` as a file, and resume incomplete files.

`AiohttpDownloader` sends the requests. An attempt continues the file of an earlier attempt if the
server sends the missing part (status 206), and if this part belongs to the same version. A strong
validator (RFC 9110, section 13.1.5) identifies the version. After any other response the download
starts from zero. Threads write the files and compute checksums.
"""

import errno
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from hashlib import blake2b
from typing import TypeVar

import anyio
from anyio import to_thread

from crawlcw.api.attempt import Attempt, Next, Purpose, replaced
from crawlcw.api.document import SavedFile
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.errors import FetchError, FilesUnwritableError, Reason, UsageError
from crawlcw.files.folders import Folder, folder
from crawlcw.files.names import stored_name
from crawlcw.files.partial import PartialFile

T = TypeVar("T")

_THREADS = 4
#: Number of bytes of a file that are collected in memory before a write.
_BUFFER = 256 << 10
#: Number of first bytes of a file that `Attempt.accepts_file` checks before the file is saved.
_CHECKED_BYTES = 1 << 16
#: Minimum bytes per second of a download whose deadline is extended.
_LEAST_RATE = 1 << 10
_ETAG = re.compile(r'"[\x21\x23-\x7e]{0,1000}"\Z')
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)\Z", re.ASCII)
#: A Last-Modified is a strong validator only if it is older than its response by this time.
_MIN_AGE = timedelta(seconds=60)
#: Successful statuses of responses that have no content to save as a file.
_CONTENTLESS = frozenset({204, 205})
#: Secret headers, which must not affect the name of the partial file.
_SECRET_HEADERS = frozenset({"authorization", "cookie", "proxy-authorization"})
#: Reasons of a failure after which the received bytes are deleted, because a resumed download would
#: fail again. On a full disk, other programs need the space of these bytes.
_HOPELESS = (Reason.BODY_TOO_LARGE, Reason.FILES_UNWRITABLE)
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


class FileTransfers:
    """All file transfers of one downloader, in its event loop."""

    def __init__(self, settings: Settings) -> None:
        self.max_file = settings.max_file
        self.window = settings.timeout.total_seconds()
        # The buffers of all files together take at most a sixteenth of the memory budget.
        self.buffer = min(_BUFFER, settings.memory_budget // 16 // settings.concurrency)
        # Writing files has its own limit of threads, so that no other work waits for a slow disk.
        self._limiter = anyio.CapacityLimiter(_THREADS)

    async def in_thread(self, attempt: Attempt, location: str, work: Callable[[], T]) -> T:
        """Call *work*, which uses the disk or store at *location*, in a thread; return its result.

        Raises `FetchError` if the disk or store fails. The attempt's deadline does not count this
        work.
        """
        try:
            with attempt.deadline:
                return await to_thread.run_sync(work, limiter=self._limiter)
        except FetchError:
            raise
        except Exception as error:  # a remote store may raise anything
            number = error.errno if isinstance(error, OSError) else None
            if number in _NO_DESCRIPTORS:
                raise
            os_message = error.strerror if isinstance(error, OSError) else None
            message = os_message or f"{type(error).__name__}: {error}"
            if number == errno.EFBIG:
                raise FetchError(Reason.BODY_TOO_LARGE, message) from error
            message = str(error) if isinstance(error, UsageError) else message
            message = f"cannot save to {location}: {message}"
            raise FilesUnwritableError(message) from error

    @asynccontextmanager
    async def transfer(self, attempt: Attempt, request: Request) -> AsyncIterator["FileTransfer"]:
        """Open the partial file of *request*. The file keeps its bytes if this attempt fails."""
        folder_path = request.options.save_to
        assert folder_path is not None, "a request for a file"
        in_thread = partial(self.in_thread, attempt, folder_path)
        target = await in_thread(partial(folder, folder_path))
        partial_file = await in_thread(
            partial(PartialFile.open, target.parts, _partial_name(attempt, request))
        )
        transfer = FileTransfer(self, attempt, request, target, partial_file)
        end_file = transfer.suspend
        try:
            yield transfer
        except FetchError as error:
            if error.reason in _HOPELESS:
                end_file = partial_file.discard
            raise
        finally:
            # Close the file even after a cancellation, so that the next attempt can resume the
            # download. If the bytes cannot be stored, the next attempt fetches them again.
            with anyio.CancelScope(shield=True), suppress(OSError):
                await to_thread.run_sync(end_file, limiter=self._limiter)


class PartRefusedError(FetchError):
    """The partial response (206) does not fit the partial file; the download starts from zero."""


@dataclass
class FileTransfer:
    """The transfer of one file, from its request to its final path."""

    _transfers: FileTransfers
    _attempt: Attempt
    _request: Request
    _folder: Folder
    _part: PartialFile
    _buffer: bytearray = field(init=False, default_factory=bytearray)
    #: From a 206 response: the position of its last byte, and the size of the whole file.
    _sent_range: tuple[int, int] | None = None
    _since_mark: int = 0

    def __post_init__(self) -> None:
        # If all bytes are present, request the last byte to see whether the file has changed.
        partial_file = self._part
        is_complete = partial_file.total is not None and partial_file.size >= partial_file.total
        self._offset = partial_file.size - 1 if is_complete else partial_file.size

    def headers(self, base_headers: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
        """Return the headers to send: *base_headers* and the headers that ask for a byte range."""
        # Accept no content coding, because a range of a coded body is not a range of the file.
        kept_headers = [
            pair for pair in base_headers if pair[0].lower() not in ("accept-encoding", "if-range")
        ]
        request_headers = [*kept_headers, ("Accept-Encoding", "identity")]
        if self._offset and self._part.validator is not None:
            request_headers += [
                ("Range", f"bytes={self._offset}-"),
                ("If-Range", self._part.validator),
            ]
        return tuple(request_headers)

    def _rest_in(self, headers: Mapping[str, str]) -> tuple[int, int] | None:
        match = _CONTENT_RANGE.match(headers.get("content-range", ""))
        validator, known_total = self._part.validator, self._part.total
        if match is None or validator is None:
            return None
        last_byte, response_total = int(match[2]), None if match[3] == "*" else int(match[3])
        total = response_total if known_total is None else known_total
        continues = (
            int(match[1]) == self._offset <= last_byte
            # A part without the validator may belong to another version of the file.
            and headers.get("etag" if validator.startswith('"') else "last-modified") == validator
            # Without the total size, nothing shows when the file is complete.
            and total is not None
            and response_total in (None, total)
            and last_byte < total
            and headers.get("content-encoding", "identity").lower() == "identity"
        )
        return (last_byte, total) if continues and total is not None else None

    async def begin(
        self, status: int, headers: Mapping[str, str], *, length: int | None, coded: bool
    ) -> bool:
        """Prepare to receive a file; return False if no file follows, because *status* is an error.

        *length* is the announced size of the body in bytes. *coded* is true if the body has a
        content coding. Raises `FetchError`.
        """
        self._sent_range = self._rest_in(headers) if status == 206 and self._offset else None
        if status in (206, 416) and self._offset and self._sent_range is None:
            self._offset = 0
            raise PartRefusedError(
                Reason.PROTOCOL, "the server sent a part that does not complete the file"
            )
        if not 200 <= status < 300:
            return False
        if status in _CONTENTLESS:
            message = f"HTTP {status} has no file"
            raise FetchError(Reason.HTTP_STATUS, message, status=status)
        if status == 206 and self._sent_range is None:
            raise FetchError(Reason.PROTOCOL, "the server sent an unrequested part of the file")
        total = None if coded else length
        if self._sent_range is not None:
            total = self._sent_range[1]
            begin = partial(self._part.resume, self._offset, total=total)
        else:
            validator = None if coded else _validator(headers)
            begin = partial(self._part.restart, validator=validator, total=total)
        self._check_size(total or 0)
        await self._in_thread(begin)
        self._restart_deadline()
        return True

    async def take(self, data: bytes) -> None:
        """Add decoded bytes to the file; raises `FetchError`."""
        self._buffer += data
        size = self._part.size + len(self._buffer)
        self._check_size(size)
        if self._sent_range is not None and size > self._sent_range[0] + 1:
            self._part.validator = None  # makes the next attempt start from zero
            message = (
                "the server sent bytes after the requested range, "
                f"which ends at {self._sent_range[0]:,}"
            )
            raise FetchError(Reason.PAYLOAD_TRUNCATED, message)
        if len(self._buffer) >= self._transfers.buffer:
            await self._write()

    def count_wire_bytes(self, size: int) -> None:
        """Count *size* bytes; extend the attempt's deadline if 1 KiB or more a second has come."""
        self._since_mark += size
        if self._since_mark >= _LEAST_RATE * self._transfers.window:
            self._restart_deadline()

    async def store(self, response: Response) -> Response:
        """Move the complete file to its final path, and return *response* with the file.

        If `Attempt.accepts_file` returns false, this method deletes the file and returns a response
        whose body is the first bytes of the file. Raises `FetchError`.
        """
        await self._write()
        expected, size = self._part.total, self._part.size
        if expected is not None and size != expected:
            message = f"{size:,} of {expected:,} bytes arrived"
            raise FetchError(Reason.PAYLOAD_TRUNCATED, message)
        if response.status == 206:
            # The file is complete now, although this response contained only a part.
            response = replaced(response, status=200)
        accepts = self._attempt.accepts_file
        if accepts is not None:
            body = await self._in_thread(partial(self._part.start, _CHECKED_BYTES))
            truncation = "bytes" if size > len(body) else None
            if not accepts(start_response := replaced(response, body=body, truncated=truncation)):
                await self._in_thread(self._part.discard)
                return start_response
        # Compute the name here, because any error in the thread counts as a disk error.
        name = stored_name(
            "",
            url=self._request.url,
            content_type=response.headers.get("content-type", ""),
            disposition=response.headers.get("content-disposition", ""),
        )

        def move_file() -> SavedFile:
            sha256 = self._part.finish()
            path = self._folder.keep(self._part, sha256=sha256, name=sha256 + name)
            return SavedFile(path=path, sha256=sha256, size=size)

        return replaced(response, body=b"", file=await self._in_thread(move_file))

    def suspend(self) -> None:
        """Close the file, and keep its bytes if another attempt can resume the download."""
        if self._buffer and self._part.validator is not None:
            self._part.write(bytes(self._buffer))
        self._part.suspend()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        folder_path = self._request.options.save_to or ""
        return await self._transfers.in_thread(self._attempt, folder_path, work)

    async def _write(self) -> None:
        if self._buffer:
            data, self._buffer = bytes(self._buffer), bytearray()
            await self._in_thread(partial(self._part.write, data))

    def _check_size(self, size: int) -> None:
        max_size = self._transfers.max_file
        if max_size is not None and size > max_size:
            raise FetchError(
                Reason.BODY_TOO_LARGE, f"the file is larger than max_file={max_size:,}"
            )

    def _restart_deadline(self) -> None:
        """Restart the deadline with the timeout of a whole attempt."""
        self._since_mark = 0
        self._attempt.deadline.restart(self._transfers.window)


def _partial_name(attempt: Attempt, request: Request) -> str:
    """Return the name of a request's partial file, which is the same in each process and run."""
    public_headers = [pair for pair in request.headers if pair[0].lower() not in _SECRET_HEADERS]
    fields: tuple[object, ...] = (
        *(
            request.options.save_to,
            request.method,
            request.url,
            request.body,
            sorted(public_headers),
        ),
        # Two sessions must not share a partial file.
        *filter(None, [attempt.session and attempt.session.identity.name]),
    )
    return blake2b(repr(fields).encode(), digest_size=16).hexdigest()


def _validator(headers: Mapping[str, str]) -> str | None:
    """Return the strong validator (ETag or Last-Modified) of a file's version, or None."""
    etag = headers.get("etag", "")
    if _ETAG.match(etag):
        return etag
    last_modified, response_date = headers.get("last-modified", ""), headers.get("date", "")
    if etag or not last_modified.isascii() or not last_modified.isprintable():
        return None  # two files with one weak ETag may differ
    try:
        is_settled = (
            parsedate_to_datetime(response_date) - parsedate_to_datetime(last_modified) >= _MIN_AGE
        )
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return last_modified if is_settled else None


class SaveFile:
    """Layer that saves bodies for `save_to` if the downloader has returned them in memory."""

    purposes = frozenset({Purpose.PAGE, Purpose.LOGIN, Purpose.FETCH})

    def __init__(self, settings: Settings) -> None:
        self._files = FileTransfers(settings)

    async def __call__(self, attempt: Attempt, request: Request, call_next: Next) -> Response:
        """Return the response, and move its body to a file if the request has `save_to`."""
        response = await call_next(attempt, request)
        is_wanted = request.options.save_to is not None and response.file is None
        if not is_wanted or not 200 <= response.status < 300:
            return response
        # The downloader may have returned only the start of a refused file, such as a login page.
        if attempt.accepts_file is not None and not attempt.accepts_file(response):
            return response
        if response.truncated in ("coding", "checksum"):
            raise FetchError(Reason.PAYLOAD_TRUNCATED, "the compressed content is incomplete")
        if response.truncated:
            raise FetchError(Reason.BODY_TOO_LARGE, "the server sent only a part of the file")
        async with self._files.transfer(attempt, request) as transfer:
            await transfer.begin(response.status, {}, length=response.size, coded=False)
            await transfer.take(response.body)
            return await transfer.store(response)
