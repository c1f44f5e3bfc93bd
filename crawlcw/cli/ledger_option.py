"""`--ledger`: the URL of a command's ledger, and opening it for commands that only read."""

import difflib
import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

import click

from crawlcw.api.settings import Settings, layered, project_settings
from crawlcw.api.spider import Spider
from crawlcw.errors import LedgerKindError, UnknownNameError, UsageError
from crawlcw.ledger.copying import CopiedLedger
from crawlcw.ledger_opening import DEFAULT_LEDGER, is_known, open_to_search, recorded_names
from crawlcw.model.task import Status

P = ParamSpec("P")
R = TypeVar("R")

_PASSING = "sqlite:///:memory:"
#: Environment variable with the URL of this command's temporary ledger, for its workers.
_PLACE = "CRAWLCW_PASSING_LEDGER"
_MONGODB = ("mongodb", "mongodb+srv")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]\s]+)(?::(\d{1,5}))?")


def ledger_option(command: Callable[P, R]) -> Callable[P, R]:
    """Add `--ledger` to a command."""
    return click.option(
        "--ledger",
        "ledger_url",
        metavar="URL",
        envvar="CRAWLCW_LEDGER",
        default=DEFAULT_LEDGER,
        show_default=True,
        show_envvar=True,
        callback=_checked,
        help="sqlite:///path, mongodb://host/database, postgresql://host/database, or "
        "sqlite:///:memory: (not kept).",
    )(command)


def url_option(*names: str, about: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that adds another option which names a ledger."""
    return click.option(*names, metavar="URL", required=True, callback=_checked, help=about)


@asynccontextmanager
async def opened(url: str, name: str) -> AsyncIterator[CopiedLedger]:
    """Open the ledger of a spider or use case that has tasks, and close it afterwards.

    Raises `UsageError` if it has none: a misspelt name must not look like an empty crawl.
    """
    try:
        # Settings are read for the driver only.
        ledger = await open_to_search(url, name, settings=own_settings())
    except UnknownNameError:
        raise UsageError(await nothing_of(name, url)) from None
    try:
        if not await ledger.queries.has(tuple(Status)):
            raise UsageError(await nothing_of(name, url))
        yield ledger
    finally:
        await ledger.close()


@contextmanager
def for_use_cases(name: str, *, instead: str) -> Iterator[None]:
    """Map `LedgerKindError` to `UsageError`: *name* is a spider's; *instead* is the advice."""
    try:
        yield
    except LedgerKindError:
        raise UsageError(f"{name} is a spider, not a use case: {instead}") from None


def own_settings() -> Settings:
    """Return the settings of the project and the environment, without a spider's."""
    return layered(Settings(), project=project_settings(Path.cwd()), environment=os.environ)


def settings_of(spider: Spider) -> Settings:
    """Return the settings of a crawl of *spider*: its own, the project's, the environment's."""
    project = project_settings(Path.cwd())
    return layered(spider.settings, project=project, environment=os.environ)


async def nothing_of(name: str, url: str) -> str:
    """Return the error message for a spider or use case without tasks in the ledger at *url*.

    Raises the errors of `recorded_names`.
    """
    recorded = await recorded_names(url, settings=own_settings())
    near = difflib.get_close_matches(name, recorded, n=1)
    return (
        f"nothing is recorded for a spider or use case named {name!r} in this ledger: "
        + (f"did you mean {near[0]}? " if near else "")
        + f"`crawlcw run {name}` starts a crawl, --ledger names another ledger"
    )


def _checked(ctx: click.Context, _parameter: click.Parameter, url: str) -> str:
    """Return a valid ledger URL; errors do not repeat it, since it may hold a password."""
    scheme, _, rest = url.partition("://")
    if url == _PASSING:
        return _passing(ctx)
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        return url
    if scheme not in (*_MONGODB, "sqlite") and rest and is_known(scheme):
        return url
    if scheme not in _MONGODB:
        raise click.BadParameter(
            "write sqlite:///path, mongodb://host/database or postgresql://host/database."
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


def _passing(ctx: click.Context) -> str:
    """Return the URL of a temporary ledger, deleted when the command ends."""
    if place := os.environ.get(_PLACE):
        return place
    folder = tempfile.mkdtemp(prefix="crawlcw-")
    os.environ[_PLACE] = url = f"sqlite:///{folder}/ledger.db"
    ctx.call_on_close(partial(os.environ.pop, _PLACE))
    ctx.call_on_close(partial(shutil.rmtree, folder, ignore_errors=True))
    return url
