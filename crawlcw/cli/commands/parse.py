"""`crawlcw parse`: what a spider makes of one page."""

import json
from collections.abc import Mapping, Sequence
from textwrap import indent
from typing import Any

import click

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.spider import callback_named
from crawlcw.cli import loop, trying
from crawlcw.cli.exit_codes import NOT_WELL, OK
from crawlcw.cli.terminal import logs
from crawlcw.crawl.callbacks import Produced, Raised
from crawlcw.errors import FetchError, UsageError
from crawlcw.feeds import inert
from crawlcw.model import values
from crawlcw.model.sanitize import printable, printable_block
from crawlcw.model.transitions import Failed


@click.command("parse")
@click.argument("spider")
@click.argument("url")
@click.option("--callback", "-c", default="parse", show_default=True, metavar="NAME")
@click.option("--context", metavar="JSON", help="The request's context, a JSON object.")
@trying.arguments_option
@trying.settings_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
@logs.level_option
def command(
    *,
    spider: str,
    url: str,
    callback: str,
    context: str | None,
    arguments: tuple[str, ...],
    assignments: tuple[str, ...],
    as_json: bool,
    log_level: str | None,
) -> int:
    """Fetch URL, give it to a callback of SPIDER, and show what it yields.

    Items as JSON Lines, then the requests with their callbacks, then the links
    that were left out, and why. Nothing is recorded.

    Exit code 3: there was no answer, its status is none that a callback is
    given, or the callback raised.
    """
    logs.set_up(log_level or "warning")
    request = Request(url, callback, context=_context(context))
    return loop.run(_parse(spider, request, arguments, assignments, as_json=as_json))


def _context(text: str | None) -> Mapping[str, Any] | None:
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--context is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError("--context takes a JSON object")
    return found


async def _parse(
    spider: str,
    request: Request,
    arguments: Sequence[str],
    assignments: Sequence[str],
    *,
    as_json: bool,
) -> int:
    made = trying.made(spider, arguments)
    callback_named(made, request.callback)  # before anybody is asked for a page
    async with trying.trying(made, request.url, trying.settings_of(made, assignments)) as trial:
        try:
            response = await trial.fetch(request)
        except FetchError as error:
            click.echo(f"crawlcw: {printable(error, limit=400)}", err=True)
            return NOT_WELL
        click.echo(trying.head_of(response), err=True)
        if not trial.is_page(response):
            click.echo("crawlcw: a crawl would not parse this answer", err=True)
            return NOT_WELL
        produced = await trial.parse(response)
    if isinstance(produced, Failed):
        click.echo(f"crawlcw: {request.callback} failed: {printable(produced.message)}", err=True)
        if isinstance(produced, Raised) and produced.traceback:
            # Its text may have lines that look like ours.
            block = indent(printable_block(produced.traceback), "    ", lambda _: True)
            click.echo(block, err=True)
        return NOT_WELL
    if as_json:
        click.echo(inert.visible(values.to_json(_object(response, produced))))
    else:
        _show(produced)
    return OK


def _show(produced: Produced) -> None:
    for item in produced.items:
        click.echo(inert.visible(values.to_json(item)))
    for task in produced.tasks:
        click.echo(printable(f"{task.callback:20} {task.method} {task.url}", limit=2000))
    for reason, number in produced.items_dropped.items():
        click.echo(printable(f"not recorded: {number} items: {reason}", limit=2000))
    for reason, number in produced.dropped.counts.items():
        examples = ", ".join(produced.dropped.examples.get(reason, ()))
        click.echo(printable(f"left out: {number} {reason}: {examples}", limit=2000))
    items, requests = len(produced.items), len(produced.tasks)
    click.echo(f"{items:,} items, {requests:,} requests", err=True)
    if produced.stop is not None:
        click.echo(f"the crawl would stop: {produced.stop}", err=True)


def _object(response: Response, produced: Produced) -> dict[str, Any]:
    return {
        "url": response.url,
        "status": response.status,
        "items": produced.items,
        "items_dropped": dict(produced.items_dropped),
        "requests": [
            {
                "url": task.url,
                "method": task.method,
                "callback": task.callback,
                "priority": task.priority,
                "context": task.context,
            }
            for task in produced.tasks
        ],
        "links_dropped": dict(produced.dropped.counts),
        "stop": produced.stop,
    }
