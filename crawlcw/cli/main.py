"""Define the `crawlcw` command with its subcommands, and map exceptions to exit codes.

The commands raise exceptions, and only this module turns an exception into a line on stderr and an
exit code.
"""

import difflib
import errno
import gc
import importlib
import io
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import click

import crawlcw
from crawlcw.cli import starting
from crawlcw.cli.completing import offer
from crawlcw.cli.deadline import deadline, end_process
from crawlcw.cli.examples import epilog
from crawlcw.cli.exit_codes import (
    BROKEN_PIPE,
    CONFIGURATION,
    INTERNAL,
    INTERRUPTED,
    OK,
    UNAVAILABLE,
    USAGE,
)
from crawlcw.errors import (
    CrawlcwError,
    LedgerConfigurationError,
    LedgerGoneError,
    LedgerUnavailableError,
    UsageError,
)
from crawlcw.model.sanitize import describe_error, printable

logger = logging.getLogger(__name__)

#: Thresholds of the cyclic garbage collector. A crawl creates almost no reference cycles, and
#: Python's default thresholds cost a tenth of the crawl's CPU time.
GARBAGE_AFTER = (10_000, 20, 20)
#: Size in bytes of a block that is allocated and freed once. After the free, glibc keeps up to
#: twice this size as free memory for the next page (mallopt(3)). By default glibc would keep only
#: 128 KiB, and each page would need new memory from the system.
_FREED_ONCE = 8 << 20

#: The line of each command in `--help`; to load all modules for these lines would be slow.
COMMANDS = {
    "demo": "Crawl a bundled bookshop, offline.",
    "new": "Write a first spider file.",
    "check": "Check a spider for mistakes, without a request.",
    "fetch": "Fetch a URL as a crawl does, and print the body.",
    "parse": "Fetch a URL, and show the items and requests of a callback.",
    "shell": "Open a Python shell with a page, to try selectors.",
    "crawl": "Crawl a site without a spider file, to Markdown or items.",
    "run": "Crawl a spider's site, or resume an earlier crawl.",
    "add": "Add pages to a crawl, or tasks to a use case.",
    "work": "Work on the tasks of a use case.",
    "serve": "Serve the tasks of a use case to workers, over HTTP.",
    "pause": "Pause the running crawls of a spider.",
    "resume": "Resume paused crawls.",
    "stop": "End the crawls of a spider, on all machines.",
    "set": "Change settings of running crawls.",
    "dashboard": "Serve a web page to watch, search and control crawls.",
    "stats": "Count tasks by status and reason; show the workers.",
    "hosts": "Show the state of each host, and why it waits.",
    "state": "Show the `self.state` of a spider.",
    "export": "Write the items: JSON Lines, JSON, CSV or Parquet.",
    "tasks": "List tasks, the last changed first.",
    "show": "Show the history of one URL, or why it is missing.",
    "retry-failed": "Set failed tasks to todo again.",
    "recrawl": "Set finished pages to todo again.",
    "ignore": "Withdraw waiting tasks.",
    "purge": "Delete tasks and their data.",
    "reset": "Start tasks again, whatever their status.",
    "policy": "Show or change the settings of a use case.",
    "copy": "Copy a spider or a use case to another ledger.",
    "drop": "Delete a spider or a use case from a ledger.",
    "doctor": "Check the invariants of a ledger.",
    "list": "List the spiders in ./spiders.",
    "settings": "List every setting.",
    "plugins": "List the extensions of installed packages.",
    "guide": "Show the manual.",
    "completion": "Print the completion script for a shell.",
}
#: Map from a command to its module in `cli.commands`, if the module has another name.
_MODULES = {
    **dict.fromkeys(("new", "check", "list"), "spider_files"),
    **dict.fromkeys(("serve", "dashboard"), "serving"),
    **dict.fromkeys(("pause", "resume", "stop", "set"), "steering"),
    **dict.fromkeys(("tasks", "show"), "tasks"),
    **dict.fromkeys(("retry-failed", "recrawl", "ignore", "purge", "reset"), "changing"),
    **dict.fromkeys(("settings", "guide", "completion"), "manual"),
}
_LONGEST_LINE = 1000
#: Error numbers which mean that stdout cannot be written, for example on a full disk.
_OUTPUT_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
#: Environment variable that a shell sets to get completions from click.
COMPLETE_VARIABLE = "_CRAWLCW_COMPLETE"

