"""`crawlcw fetch`: fetch one page as a crawl would."""

import sys

import click

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.cli import loop, options, trying
from crawlcw.cli.exit_codes import NOT_WELL, OK
from crawlcw.cli.terminal import logs
from crawlcw.errors import FetchError
from crawlcw.model.sanitize import printable, printable_block


@click.command("fetch")
@click.argument("url")
@click.option("--spider", metavar="SPIDER", help="Use the settings of this spider.")
@options.arguments_option
@options.settings_option
@click.option("--headers", is_flag=True, help="Print the response headers instead of the body.")
@logs.log_option
def command(
    *,
    url: str,
    spider: str | None,
    arguments: tuple[str, ...],
    assignments: tuple[str, ...],
    headers: bool,
) -> int:
    """Fetch URL as a crawl does, and print the body.

    The request obeys robots.txt and follows redirects. The command decodes the body, cuts it after
    `max_body` bytes, and writes a line about the response to stderr. Nothing is recorded.

    The exit code is 3 if there is no response, or if its status is not between 200 and 299.
    """
    loaded_spider = trying.spider_or_any(spider, arguments)
    settings = options.settings_of(loaded_spider, assignments)
    return loop.run(_fetch(loaded_spider, url, settings, headers=headers))


async def _fetch(spider: Spider, url: str, settings: Settings, *, headers: bool) -> int:
    async with trying.open_trial(spider, url, settings) as trial:
        try:
            response = await trial.fetch(Request(url))
        except FetchError as error:
            click.echo(f"crawlcw: {printable(error, limit=400)}", err=True)
            return NOT_WELL
    click.echo(trying.head_of(response), err=True)
    if headers:
        for name, value in response.headers.items():
            click.echo(printable(f"{name}: {value}", limit=2000))
    else:
        _write_body(response)
    return OK if 200 <= response.status < 300 else NOT_WELL


def _write_body(response: Response) -> None:
    if sys.stdout.isatty():
        # Escape the body, because a page must not send control sequences to the terminal.
        click.echo(printable_block(response.text, limit=len(response.text)))
    else:
        sys.stdout.buffer.write(response.body)
        sys.stdout.buffer.flush()
