"""Define options that several commands share, and read their values."""

import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import click

from crawlcw.api.settings import Settings, layered, project_settings
from crawlcw.api.spider import Spider
from crawlcw.cli.numbers import WholeNumber
from crawlcw.errors import SettingsError, UsageError
from crawlcw.model.durations import duration
from crawlcw.model.sanitize import printable

F = TypeVar("F", bound=Callable[..., Any])

#: Key in click's `meta` for the URL of the user's ledger (None for a temporary ledger).
LEDGER = "crawlcw.ledger"
#: Matches a part of a ledger URL that may be a password: after the user name, or in a parameter.
_SECRET = re.compile(r"://[^@]*:.*@|[?&][^=]*pass", re.IGNORECASE)

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")
settings_option = click.option(
    "-s",
    "assignments",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting; `crawlcw settings` lists all settings. May be repeated.",
)
arguments_option = click.option(
    "-a",
    "arguments",
    multiple=True,
    metavar="NAME=VALUE",
    help="An argument of the spider's constructor. May be repeated.",
)


def command_line(command: str, *arguments: str, ledger: str | None = None) -> str:
    """Return a command line for the user to paste, with the same `--ledger` as this command.

    If *ledger* is given, `--ledger` has this URL instead.
    """
    ctx = click.get_current_context(silent=True)
    url = ledger or (ctx.meta.get(LEDGER) if ctx else None)
    parts = ["crawlcw", command, *map(shlex.quote, arguments)]
    if url:
        parts += ["--ledger", "URL" if _SECRET.search(url) else shlex.quote(url)]
    return printable(f"`{' '.join(parts)}`", limit=1000)


def is_durable() -> bool:
    """Return whether the command's ledger remains after the end of the command."""
    ctx = click.get_current_context(silent=True)
    return ctx is None or ctx.meta.get(LEDGER, "") is not None


def number_option(
    name: str, *, minimum: int, about: str, default: int | None = None
) -> Callable[[F], F]:
    """Return a decorator that adds an option for a whole number of at least *minimum*."""
    kind = WholeNumber(min=minimum)
    return click.option(
        name, type=kind, default=default, show_default=True, metavar="N", help=about
    )


def duration_option(*names: str, about: str, default: str | None = None) -> Callable[[F], F]:
    """Return a decorator that adds an option for a duration, which is passed as a `timedelta`."""
    return click.option(
        *names,
        default=default,
        show_default=True,
        metavar="DURATION",
        callback=_parse_duration,
        help=about,
    )


def _parse_duration(_: click.Context, param: click.Parameter, text: str | None) -> timedelta | None:
    try:
        return None if text is None else duration(text)
    except SettingsError as error:
        raise click.BadParameter(str(error), param_hint=param.opts[0]) from None


def settings_of(spider: Spider | None = None, assignments: Sequence[str] = ()) -> Settings:
    """Return the settings for a spider, or for work without a spider if *spider* is None.

    If several sources have a setting, the first in this order wins: *assignments*, environment,
    project, spider. Raises `SettingsError`.
    """
    return layered(
        Settings() if spider is None else spider.settings,
        project=project_settings(Path.cwd()),
        environment=os.environ,
        assignments=assignments,
    )


def pairs(assignments: Sequence[str]) -> dict[str, str]:
    """Return a dict with the name and the value of each NAME=VALUE text; raises `UsageError`."""
    values = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"write NAME=VALUE, not {text!r}")
        values[name.strip()] = value.strip()
    return values


def confirm(question: str, *, yes: bool) -> None:
    """Ask the user, unless *yes* is true; raises `click.Abort` if the user declines."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} No terminal to confirm on: add --yes")
    # During the prompt, use Python's own handler of SIGINT, so that Ctrl-C ends the command.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        click.confirm(question, abort=True, err=True)
    finally:
        signal.signal(signal.SIGINT, handler)