_EPILOG = """\
\b
Exit codes:
    0  drained, or stopped by --max-pages, --max-items or one signal
    1  doctor found a violation and did not repair it
    2  usage: no such spider, a bad setting, no recorded tasks, an output
       that cannot be written, a path without access
    3  run: the crawl has ended with a fault, such as no finished page
   69  the ledger is unavailable, its disk is full, or its file was removed
       or replaced
   70  a bug in crawlcw: the log has the place; its pages stay to do
   75  stop --wait: a worker is still at work after --timeout
   78  the ledger is unusable as configured: access, a read-only file,
       another format, a server too old
  124  a callback has blocked the event loop longer than callback_timeout
  130  interrupted twice, or once in a command other than a crawl
  141  the reader of the output has closed the pipe
"""


class _ReaderGoneError(Exception):
    """Raised if the program that reads the output has closed the pipe."""


class _Commands(click.Group):
    """The group of all commands, which loads a command's module on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        return [*COMMANDS, *_installed_commands()]

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002  # click's signature
        formatter: click.HelpFormatter,
    ) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))
        if commands := _installed_commands():
            with formatter.section("Commands of other packages"):
                formatter.write_dl(
                    [(name, f"From {package}.") for name, package in commands.items()]
                )

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        try:
            return super().make_context(*args, **kwargs)
        except BrokenPipeError:
            # click prints the help while it parses the arguments.
            raise _ReaderGoneError from None

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Do not let click handle the error, because click would exit with 1.
            raise _ReaderGoneError from None
        except (click.ClickException, click.exceptions.Exit, click.Abort, CrawlcwError):
            raise
        except Exception as error:
            name = ctx.invoked_subcommand
            if name is None or name in COMMANDS:
                raise
            package = _installed_commands()[name]
            logger.debug("a command failed", exc_info=True, extra={"event": "command_failed"})
            raise UsageError(
                f"the command {name!r} of {package} failed: {describe_error(error)}"
            ) from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in COMMANDS or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        known_names = self.list_commands(ctx)
        matches = difflib.get_close_matches(name, known_names, n=1)
        if matches and name not in known_names:
            raise click.UsageError(f"there is no command {name!r}: did you mean {matches[0]}?", ctx)
        return super().resolve_command(ctx, args)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002  # click's signature
        cmd_name: str,
    ) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return installed_command(cmd_name)
        module = importlib.import_module(f"crawlcw.cli.commands.{_MODULES.get(cmd_name, cmd_name)}")
        gc.enable()
        (command,) = (
            value
            for value in vars(module).values()
            if isinstance(value, click.Command) and value.name == cmd_name
        )
        command.epilog = epilog(cmd_name)
        offer(command)
        return command


def _installed_commands() -> dict[str, str]:
    """Return a map from each command that another package adds to the name of that package."""
    from crawlcw import extensions  # it takes 8 ms to load, and most commands do not need it

    commands: dict[str, str] = {}
    for entry_point in extensions.installed(extensions.COMMANDS):
        if entry_point.name not in COMMANDS:
            commands.setdefault(entry_point.name, extensions.package(entry_point))
    return commands


def installed_command(name: str) -> click.Command | None:
    """Return the command *name* that another package adds, or None if no package adds it.

    Raises `UsageError` if the command cannot be loaded or is not a `click.Command`.
    """
    from crawlcw import extensions

    command = extensions.load(extensions.COMMANDS, name)
    if command is None:
        return None
    if not isinstance(command, click.Command):
        raise UsageError(
            f"the command {name!r} of {_installed_commands()[name]} is not a `click.Command`"
        )
    offer(command)
    return command


@click.group(
    cls=_Commands,
    # Without `invoke_without_command`, click would raise an error for `crawlcw` alone.
    invoke_without_command=True,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(crawlcw.__version__, prog_name="crawlcw", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Crawl web sites into a durable ledger.

    No page is lost, and each result is recorded once. `crawlcw demo` crawls an example
    offline; `crawlcw guide` is the manual.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main() -> NoReturn:
    """Run the command that this process's arguments name, and exit."""
    _fill_standard_descriptors()
    deadline.is_enabled, deadline.report = True, exit_code
    gc.set_threshold(*GARBAGE_AFTER)
    bytes(_FREED_ONCE)
    # Stop the garbage collector until the command is loaded, because loading creates no garbage.
    gc.disable()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    arguments = sys.argv[1:]
    first_process = starting.first(arguments)
    code = exit_code(
        lambda: cli.main(
            _of_worker() if arguments[:1] == [starting.WORKER] else arguments,
            prog_name="crawlcw",
            complete_var=COMPLETE_VARIABLE,
            standalone_mode=False,
            obj=first_process,
            color=_is_coloured(),
        )
    )
    if first_process is not None:
        first_process.discard()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            # Discard the buffer, because if Python's flush at exit fails, the exit code is 120.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    end_process(code)


