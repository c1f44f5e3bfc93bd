"""`crawlcw settings`: list all settings."""

import json

import click

from crawlcw.api.settings import described


@click.command("settings")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for programs.")
def command(*, as_json: bool) -> None:
    """List every setting.

    Shows its default, unit and purpose.

    A setting is given on the spider's class, in pyproject.toml under
    [tool.crawlcw], as CRAWLCW_NAME in the environment, or as -s NAME=VALUE; the
    last one wins.
    """
    rows = [(name, field.shown(), field.unit, field.doc) for name, field in described()]
    if as_json:
        for row in rows:
            click.echo(
                json.dumps(dict(zip(("name", "default", "unit", "about"), row, strict=True)))
            )
        return
    name_width = max(len(name) for name, *_ in rows)
    for name, default, unit, doc in rows:
        click.echo(f"{name:{name_width}}  {default}" + (f"  ({unit})" if unit else ""))
        click.echo(f"{'':{name_width}}  {doc}")
