"""Options of several commands: `--json`, whole numbers, durations, an address to listen on."""

from collections.abc import Callable
from datetime import timedelta
from typing import ParamSpec, TypeVar

import click

from crawlcw.errors import SettingsError
from crawlcw.model.durations import duration

P = ParamSpec("P")
R = TypeVar("R")


def json_option(command: Callable[P, R]) -> Callable[P, R]:
    """Add `--json` to a command that then prints one object."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")(
        command
    )


def number_option(
    name: str, *, least: int, about: str, default: int | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that adds a whole number of at least *least*."""
    kind = click.IntRange(min=least)
    return click.option(
        name, type=kind, default=default, show_default=True, metavar="N", help=about
    )


def duration_option(
    name: str, *, default: str, about: str
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that adds a duration, which the command gets as a `timedelta`."""
    return click.option(
        name, default=default, show_default=True, metavar="DURATION", callback=_read, help=about
    )


def address_options(*, port: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that adds `--host` and `--port`, by default *port* on loopback."""

    def add(command: Callable[P, R]) -> Callable[P, R]:
        command = click.option(
            "--port", type=click.IntRange(0, 65535), default=port, show_default=True
        )(command)
        return click.option(
            "--host", default="127.0.0.1", show_default=True, help="Address to listen on."
        )(command)

    return add


def _read(_: click.Context, param: click.Parameter, text: str) -> timedelta:
    try:
        return duration(text)
    except SettingsError as error:
        raise click.BadParameter(str(error), param_hint=param.opts[0]) from None
