"""`crawlcw serve`: serve a use case's tasks over HTTP, for workers in any language."""

from datetime import timedelta
from pathlib import Path

import click

from crawlcw.cli import access_token, extras, ledger_option, loading_use_case, loop, options
from crawlcw.cli.stopping import stopped_by_signals
from crawlcw.cli.terminal import logs
from crawlcw.tracking import Tracker, UseCase

#: Short: clients retry by themselves and should not wait for an unavailable ledger.
_GIVE_UP = timedelta(seconds=3)


@click.command("serve")
@click.argument("use_case")
@ledger_option.ledger_option
@options.address_options(port=8700)
@access_token.token_option
@options.number_option(
    "--max-connections",
    least=1,
    default=256,
    about="Limit of open connections; one more closes the one that waited longest.",
)
@logs.level_option
@logs.format_option
def command(
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
    """Serve the tasks of USE_CASE over HTTP: create, hold, renew, set.

    USE_CASE is a name, or a declaration: package.module:object, file.py:object or
    file.py. The order of stages is known from a declaration only.

    /openapi.json describes the API. A token is required, except on loopback. Any
    number of servers may work on one ledger. SIGTERM and SIGINT stop gracefully:
    requests under way are answered.
    """
    logs.set_up(log_level or "warning", style=log_format)
    token = access_token.access_token(token_file)
    declared = _declared(use_case)
    instead = f"`crawlcw run {declared.name}` crawls it"
    with ledger_option.for_use_cases(declared.name, instead=instead):
        loop.run(
            _serve(
                declared,
                ledger_url,
                host=host,
                port=port,
                token=token,
                max_connections=max_connections,
            )
        )


def _declared(text: str) -> UseCase:
    if ":" in text or "/" in text or text.endswith(".py"):
        return loading_use_case.find(text)
    return UseCase(text)


async def _serve(
    use_case: UseCase,
    ledger_url: str,
    *,
    host: str,
    port: int,
    token: str | None,
    max_connections: int,
) -> None:
    with extras.needed("pydantic", by="the server needs", extra="serve"):
        from crawlcw.server.listening import check_reach
        from crawlcw.server.serving import serving

    check_reach(host, token)
    async with Tracker.open(ledger_url, use_case, ledger_give_up=_GIVE_UP) as tracker:
        stopped = stopped_by_signals()
        async with serving(
            tracker, host=host, port=port, token=token, max_connections=max_connections
        ) as address:
            click.echo(f"serving {use_case.name} at {address} (see {address}/openapi.json)")
            await stopped.wait()
