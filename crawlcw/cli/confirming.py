"""What asks before it acts: on a terminal, or by `--yes`."""

import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import click

from crawlcw.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")


def yes_option(command: Callable[P, R]) -> Callable[P, R]:
    """Add `--yes` to a command."""
    return click.option("--yes", "-y", is_flag=True, help="Do not ask.")(command)


def confirm(question: str, *, yes: bool) -> None:
    """Ask, unless *yes*; raises `click.Abort` for a no, `UsageError` where nobody can be asked."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Nobody can be asked without a terminal: add --yes")
    click.confirm(question, abort=True, err=True)
