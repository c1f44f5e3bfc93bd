"""`crawlcw list`: the spiders in ./spiders."""

import inspect
import json

import click

from crawlcw.cli import loading
from crawlcw.cli.loading import Broken, Listed
from crawlcw.cli.terminal import logs
from crawlcw.model.sanitize import printable


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for programs.")
@logs.log_option
def command(*, as_json: bool) -> None:
    """List the spiders in ./spiders.

    A line for each: its name, its file and class, the first line of its docstring.
    """
    found = list(loading.listed())
    spiders = sorted((s for s in found if isinstance(s, Listed)), key=lambda s: s.name)
    if as_json:
        _print_objects(spiders, [each for each in found if isinstance(each, Broken)])
        return
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


def _print_objects(spiders: list[Listed], broken: list[Broken]) -> None:
    for each in spiders:
        about = {"name": each.name, "place": each.place, "about": _about(each)}
        click.echo(json.dumps(about))
    for file in broken:
        click.echo(json.dumps({"file": str(file.path), "error": str(file.error)}))


def _about(spider: Listed) -> str:
    """Return the first line of the class's docstring, or else of its file's."""
    own = spider.kind.__doc__ or getattr(inspect.getmodule(spider.kind), "__doc__", None)
    return (own or "").strip().partition("\n")[0]
