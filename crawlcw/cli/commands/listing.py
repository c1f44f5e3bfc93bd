"""`crawlcw list`: the spiders in ./spiders."""

import inspect

import click

from crawlcw.cli import loading
from crawlcw.cli.loading import Listed
from crawlcw.cli.terminal import logs
from crawlcw.model.sanitize import printable


@click.command("list")
@logs.level_option
def command(*, log_level: str | None) -> None:
    """List the spiders in ./spiders.

    A line for each: its name, its file and class, the first line of its docstring.
    """
    logs.set_up(log_level or "warning")
    found = list(loading.listed())
    spiders = sorted((s for s in found if isinstance(s, Listed)), key=lambda s: s.name)
    width = max((len(spider.name) for spider in spiders), default=0)
    place = max((len(spider.place) for spider in spiders), default=0)
    for spider in spiders:
        line = f"{spider.name:{width}}  {spider.place:{place}}  {_about(spider)}"
        click.echo(printable(line.rstrip(), limit=500))
    for broken in found:
        if not isinstance(broken, Listed):
            click.echo(printable(f"cannot be loaded: {broken.error}", limit=500))
    if not found:
        click.echo(f"There are no spiders in ./{loading.FOLDER}.")


def _about(spider: Listed) -> str:
    """Return the first line of the class's docstring, or else of its file's."""
    own = spider.kind.__doc__ or getattr(inspect.getmodule(spider.kind), "__doc__", None)
    return (own or "").strip().partition("\n")[0]
