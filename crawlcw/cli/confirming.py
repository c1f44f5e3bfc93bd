"""Confirmation before a destructive command: on a terminal, or by `--yes`."""

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
    """Ask, unless *yes*; raises `click.Abort` for a no, `UsageError` without a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} No terminal to confirm on: add --yes")
    click.confirm(question, abort=True, err=True)
