"""Define the option `--ledger`, make commands with this option, and open ledgers for reading."""

import difflib
import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from crawlcw.cli import loading, loop, scrapy_references
from crawlcw.cli.options import LEDGER, command_line, settings_of
from crawlcw.cli.terminal import logs
from crawlcw.errors import LedgerKindError, SpiderError, UnknownNameError, UsageError
from crawlcw.ledger.copying import CopiedLedger
from crawlcw.ledger.protocol import Ledger
from crawlcw.ledger_opening import DEFAULT_LEDGER, open_ledger, recorded_names, schemes
from crawlcw.model.task import Status

F = TypeVar("F", bound=Callable[..., Any])
L = TypeVar("L", bound=Ledger)
R = TypeVar("R")

_TEMPORARY = "sqlite:///:memory:"
#: Environment variable that tells the workers the URL of this command's temporary ledger.
_TEMPORARY_URL = "CRAWLCW_PASSING_LEDGER"
_MONGODB = ("mongodb", "mongodb+srv")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]\s]+)(?::(\d{1,5}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The spider or use case that a command names, and the URL of its ledger."""

    name: str
    reference: str  #: the name, file or module that the user typed
    ledger_url: str

    def opened(self, *, crawls_only: str = "") -> AbstractAsyncContextManager[CopiedLedger]:
        """Open the ledger of this spider or use case as `opened` does."""
        return opened(self.ledger_url, self.name, crawls_only=crawls_only)


def ledger_command(
    name: str, *, argument: str = "spider"
) -> Callable[[Callable[..., Coroutine[Any, Any, R]]], click.Command]:
    """Return a decorator that makes a click command *name* from a coroutine function.

    The function's first parameter is a `Subject`, which has the values of *argument* and
    `--ledger`. `--log-level` is the last option.
    """

    def decorate(function: Callable[..., Coroutine[Any, Any, R]]) -> click.Command:
        @wraps(function)
        def wrapper(*, ledger_url: str, log_level: str | None, **option_values: Any) -> R:
            logs.set_up(log_level or "warning")
            text = option_values.pop(argument)
            # Load the user's file outside the event loop, because the file may run its own event
            # loop.
            subject = Subject(name=loading.name_of(text), reference=text, ledger_url=ledger_url)
            return loop.run(function(subject, **option_values))

        command = click.command(name)(click.argument(argument)(ledger_option(wrapper)))
        return logs.level_option(command)

    return decorate


def url_option(*names: str, about: str) -> Callable[[F], F]:
    """Return a decorator that adds an option for the URL of another ledger."""
    return click.option(*names, metavar="URL", required=True, callback=_checked_url, help=about)


@asynccontextmanager
async def closing(opening: Awaitable[L]) -> AsyncIterator[L]:
    """Open a ledger, and close it after the block."""
    ledger = await opening
    try:
        yield ledger
    finally:
        await ledger.close()


@asynccontextmanager
async def opened(url: str, name: str, *, crawls_only: str = "") -> AsyncIterator[CopiedLedger]:
    """Open the ledger of a spider or use case for the block, and close it at the end.

    Raises `UsageError` if the ledger has no tasks, because the user may have misspelt the name. If
    *crawls_only* is not empty, a use case raises a `UsageError` that ends with *crawls_only*.
    """
    try:
        # Only the ledger's driver uses these settings.
        ledger = await open_ledger(url, name, settings=settings_of(), create=False, kind=None)
    except UnknownNameError:
        raise await nothing_of(name, url) from None
    try:
        if not await ledger.queries.has(tuple(Status)):
            raise await nothing_of(name, url)
        if crawls_only and ledger.kind.tracked:
            raise UsageError(f"{name} is a use case{crawls_only}")
        yield ledger
    finally:
        await ledger.close()


@contextmanager
def for_use_cases(name: str, *, instead: str) -> Iterator[None]:
    """Raise a `UsageError` with the advice *instead* if *name* is the ledger of a spider."""
    try:
        yield
    except LedgerKindError:
        raise UsageError(f"{name} is a spider, not a use case: {instead}") from None


def run_command(reference: str) -> str | None:
    """Return the command that crawls a recorded spider, or None if its code is not here."""
    try:
        is_here = scrapy_references.target_of(reference) is not None
    except SpiderError:
        is_here = False
    return command_line("run", reference) if is_here or _has_file(reference) else None


def _has_file(reference: str) -> bool:
    from crawlcw.checking.reading import located  # reads spider files without running them

    try:
        return located(reference, loading.FOLDER) is not None
    except OSError:
        return False


async def nothing_of(name: str, url: str) -> UsageError:
    """Return (do not raise) the error for a ledger at *url* that has no tasks of *name*.

    Raises the errors of `recorded_names`.
    """
    known_names = await recorded_names(url, settings=settings_of())
    matches = difflib.get_close_matches(name, known_names, n=1)
    return UsageError(
        f"nothing is recorded for a spider or use case named {name!r} in this ledger: "
        + (f"did you mean {matches[0]}? " if matches else "")
        + (f"{command_line('run', name)} starts a crawl, " if _has_file(name) else "")
        + "--ledger names another ledger"
    )


def _checked_url(ctx: click.Context, _parameter: click.Parameter, url: str) -> str:
    """Return *url* if it is a ledger URL; errors hide *url*, which may contain a password."""
    scheme, _, rest = url.partition("://")
    if url == _TEMPORARY:
        ctx.meta[LEDGER] = None
        return _temporary(ctx)
    if ctx.get_parameter_source("ledger_url") is ParameterSource.COMMANDLINE:
        ctx.meta[LEDGER] = url
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        return url
    if scheme not in (*_MONGODB, "sqlite") and rest and scheme in schemes():
        return url
    if scheme not in _MONGODB:
        matches = difflib.get_close_matches(scheme, schemes(), n=1)
        hint = f"; did you mean {matches[0]}://?" if matches and matches[0] != scheme else "."
        raise click.BadParameter(
            "write sqlite:///path, mongodb://host/database or postgresql://host/database" + hint
        )
    authority = re.split(r"[/?]", rest, maxsplit=1)[0]
    for host in authority.rpartition("@")[2].split(","):
        match = _HOST.fullmatch(host)
        if match is None or not 0 < int(match[2] or 27017) < 1 << 16:
            raise click.BadParameter(
                "write mongodb://user:password@host:port/database, with / : @ % in the user or "
                "the password percent-encoded."
            )
    return url


def _temporary(ctx: click.Context) -> str:
    """Return the URL of a temporary ledger that is deleted when the command ends."""
    if inherited_url := os.environ.get(_TEMPORARY_URL):
        return inherited_url
    folder = tempfile.mkdtemp(prefix="crawlcw-")
    os.environ[_TEMPORARY_URL] = url = f"sqlite:///{folder}/ledger.db"
    ctx.call_on_close(partial(os.environ.pop, _TEMPORARY_URL))
    ctx.call_on_close(partial(shutil.rmtree, folder, ignore_errors=True))
    return url


ledger_option = click.option(
    "--ledger",
    "ledger_url",
    metavar="URL",
    envvar="CRAWLCW_LEDGER",
    default=DEFAULT_LEDGER,
    show_default=True,
    show_envvar=True,
    callback=_checked_url,
    help="sqlite:///path, mongodb://host/database, postgresql://host/database, or "
    "sqlite:///:memory: (not kept).",
)
