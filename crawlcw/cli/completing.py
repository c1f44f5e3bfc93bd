"""What a shell is offered where an argument is a spider or a setting; no spider's code is run."""

from pathlib import Path

import click
from click.shell_completion import CompletionItem


class SpiderName(click.ParamType[str]):
    """A spider: the names of the files in ./spiders, or any file."""

    name = "spider"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        """Return None: the argument's own name is shown."""

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002  # click's signature
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        """Return the names that begin so; where there are none, files may be meant."""
        folder = Path("spiders")
        names = sorted(each.stem for each in folder.glob("*.py")) if folder.is_dir() else []
        found = [CompletionItem(each) for each in names if each.startswith(incomplete)]
        return found or [CompletionItem(incomplete, type="file")]


class SettingAssignment(click.ParamType[str]):
    """`NAME=VALUE` of a setting."""

    name = "setting"

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002  # click's signature
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        """Return the settings that begin so, each with what it is."""
        from crawlcw.api.settings import described  # what no `--help` need wait for

        return [
            CompletionItem(f"{name}=", help=field.doc)
            for name, field in described()
            if name.startswith(incomplete)
        ]


def offer(command: click.Command) -> None:
    """Let the shell complete spiders and settings of *command*, by the names of its parameters."""
    for param in command.params:
        if param.name == "spider" and isinstance(param, click.Argument):
            param.type = SpiderName()
        elif param.name == "assignments":
            param.type = SettingAssignment()
