"""`crawlcw guide`, `settings` and `completion`: the manual in the terminal."""

import io
import json
import re
import sys

import click
from click.shell_completion import get_completion_class

from crawlcw.cli.main import COMPLETE_VARIABLE, cli
from crawlcw.errors import UsageError
from crawlcw.guide.pages import Page, all_pages, page

#: Maximum width of a page in columns, because longer lines are hard to read.
_WIDEST = 100
#: A link to a heading of the same page, or to another page of the manual.
_LINK = re.compile(r"\[([^\]]+)\]\((?:([\w-]+)\.md(?:#[\w-]+)?|#[\w-]+)\)")


@click.command("guide")
@click.argument("name", metavar="[PAGE]", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a page, for programs.")
def guide(*, name: str | None, as_json: bool) -> None:
    """Show a page of the manual, or without PAGE the list of pages.

    On a terminal the command fits the page to the terminal's width, and shows the page in a pager
    ($PAGER). The command writes Markdown if its output is a pipe or a file.
    """
    if as_json:
        for manual_page in all_pages() if name is None else [page(name)]:
            text = {} if name is None else {"text": manual_page.text}
            click.echo(json.dumps({"name": manual_page.name, "about": manual_page.summary, **text}))
    elif name is None:
        pages = all_pages()
        width = max(len(manual_page.name) for manual_page in pages)
        for manual_page in pages:
            click.echo(f"{manual_page.name:{width}}  {manual_page.summary}")
    elif sys.stdout.isatty():
        click.echo_via_pager(_laid_out(page(name)))
    else:
        click.echo(page(name).text, nl=False)


def _laid_out(manual_page: Page) -> str:
    # Import rich late, because rich takes 0.1 s to load and the list of pages does not need rich.
    from rich.console import Console
    from rich.markdown import Markdown

    terminal = Console()
    console = Console(
        file=io.StringIO(),
        width=min(terminal.width, _WIDEST),
        force_terminal=True,
        color_system="standard" if terminal.color_system else None,
        no_color=terminal.no_color,
    )
    with console.capture() as capture:
        console.print(Markdown(_LINK.sub(_command, manual_page.text), hyperlinks=False))
    return capture.get()


def _command(link: re.Match[str]) -> str:
    """Return the text of a link, followed by the command that shows the linked page."""
    text, name = link.groups()
    return text if name is None else f"{text} (`crawlcw guide {name}`)"


@click.command("settings")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for programs.")
def settings(*, as_json: bool) -> None:
    """List every setting with its default, unit and purpose.

    Set a setting in the spider's class, in [tool.crawlcw] of pyproject.toml, in the environment
    variable CRAWLCW_NAME, or by -s NAME=VALUE. If several places set the setting, the last wins.
    """
    from crawlcw.api.settings import described  # slow to import, and not needed by `guide`

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


@click.command("completion")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(*, shell: str) -> None:
    """Print a script for SHELL that completes commands, options, spiders and settings.

    Load the script in the shell's start-up file. Bash must be 4.4 or later.
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click knows all of the choices"
    try:
        click.echo(kind(cli, {}, "crawlcw", COMPLETE_VARIABLE).source())
    except RuntimeError as error:
        raise UsageError(str(error)) from None
