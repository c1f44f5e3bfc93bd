"""Complete spiders and settings in a shell, without running any spider's code."""

from collections.abc import Callable
from pathlib import Path

import click
from click.shell_completion import CompletionItem


class _Completed(click.ParamType[str]):
    """A click type that accepts every text; the function *complete* returns completions."""

    name = "text"

    def __init__(self, complete: Callable[[str], list[CompletionItem]]) -> None:
        self._complete = complete

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        """Return None; then click's help shows the name of *param*, not this type's name."""

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002  # click's signature
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        return self._complete(incomplete)


def _spiders(incomplete: str) -> list[CompletionItem]:
    """Return the spiders in ./spiders that begin with *incomplete*; if none does, suggest files."""
    folder = Path("spiders")
    names = sorted(path.stem for path in folder.glob("*.py")) if folder.is_dir() else []
    completions = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return completions or [CompletionItem(incomplete, type="file")]


def _settings(incomplete: str) -> list[CompletionItem]:
    from crawlcw.api.settings import described  # slow to import, and not needed for `--help`

    return [
        CompletionItem(f"{name}=", help=field.doc)
        for name, field in described()
        if name.startswith(incomplete)
    ]


def offer(command: click.Command) -> None:
    """Add completion to the parameters of *command* that name spiders or settings."""
    for param in command.params:
        if param.name == "spider" and isinstance(param, click.Argument):
            param.type = _Completed(_spiders)
        elif param.name == "assignments":
            param.type = _Completed(_settings)
