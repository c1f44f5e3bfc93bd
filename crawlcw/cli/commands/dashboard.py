"""`crawlcw dashboard`: a web page to watch, search and control crawls."""

from functools import partial
from pathlib import Path

import click

from crawlcw.cli import access_token, extras, ledger_option, loading, loop, options
from crawlcw.cli.stopping import stopped_by_signals
from crawlcw.cli.terminal import logs
from crawlcw.errors import UsageError
from crawlcw.ledger_opening import open_to_search, recorded_names


@click.command("dashboard")
@click.argument("spiders", nargs=-1, metavar="[SPIDER...]")
@ledger_option.ledger_option
@options.address_options(port=8765)
@access_token.token_option
@click.option(
    "--allow-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="Accepted host name, such as a reverse proxy's. May be repeated.",
)
@logs.level_option
@logs.format_option
def command(
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
    """Serve a web page to watch each SPIDER, or all in the ledger, while they run.

    SPIDER is as for `crawlcw run`, or the name of a use case. The page loads nothing
    from other servers. A token is required, except on loopback. SIGTERM and SIGINT
    end the dashboard, not the crawls.
    """
    logs.set_up(log_level or "warning", style=log_format)
    token = access_token.access_token(token_file)
    loop.run(
        _serve(
            [loading.name_of(spider) for spider in spiders],
            ledger_url,
            host=host,
            port=port,
            token=token,
            allowed_hosts=allowed_hosts,
        )
    )


async def _serve(
    names: list[str],
    ledger_url: str,
    *,
    host: str,
    port: int,
    token: str | None,
    allowed_hosts: tuple[str, ...],
) -> None:
    with extras.needed("pydantic", by="the dashboard needs", extra="dashboard"):
        from crawlcw.dashboard.crawls import Crawls
        from crawlcw.dashboard.serving import serving
        from crawlcw.server.listening import check_reach

    check_reach(host, token)
    settings = ledger_option.own_settings()
    recorded = partial(recorded_names, ledger_url, settings=settings)
    there = await recorded()
    for name in names:
        if name not in there:
            raise UsageError(await ledger_option.nothing_of(name, ledger_url))
    stopped = stopped_by_signals()
    open_one = partial(open_to_search, ledger_url, settings=settings)
    async with (
        Crawls(open_one=open_one, recorded=recorded, only=names) as crawls,
        serving(crawls, host=host, port=port, token=token, allowed_hosts=allowed_hosts) as address,
    ):
        click.echo(f"the dashboard is at {address}")
        await stopped.wait()
