"""`crawlcw completion`: completion script for a shell."""

import click
from click.shell_completion import get_completion_class

from crawlcw.cli.main import COMPLETE_VARIABLE, cli
from crawlcw.errors import UsageError


@click.command("completion")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def command(*, shell: str) -> None:
    """Print a script for SHELL that completes commands, options, spiders and settings.

    Load it in the shell's start-up file. Bash must be 4.4 or later.
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click knows all of the choices"
    try:
        click.echo(kind(cli, {}, "crawlcw", COMPLETE_VARIABLE).source())
    except RuntimeError as error:
        raise UsageError(str(error)) from None
