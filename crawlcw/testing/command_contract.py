"""Test a custom command against its contract.

class TestMine(CommandContract):
    def command(self):
        return mine

Any test runner can run the tests.
"""

import click
from click.testing import CliRunner, Result

_USAGE_ERROR = 2


class CommandContract:
    """Base class of the tests of a command; derive from it and define `command`."""

    def command(self) -> click.Command:
        """Return the command, which the entry point names."""
        raise NotImplementedError("return the command")

    def test_it_is_a_command(self) -> None:
        """The entry point names a `click` command, not a function without the decorator."""
        assert isinstance(self.command(), click.Command), "decorate it with `@click.command()`"

    def test_its_help_says_what_it_does(self) -> None:
        """`--help` exits with 0, and its first sentence fits into one line."""
        result = self._invoke("--help")
        assert result.exit_code == 0, result.output
        assert self.command().get_short_help_str(), "write a docstring"

    def test_a_wrong_option_is_a_usage_error(self) -> None:
        """After an unknown option the command exits with 2, and prints no traceback."""
        result = self._invoke("--no-such-option")
        assert result.exit_code == _USAGE_ERROR, result.output
        assert "--no-such-option" in result.output

    def test_it_can_be_called_twice(self) -> None:
        """A call keeps no state in the process."""
        assert self._invoke("--help").output == self._invoke("--help").output

    def _invoke(self, *arguments: str) -> Result:
        return CliRunner().invoke(self.command(), arguments)
