"""`crawlcw settings`: every setting there is."""

import click

from crawlcw.api.settings import described


@click.command("settings")
def command() -> None:
    """List every setting.

    With its default, its unit and what it is for.

    A setting is given on the spider's class, in pyproject.toml under
    [tool.crawlcw], as CRAWLCW_NAME in the environment, or as -s NAME=VALUE; the
    last wins.
    """
    rows = [(name, field.shown(), field.unit, field.doc) for name, field in described()]
    name_width = max(len(name) for name, *_ in rows)
    for name, default, unit, doc in rows:
        click.echo(f"{name:{name_width}}  {default}" + (f"  ({unit})" if unit else ""))
        click.echo(f"{'':{name_width}}  {doc}")
