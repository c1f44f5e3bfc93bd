"""`crawlcw serve` and `dashboard`: serve tasks to workers, and a web page of the crawls."""

import os
import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from crawlcw.cli import extras, ledger_option, loading, loop, options
from crawlcw.cli.numbers import WholeNumber
from crawlcw.cli.terminal import logs
from crawlcw.errors import UsageError
from crawlcw.ledger_opening import open_ledger, recorded_names

F = TypeVar("F", bound=Callable[..., Any])

#: Maximum time to wait until an unavailable ledger works again. The wait is short, because clients
#: retry anyway.
_GIVE_UP = timedelta(seconds=3)
#: Syntax of a bearer token (RFC 6750, b64token).
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")


def _access_options(*, port: int) -> Callable[[F], F]:
    """Return a decorator that adds the options `--host`, `--port` and `--token-file`."""

    def add(command: F) -> F:
        command = click.option(
            "--token-file",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="File with the token that clients must send. Default: CRAWLCW_TOKEN, or no token.",
        )(command)
        command = click.option(
            "--port",
            type=WholeNumber(0, 65535),
            metavar="PORT",
            default=port,
            show_default=True,
            help="Port to listen on; 0: any free port.",
        )(command)
        return click.option(
            "--host", default="127.0.0.1", show_default=True, help="Address to listen on."
        )(command)

    return add


def _access_token(path: Path | None) -> str | None:
    """Return the token in the file at *path*, or in CRAWLCW_TOKEN; raises `UsageError`."""
    try:
        source = "CRAWLCW_TOKEN" if path is None else str(path)
        token = os.environ.get(source) if path is None else path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise UsageError(f"the token cannot be read from {path}: {error}") from None
    if token is not None and not _TOKEN.fullmatch(token):
        raise UsageError(
            f"{source} holds no token: write one or more letters, digits or any of ._~+/- into it"
        )
    return token


@click.command("serve")
@click.argument("use_case")
@ledger_option.ledger_option
@_access_options(port=8700)
@options.number_option(
    "--max-connections",
    minimum=1,
    default=256,
    about="Maximum number of open connections; a further connection closes an idle one.",
)
@logs.level_option
@logs.format_option
def serve(
    *,
    use_case: str,
    ledger_url: str,
    host: str,
    port: int,
    token_file: Path | None,
    max_connections: int,
    log_level: str | None,
    log_format: str,
) -> None:
    """Serve the tasks of USE_CASE over HTTP, for clients that create, claim and end tasks.

    USE_CASE is a name, or a declaration: package.module:object, file.py:object or file.py. Only a
    declaration states the order of the stages.

    /openapi.json describes the API. Clients must send a token, unless the server listens on
    loopback only. Any number of servers may use one ledger. After SIGTERM or SIGINT the server
    answers the current requests, and then the server ends.
    """
    from crawlcw.tracking import Tracker, UseCase  # `dashboard` does not need it

    logs.set_up(log_level or "warning", log_format=log_format)
    token = _access_token(token_file)
    is_declaration = ":" in use_case or "/" in use_case or use_case.endswith(".py")
    declaration = loading.find_use_case(use_case) if is_declaration else UseCase(use_case)

    async def serve_tasks() -> None:
        with extras.require("pydantic", by="the server needs", extra="serve"):
            from crawlcw.server.listening import require_token
            from crawlcw.server.serving import serving

        require_token(host, token)
        async with Tracker.open(ledger_url, declaration, ledger_give_up=_GIVE_UP) as tracker:
            stop_event = loop.stopped_by_signals()
            async with serving(
                tracker, host=host, port=port, token=token, max_connections=max_connections
            ) as address:
                click.echo(f"serving {declaration.name} at {address} (see {address}/openapi.json)")
                await stop_event.wait()

    run = ledger_option.run_command(declaration.name) or "the next run"
    advice = f"{run} crawls it"
    with ledger_option.for_use_cases(declaration.name, instead=advice):
        loop.run(serve_tasks())


@click.command("dashboard")
@click.argument("spiders", nargs=-1, metavar="[SPIDER...]")
@ledger_option.ledger_option
@_access_options(port=8765)
@click.option(
    "--allow-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="Host name that browsers may use, such as the name of a reverse proxy. May be repeated.",
)
@logs.level_option
@logs.format_option
def dashboard(
    *,
    spiders: tuple[str, ...],
    ledger_url: str,
    host: str,
    port: int,
    token_file: Path | None,
    allowed_hosts: tuple[str, ...],
    log_level: str | None,
    log_format: str,
) -> None:
    """Serve a web page to watch the crawls of each SPIDER, or all crawls in the ledger.

    SPIDER names a spider as in `crawlcw run`, or a use case. The page loads nothing from other
    servers. Browsers must send a token, unless the server listens on loopback only. SIGTERM or
    SIGINT ends the dashboard, but does not end a crawl.
    """
    logs.set_up(log_level or "warning", log_format=log_format)
    token = _access_token(token_file)
    names = [loading.name_of(spider) for spider in spiders]

    async def serve_page() -> None:
        with extras.require("pydantic", by="the dashboard needs", extra="dashboard"):
            from crawlcw.dashboard.crawls import Crawls
            from crawlcw.dashboard.serving import serving
            from crawlcw.server.listening import require_token

        require_token(host, token)
        settings = options.settings_of()
        read_names = partial(recorded_names, ledger_url, settings=settings)
        known_names = await read_names()
        for name in names:
            if name not in known_names:
                raise await ledger_option.nothing_of(name, ledger_url)
        stop_event = loop.stopped_by_signals()
        open_one = partial(open_ledger, ledger_url, settings=settings, create=False, kind=None)
        async with (
            Crawls(open_ledger=open_one, read_names=read_names, shown_names=names) as crawls,
            serving(
                crawls, host=host, port=port, token=token, allowed_hosts=allowed_hosts
            ) as address,
        ):
            click.echo(f"the dashboard is at {address}")
            await stop_event.wait()

    loop.run(serve_page())
