"""Console of rich, for the commands.

rich itself leaves out colours with NO_COLOR, and when the output is not a terminal.
"""

from rich.console import Console


class PlainConsole(Console):
    """Prints data literally: without markup, emoji codes or highlighting."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False)

    def on_broken_pipe(self) -> None:
        """Raise `BrokenPipeError`: rich would exit with another exit code."""
        raise BrokenPipeError