def _is_coloured() -> bool | None:
    """Return False for no colours, or None for colours only on a terminal."""
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return False if is_plain else None


def _of_worker() -> list[str]:
    """Load a worker's modules while the supervisor opens the ledger; return the arguments."""
    for module in ("running", "processes.worker"):
        importlib.import_module(f"crawlcw.cli.{module}")
    return starting.received_arguments()


def _fill_standard_descriptors() -> None:
    """Open /dev/null for each closed file descriptor of stdin, stdout and stderr.

    Without /dev/null, a new file or socket could get the number of stdout. Printed text would then
    go into the new file, and uvloop would abort the process when it closes that file.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            null_descriptor = os.open(os.devnull, os.O_RDWR)
            os.dup2(null_descriptor, number)
            if null_descriptor == number:
                os.set_inheritable(number, True)
            else:
                os.close(null_descriptor)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def exit_code(command: Callable[[], object]) -> int:
    """Run *command* and return the exit code; print an error as one line on stderr."""
    try:
        result = command()
        sys.stdout.flush()
    except (KeyboardInterrupt, click.Abort):
        return _failed("interrupted", INTERRUPTED)
    except (BrokenPipeError, _ReaderGoneError):
        return BROKEN_PIPE
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "crawlcw"
        message = error.format_message()
        full_message = message if message.endswith((".", "?")) else f"{message}."
        return _failed(f"{full_message} See `{path} --help`.", USAGE)
    except click.ClickException as error:
        return _failed(error.format_message(), USAGE)
    except UsageError as error:
        return _failed(str(error), USAGE)
    except LedgerGoneError as error:
        return _failed(str(error), UNAVAILABLE)
    except LedgerUnavailableError as error:
        return _failed(f"the ledger cannot be reached: {error}", UNAVAILABLE)
    except LedgerConfigurationError as error:
        return _failed(str(error), CONFIGURATION)
    except CrawlcwError as error:
        return _failed(str(error), INTERNAL)
    except Exception as error:
        if sentence := _of_the_system(error):
            return _failed(sentence, USAGE)
        logger.debug("a bug in crawlcw", exc_info=True, extra={"event": "internal"})
        hint = "" if logger.isEnabledFor(logging.DEBUG) else " (--log-level debug shows where)"
        message = f"a bug in crawlcw: {type(error).__name__}: {error}"
        return _failed(message + hint, INTERNAL)
    return result if isinstance(result, int) else OK


def _of_the_system(error: Exception) -> str | None:
    """Return the message if *error* is an error of the operating system, or None."""
    if not isinstance(error, OSError):
        return None
    try:
        Path.cwd()
    except FileNotFoundError:
        return "the working directory is gone: change to another one, and try again"
    if error.filename is None and error.errno in _OUTPUT_ERRNOS:
        return f"the output cannot be written: {error.strerror}"
    if error.filename is not None and isinstance(error, PermissionError):
        return f"this user has no access to {error.filename}: {error.strerror}"
    return None


def _failed(sentence: str, code: int) -> int:
    line = printable(" ".join(sentence.split()), limit=_LONGEST_LINE)
    with suppress(OSError):  # stderr itself may be full or closed
        click.echo(f"crawlcw: {line}", err=True)
    return code
