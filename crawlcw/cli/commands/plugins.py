"""`crawlcw plugins`: the extensions of installed packages, and whether crawlcw can use them."""

import json
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from typing import Any

import click

from crawlcw import extensions, ledger_opening
from crawlcw.api.attempt import loaded_layers
from crawlcw.cli import main, options
from crawlcw.cli.terminal import tables
from crawlcw.errors import CrawlcwError
from crawlcw.feeds import forms
from crawlcw.feeds.target import BUILT_IN
from crawlcw.model.sanitize import printable

#: Map from a group of extensions to the function that loads and checks such an extension.
_LOADER_BY_GROUP: dict[str, Callable[[str], Any]] = {
    extensions.COMMANDS: main.installed_command,
    extensions.FEEDS: forms.writer_class,
    extensions.LAYERS: lambda name: loaded_layers([name]),
    extensions.STORES: ledger_opening.store,
}


@click.command("plugins")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for programs.")
def command(*, as_json: bool) -> None:
    """List the commands, feeds, layers and stores that installed packages add.

    The command shows a state for each extension. Users can name an active extension in a command or
    a setting. An idle layer is not in use, because neither the setting `layers` nor the spider
    names it. A hidden extension cannot be used, because a part of crawlcw or an extension of
    another package has its name. A broken extension cannot be loaded.
    """
    rows = list(_rows())
    if as_json:
        for row in rows:
            click.echo(json.dumps(row))
        return
    columns = ("kind", "name", "package", "state")
    texts = [[printable(row[column]) for column in columns] for row in rows]
    widths = [max(map(tables.cells, column)) for column in zip(columns, *texts, strict=True)]
    for text in (columns, *texts):
        line = "  ".join(map(tables.padded, text, widths))
        click.echo(line.rstrip())
    for row in rows:
        if row["problem"]:
            click.echo(f"{row['kind']} {printable(row['name'])}: {printable(row['problem'])}")


def _rows() -> Iterator[dict[str, str]]:
    active_layers = options.settings_of().layers
    for group, kind in extensions.KINDS.items():
        seen_packages: dict[str, str] = {}
        for entry_point in extensions.installed(group):
            package = extensions.package(entry_point)
            state, problem = "active", ""
            if winner := seen_packages.get(entry_point.name) or _built_in(entry_point):
                state, problem = "hidden", f"{winner} has the same name"
            else:
                seen_packages[entry_point.name] = package
                try:
                    _LOADER_BY_GROUP[group](entry_point.name)
                except CrawlcwError as error:
                    state, problem = "broken", str(error)
                else:
                    if group == extensions.LAYERS and entry_point.name not in active_layers:
                        state = "idle"
            yield {
                "kind": kind,
                "name": entry_point.name,
                "package": package,
                "state": state,
                "problem": problem,
            }


def _built_in(entry_point: EntryPoint) -> str | None:
    """Return `crawlcw` if a part of crawlcw has the extension's name, or None if no part has it."""
    names = {
        extensions.COMMANDS: main.COMMANDS,
        extensions.FEEDS: BUILT_IN,
        extensions.STORES: ledger_opening.BUILT_IN,
    }
    return "crawlcw" if entry_point.name in names.get(entry_point.group, ()) else None
