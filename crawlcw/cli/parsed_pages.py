"""Print the items and requests that a callback yields, for `crawlcw parse`."""

from collections.abc import Mapping
from textwrap import indent

import click

from crawlcw.api.response import Response
from crawlcw.api.user_code import Raised
from crawlcw.cli.numbers import counted
from crawlcw.crawl.callbacks import Produced
from crawlcw.feeds import escaping
from crawlcw.model import values
from crawlcw.model.sanitize import printable, printable_block
from crawlcw.model.transitions import Failed


def show(produced: Produced) -> None:
    """Show the items as JSON Lines, then the requests, then the dropped requests."""
    for item in produced.items:
        click.echo(escaping.visible(values.to_json(item)))
    for task in produced.tasks:
        click.echo(printable(f"{task.callback:20} {task.method} {task.url}", limit=2000))
    for name, value in produced.state.items():
        value_json = escaping.visible(values.to_json(value))
        click.echo(f"state: {printable(name)} = {value_json}")
    for reason, number in produced.items_dropped.items():
        click.echo(printable(f"not recorded: {number} items: {reason}", limit=2000))
    for reason, number in produced.dropped.counts.items():
        examples = ", ".join(produced.dropped.examples.get(reason, ()))
        click.echo(printable(f"dropped: {number} {reason}: {examples}", limit=2000))


def show_sources(sources: Mapping[tuple[str, str], int]) -> None:
    """Show the selectors that filled the fields of the items, with a line for each."""
    for (field, selector), number in sources.items():
        source = f"{selector}, {counted(number, 'time')}" if selector else "no selector has a value"
        click.echo(printable(f"field: {field}: {source}", limit=2000))


def show_numbers(produced: Produced) -> None:
    """Print the numbers of items and requests to stderr."""
    items, requests = counted(len(produced.items), "item"), counted(len(produced.tasks), "request")
    click.echo(f"{items}, {requests}", err=True)
    if produced.stop is not None:
        click.echo(f"the crawl would stop: {produced.stop}", err=True)


def show_failure(callback: str, failed: Failed) -> None:
    """Show the error of a callback, with the traceback if the callback raised an exception."""
    click.echo(f"crawlcw: {callback} failed: {printable(failed.message)}", err=True)
    if isinstance(failed, Raised) and failed.traceback:
        # Indent the traceback, because the exception's text could imitate a line of crawlcw.
        block = indent(printable_block(failed.traceback), "    ", lambda _: True)
        click.echo(block, err=True)


def show_json(response: Response, produced: Produced) -> None:
    """Show the result of a callback as one line of JSON."""
    result = {
        "url": response.url,
        "status": response.status,
        "items": produced.items,
        "items_dropped": dict(produced.items_dropped),
        "fields": [
            {"field": field, "selector": selector or None, "count": count}
            for (field, selector), count in (response.field_sources or {}).items()
        ],
        "requests": [
            {
                "url": task.url,
                "method": task.method,
                "callback": task.callback,
                "priority": task.priority,
                "context": task.shown_context,
            }
            for task in produced.tasks
        ],
        "state": produced.state,
        "links_dropped": dict(produced.dropped.counts),
        "stop": produced.stop,
    }
    click.echo(escaping.visible(values.to_json(result)))
