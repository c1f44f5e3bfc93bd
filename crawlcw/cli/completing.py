"""Shell completion of spiders and settings, without running any spider's code."""

from pathlib import Path

import click
from click.shell_completion import CompletionItem


class _Completed(click.ParamType[str]):
    """A text that the shell completes; none is refused here."""

    def completed(self, incomplete: str) -> list[CompletionItem]:
        """Return what *incomplete* may become."""
        raise NotImplementedError

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002  # click's signature
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        """See `completed`."""
        return self.completed(incomplete)


class SpiderName(_Completed):
    """A spider: the names of the files in ./spiders, or any file."""

    name = "spider"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        """Return None: click then shows the argument's own name."""

    def completed(self, incomplete: str) -> list[CompletionItem]:
        """Return the names with this prefix; without any, let the shell complete files."""
        folder = Path("spiders")
        names = sorted(each.stem for each in folder.glob("*.py")) if folder.is_dir() else []
        found = [CompletionItem(each) for each in names if each.startswith(incomplete)]
        return found or [CompletionItem(incomplete, type="file")]


class SettingAssignment(_Completed):
    """`NAME=VALUE` of a setting."""

    name = "setting"

    def completed(self, incomplete: str) -> list[CompletionItem]:
        """Return the settings with this prefix, each with its description."""
        from crawlcw.api.settings import described  # slow to load, and `--help` does not need it

        return [
            CompletionItem(f"{name}=", help=field.doc)
            for name, field in described()
            if name.startswith(incomplete)
        ]


def offer(command: click.Command) -> None:
    """Give the parameters of *command* that name spiders and settings their completion."""
    for param in command.params:
        if param.name == "spider" and isinstance(param, click.Argument):
            param.type = SpiderName()
        elif param.name == "assignments":
            param.type = SettingAssignment()
