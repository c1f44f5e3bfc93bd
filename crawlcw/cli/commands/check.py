"""`crawlcw check`: whether a spider is written as crawlcw reads it."""

import inspect

import click

from crawlcw.api import leftovers
from crawlcw.api.spider import Spider
from crawlcw.cli import loading, spider_options
from crawlcw.cli.exit_codes import OK, USAGE
from crawlcw.cli.terminal import logs
from crawlcw.errors import SpiderError
from crawlcw.model.sanitize import printable


@click.command("check")
@click.argument("spider")
@spider_options.arguments_option
@spider_options.settings_option
@logs.level_option
def command(
    *,
    spider: str,
    arguments: tuple[str, ...],
    assignments: tuple[str, ...],
    log_level: str | None,
) -> int:
    """Show what is wrong with SPIDER, without a request.

    It looks at the settings, the callbacks and what means something in Scrapy
    alone; each finding has its line and the word to use instead. Exit code 2
    where there is one.
    """
    logs.set_up(log_level or "warning")
    kind = loading.find(spider)
    place = printable(inspect.getsourcefile(kind) or kind.__module__)
    found = leftovers.findings(kind)
    for each in found:
        click.echo(printable(f"{place}:{each.line}: {each.message}", limit=500))
    try:
        # A reader of the lines above need not see again what one of them led to.
        made = loading.make(kind, arguments)
        spider_options.settings_of(made, assignments)
    except SpiderError as error:
        click.echo(printable(f"{place}: {error}", limit=500))
        return USAGE
    if _has_no_parse(made):
        click.echo(f"{place}: {kind.__name__} has no parse(), which its start URLs are given to")
        return USAGE
    if found:
        return USAGE
    click.echo(f"{kind.name}: nothing is wrong")
    return OK


def _has_no_parse(spider: Spider) -> bool:
    kind = type(spider)
    return kind.parse is Spider.parse and kind.start is Spider.start and not spider.rules
