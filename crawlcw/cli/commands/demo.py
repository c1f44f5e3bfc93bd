"""`crawlcw demo`: run a whole crawl, offline, in a few seconds, or only serve its site."""

import os
from contextlib import AsyncExitStack
from pathlib import Path

import click

from crawlcw.cli import loop
from crawlcw.cli.exit_codes import OK
from crawlcw.cli.numbers import WholeNumber
from crawlcw.cli.options import LEDGER
from crawlcw.cli.terminal import logs
from crawlcw.errors import UsageError
from crawlcw.ledger_opening import DEFAULT_LEDGER

#: The demo's ledger is in the folder of the default ledger, so that git ignores both ledgers.
_LEDGER = Path(DEFAULT_LEDGER.removeprefix("sqlite:///")).with_name("demo.db")
_URL = f"sqlite:///{_LEDGER}"
_PORT = 8000


@click.command("demo")
@logs.level_option
@logs.format_option
@logs.quiet_option
@click.option("--serve", is_flag=True, help="Only serve the bookshop, for your own spiders.")
@click.option(
    "--port",
    type=WholeNumber(0, 65535),
    metavar="PORT",
    help=f"Port of the bookshop.  [default: {_PORT} with --serve, else any free port]",
)
def command(
    *, log_level: str | None, log_format: str, quiet: bool, serve: bool, port: int | None
) -> int:
    """Crawl a bundled bookshop, offline.

    The command serves the shop on loopback: a few hundred pages with categories, redirects, broken
    links, pages that robots.txt forbids, and pages that answer 503 at first. The command records
    the crawl in .crawlcw/demo.db, and replaces the ledger of an earlier demo. With --serve the
    command crawls nothing, and serves the shop until Ctrl-C.
    """
    # Import the web server in the command, because `--help` does not need it.
    from crawlcw.cli.crawling import crawl
    from crawlcw.cli.showing import Output
    from crawlcw.demo.bookshop import Bookshop
    from crawlcw.demo.spider import BookshopSpider

    output = Output(format=log_format, quiet=quiet)
    logs.set_up(log_level or output.level, log_format=log_format)
    if port is None:
        port = _PORT if serve else 0

    async def demonstrate() -> int:
        async with AsyncExitStack() as stack:
            try:
                shop = await stack.enter_async_context(Bookshop(port=port))
            except OSError as error:
                raise UsageError(
                    f"the bookshop cannot listen on port {port}: "
                    f"{os.strerror(error.errno or 0)}; --port names another"
                ) from None
            if serve:
                stop_event = loop.stopped_by_signals()
                click.echo(f"The bookshop is open at {shop.url} until Ctrl-C")
                await stop_event.wait()
                return OK
            _delete_earlier()
            click.get_current_context().meta[LEDGER] = _URL
            if not quiet:
                click.echo(f"Crawling the bookshop at {shop.url} into {_LEDGER}", err=True)
            spider = BookshopSpider(start_url=shop.url)
            return await crawl(spider, _URL, settings=spider.settings, output=output)

    code = loop.run(demonstrate())
    if code == OK and not (quiet or serve) and log_format == "text":
        click.echo(_next_commands(BookshopSpider.name))
    return code


def _delete_earlier() -> None:
    try:
        for suffix in ("", "-wal", "-shm"):
            _LEDGER.with_name(_LEDGER.name + suffix).unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot delete {_LEDGER}: {error.strerror}") from None


def _next_commands(name: str) -> str:
    return f"""\
The results are in the ledger. Try:
  crawlcw stats {name} --ledger {_URL}
  crawlcw export {name} --ledger {_URL} -o books.jsonl
  crawlcw retry-failed {name} --ledger {_URL} --dry-run
and then your own spider:
  crawlcw new books https://books.toscrape.com/"""
