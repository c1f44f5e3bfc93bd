"""`crawlcw parse`: run a spider's callback on one page, or on stored pages."""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import click

from crawlcw.api.request import Request
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider, callback_named
from crawlcw.cli import ledger_option, loop, options, parsed_pages, stored_pages, trying
from crawlcw.cli.exit_codes import NOT_WELL, OK
from crawlcw.cli.terminal import logs
from crawlcw.errors import FetchError, UsageError
from crawlcw.model.sanitize import printable
from crawlcw.model.transitions import Failed


@click.command("parse")
@click.argument("spider")
@click.argument("urls", nargs=-1, metavar="[URL...]")
@click.option(
    "--callback",
    "-c",
    metavar="NAME",
    help="Callback; by default `parse`, or the callback of the stored page.",
)
@click.option("--context", metavar="JSON", help="Context of the request, a JSON object.")
@options.arguments_option
@options.settings_option
@click.option(
    "--stored", is_flag=True, help="Parse pages stored by `keep_bodies`; send no request."
)
@click.option(
    "--save", is_flag=True, help="Replace the recorded items of stored pages with the new ones."
)
@ledger_option.ledger_option
@options.yes_option
@options.json_option
@logs.log_option
def command(
    *,
    spider: str,
    urls: tuple[str, ...],
    callback: str | None,
    context: str | None,
    arguments: tuple[str, ...],
    assignments: tuple[str, ...],
    stored: bool,
    save: bool,
    ledger_url: str,
    yes: bool,
    as_json: bool,
) -> int:
    """Fetch a URL, run a callback of SPIDER on it, and show the items and requests.

    The command prints the items as JSON Lines, then the requests with their callbacks,
    then the dropped links with the reason. For each field that a selector of an item class
    has filled, the command shows the selector. A spider with a login logs in first. Nothing
    is recorded.

    With --stored the command sends no request, and parses pages that a crawl with
    `keep_bodies=true` stored. Without a URL the command parses all stored pages. Each stored page
    goes to the callback of its request. With --save the new items replace the recorded items, and
    new links wait for the next run. A page keeps its items if the page cannot be read, or if its
    callback raises.

    The exit code is 3 if there is no response, if no callback accepts the response's status, if the
    callback raises, or if a stored page is unreadable.
    """
    if stored:
        if context is not None:
            raise UsageError("--context is for a fetched page: a stored one has its own")
        if save and as_json:
            raise UsageError("--save shows no items: leave --json out")
        loaded_spider = trying.spider_or_any(spider, arguments)
        parse_options = stored_pages.ParseOptions(
            urls=urls, callback=callback, save=save, yes=yes, as_json=as_json, reference=spider
        )
        settings = options.settings_of(loaded_spider, assignments)
        return loop.run(stored_pages.parse(loaded_spider, settings, ledger_url, parse_options))
    if save:
        raise UsageError("--save is for stored pages: add --stored")
    if len(urls) != 1:
        raise UsageError("parse takes one URL, or --stored and any number of them")
    request = Request(urls[0], callback or "parse", context=_context(context))
    loaded_spider = trying.spider_or_any(spider, arguments)
    callback_named(loaded_spider, request.callback)  # raises if the spider lacks the callback
    settings = options.settings_of(loaded_spider, assignments)
    return loop.run(_parse(loaded_spider, request, settings, as_json=as_json))


def _context(text: str | None) -> Mapping[str, Any] | None:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--context is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError("--context takes a JSON object")
    return value


async def _parse(spider: Spider, request: Request, settings: Settings, *, as_json: bool) -> int:
    async with trying.open_trial(spider, request.url, settings) as trial:
        try:
            response = await trial.fetch(request)
        except FetchError as error:
            click.echo(f"crawlcw: {printable(error, limit=400)}", err=True)
            return NOT_WELL
        click.echo(trying.head_of(response), err=True)
        if not trial.is_page(response):
            click.echo("crawlcw: a crawl would not parse this response", err=True)
            return NOT_WELL
        response.field_sources = Counter()
        produced = await trial.parse(response)
    if isinstance(produced, Failed):
        parsed_pages.show_failure(request.callback, produced)
        return NOT_WELL
    if as_json:
        parsed_pages.show_json(response, produced)
    else:
        parsed_pages.show(produced)
        parsed_pages.show_sources(response.field_sources)
        parsed_pages.show_numbers(produced)
    return OK
