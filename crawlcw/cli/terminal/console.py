"""The terminal, or what stands in for it, as the commands write to it by rich.

Colours come only on a terminal, and never with NO_COLOR: that is rich's own doing.
"""

from rich.console import Console


class PlainConsole(Console):
    """Data is shown as it is: nothing in it is markup, an emoji or highlighted."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False)

    def on_broken_pipe(self) -> None:
        """Raise `BrokenPipeError`: rich by itself would exit, with a code of its own."""
        raise BrokenPipeError
