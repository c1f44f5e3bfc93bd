"""One output of an export: a target and the writer of its format."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import Any, BinaryIO, Self

from crawlcw.errors import UsageError
from crawlcw.feeds.forms import Csv, Table, writer_class
from crawlcw.feeds.target import Target, naming, opened
from crawlcw.model.sanitize import describe_error

logger = logging.getLogger(__name__)


class Output:
    """A target and its writer; a `with` block opens them, and closes them at the block's end.

    If another package's writer raises an error, only this output ends. Then the output's file does
    not appear, and `failure` is the error. Raises `UsageError` if the target cannot be written.
    """

    def __init__(
        self,
        target: Target,
        *,
        columns: Sequence[str] | None,
        defuse: bool,
        stdout: BinaryIO,
    ) -> None:
        self.failure: str | None = None  #: why the target is not written, or None
        self.target = target
        self.classes: list[str] = []  #: the classes of the written items
        self._options: dict[str, Any] = {"columns": columns}
        self._stdout = stdout
        self._resources = ExitStack()
        self._writer_class = writer_class(target.format)
        if self._writer_class is Csv:
            self._options["defuse"] = defuse

    def __enter__(self) -> Self:
        stream = self._resources.enter_context(opened(self.target, stdout=self._stdout))
        with self._caught():
            self._writer = self._writer_class(stream, **self._options)
            self._resources.callback(self._writer.close)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._caught():
            self._resources.__exit__(kind, error, traceback)

    def write(self, item: Mapping[str, Any]) -> None:
        """Write the next item; after a failure this does nothing."""
        if self.failure is None:
            with self._caught():
                self._writer.write(item)

    def finish(self) -> None:
        """Complete the content; after a failure this does nothing."""
        if self.failure is None:
            with self._caught():
                self._writer.finish()

    @property
    def is_table(self) -> bool:
        """Whether all items share one set of columns."""
        return isinstance(self._writer_class, type) and issubclass(self._writer_class, Table)

    def discard(self, failure: str) -> None:
        """End this output without its file, and keep an earlier file; *failure* is the reason."""
        self.failure = failure
        error = UsageError(failure)
        with suppress(Exception):
            self._resources.__exit__(UsageError, error, None)

    @contextmanager
    def _caught(self) -> Iterator[None]:
        """If a foreign writer raises an error in the block, catch it and discard the file."""
        try:
            with naming(self.target):
                yield
        except (UsageError, BrokenPipeError):
            raise
        except Exception as error:
            if self._writer_class.__module__.startswith("crawlcw."):
                raise
            logger.debug("a feed failed", exc_info=True, extra={"event": "feed_failed"})
            self.discard(
                f"cannot write {self.target.location}: the feed {self.target.format!r} failed: "
                f"{describe_error(error)}"
            )
