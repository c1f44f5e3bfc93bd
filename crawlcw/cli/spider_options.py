"""`-s` and `-a`: settings and arguments for a spider."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ParamSpec, TypeVar

import click

from crawlcw.api.settings import Settings, layered, project_settings
from crawlcw.api.spider import Spider

P = ParamSpec("P")
R = TypeVar("R")


def settings_option(command: Callable[P, R]) -> Callable[P, R]:
    """Add `-s` to a command."""
    about = "A setting; `crawlcw settings` lists them. May be repeated."
    return _pairs("-s", "assignments", about)(command)


def arguments_option(command: Callable[P, R]) -> Callable[P, R]:
    """Add `-a` to a command."""
    about = "An argument for the spider's constructor. May be repeated."
    return _pairs("-a", "arguments", about)(command)


def _pairs(flag: str, name: str, about: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    return click.option(flag, name, multiple=True, metavar="NAME=VALUE", help=about)


def settings_of(spider: Spider, assignments: Sequence[str]) -> Settings:
    """Return the settings of a crawl of *spider*.

    Precedence: *assignments*, the environment, the project, the spider. Raises
    `SettingsError`.
    """
    return layered(
        spider.settings,
        project=project_settings(Path.cwd()),
        environment=os.environ,
        assignments=assignments,
    )
