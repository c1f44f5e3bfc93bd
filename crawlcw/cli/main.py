"""The `crawlcw` command: which commands there are, and what the process ends with.

A command raises; here is the one place where that becomes a line on stderr and
an exit code.
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
from crawlcw.cli.completing import offer
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
from crawlcw.cli.lingering import end_process
from crawlcw.errors import (
    CrawlcwError,
    LedgerConfigurationError,
    LedgerGoneError,
    LedgerUnavailableError,
    UsageError,
)
from crawlcw.model.sanitize import printable

logger = logging.getLogger(__name__)

#: So many containers more than were freed, and Python looks for cycles among them. A crawl makes
#: next to none, not even of pages that fail, and to look as often as Python does by itself
#: takes a tenth of its CPU.
GARBAGE_AFTER = (10_000, 20, 20)

#: In the order in which one needs them, with what `--help` says of each: to load them all for
#: that would take as long as many a command.
_COMMANDS = {
    "demo": "Crawl a bundled bookshop, offline.",
    "new": "Write the file of a spider to begin with.",
    "check": "Show what is wrong with a spider, without a request.",
    "fetch": "Print the body of a URL, fetched as a crawl would.",
    "parse": "Fetch a URL, and show what a callback makes of it.",
    "shell": "Open Python with a page as `response`, to try selectors on it.",
    "run": "Crawl a spider's site, or go on with a crawl that was ended.",
    "add": "Add pages to a crawl, or tasks to a use case.",
    "work": "Work on the tasks of a use case.",
    "serve": "Serve the tasks of a use case to workers, over HTTP.",
    "pause": "Let the crawls of a spider begin with nothing more.",
    "resume": "Let crawls go on that were paused.",
    "stop": "End the crawls of a spider, on all machines.",
    "set": "Let running crawls follow other settings.",
    "dashboard": "Show a web page of crawls: see them run, search them, steer them.",
    "stats": "Show how many tasks have which status and why, and who works on them.",
    "hosts": "Show why each host is not being crawled just now.",
    "state": "Show what a spider keeps between its pages.",
    "export": "Write the items: JSON Lines, JSON, CSV or Parquet.",
    "tasks": "List tasks, the last changed first.",
    "show": "Show the story of one URL, or why it is not there.",
    "retry-failed": "Make failed tasks todo again.",
    "recrawl": "Let finished pages be visited again.",
    "ignore": "Withdraw tasks that wait.",
    "purge": "Delete tasks, with all that belongs to them.",
    "reset": "Let tasks begin anew, whatever became of them.",
    "policy": "Show or change the settings of a use case.",
    "copy": "Copy all of a spider or a use case to another ledger.",
    "drop": "Delete a spider or a use case from a ledger.",
    "doctor": "Check that a ledger holds what it promises.",
    "list": "List the spiders in ./spiders.",
    "settings": "List every setting.",
    "guide": "Show the manual.",
    "completion": "Print what lets a shell complete all this.",
}
_LONGEST_LINE = 1000
#: What the system says of a stream that takes no more. A file has a name, and stdout has none.
_OF_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
#: By which a shell asks for completions; click's own name for it.
COMPLETE_VARIABLE = "_CRAWLCW_COMPLETE"

_EPILOG = """\
\b
Exit codes:
    0  drained; also stopped by --max-pages or by one signal, all else released
    1  doctor found a violation, and it is not mended
    2  usage: no such spider, a bad setting, nothing recorded, a file or an output that cannot
       be written, a path out of reach
    3  run: drained, but nothing was finished, hosts were given up, more pages failed than
       max_failures allows, or a callback is broken
   69  the ledger cannot be reached, its disk is full, or its file was removed or replaced
   70  an error of crawlcw itself: the pages that met it stay to be done, the log names the place
   75  stop --wait: a worker is still at work after --timeout
   78  the ledger will not do as configured: access, a read-only file, schema, server too old
  124  a callback has kept the event loop for longer than callback_timeout
  130  interrupted twice (or once, in a command that is no crawl)
  141  the reader of the output is gone (a closed pipe)
"""


class _ReaderGoneError(Exception):
    """The reader of the output is gone."""


class _Commands(click.Group):
    """The commands, each loaded when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        return list(_COMMANDS)

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002  # click's signature
        formatter: click.HelpFormatter,
    ) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        try:
            return super().make_context(*args, **kwargs)
        except BrokenPipeError:
            # The help itself is printed here.
            raise _ReaderGoneError from None

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # click itself would exit with 1.
            raise _ReaderGoneError from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        near = [] if name in _COMMANDS else difflib.get_close_matches(name, _COMMANDS, n=1)
        if near and not ctx.resilient_parsing:
            raise click.UsageError(f"there is no command {name!r}: did you mean {near[0]}?", ctx)
        return super().resolve_command(ctx, args)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002  # click's signature
        cmd_name: str,
    ) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        name = {"list": "listing"}.get(cmd_name, cmd_name.replace("-", "_"))
        command = importlib.import_module(f"crawlcw.cli.commands.{name}").command
        gc.enable()
        assert isinstance(command, click.Command)
        command.epilog = epilog(cmd_name)
        offer(command)
        return command


@click.group(
    cls=_Commands,
    # click would raise its help as an error, and an error is one line here.
    invoke_without_command=True,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(crawlcw.__version__, prog_name="crawlcw", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Crawl web sites into a durable ledger.

    No page is lost, and each result is recorded once. `crawlcw demo` shows it, offline;
    `crawlcw guide` is the manual.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main() -> NoReturn:
    """Run the command that the process was started with, and exit."""
    _fill_standard_descriptors()
    gc.set_threshold(*GARBAGE_AFTER)
    # Until the command is loaded: modules leave no garbage, and Python would go through them all.
    gc.disable()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    code = exit_code(
        lambda: cli.main(prog_name="crawlcw", complete_var=COMPLETE_VARIABLE, standalone_mode=False)
    )
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            # What is still buffered has no place either, and Python would end with 120 for it
            # when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    end_process(code)


def _fill_standard_descriptors() -> None:
    """Open /dev/null as each standard descriptor that is closed.

    The next file or socket would get its number: what is printed would go there, and uvloop
    aborts the process that closes one of them.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, number)
            if nothing == number:
                os.set_inheritable(number, True)
            else:
                os.close(nothing)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def exit_code(command: Callable[[], object]) -> int:
    """Run *command* and return what to exit with, what went wrong said in one line on stderr."""
    try:
        result = command()
        sys.stdout.flush()
    except (KeyboardInterrupt, click.Abort):
        return _failed("interrupted", INTERRUPTED)
    except (BrokenPipeError, _ReaderGoneError):
        return BROKEN_PIPE
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "crawlcw"
        said = error.format_message()
        ended = said if said.endswith((".", "?")) else f"{said}."
        return _failed(f"{ended} See `{path} --help`.", USAGE)
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
        logger.debug("an error of crawlcw itself", exc_info=True, extra={"event": "internal"})
        hint = "" if logger.isEnabledFor(logging.DEBUG) else " (--log-level debug shows where)"
        said = f"an error of crawlcw itself: {type(error).__name__}: {error}"
        return _failed(said + hint, INTERNAL)
    return result if isinstance(result, int) else OK


def _of_the_system(error: Exception) -> str | None:
    """Return what to say of an error that is the system's; None for one of crawlcw itself."""
    if not isinstance(error, OSError):
        return None
    try:
        Path.cwd()
    except FileNotFoundError:
        return "the working directory is gone: change to one that is there, and try again"
    if error.filename is None and error.errno in _OF_OUTPUT:
        return f"the output cannot be written: {error.strerror}"
    if error.filename is not None and isinstance(error, PermissionError):
        return f"this user may not reach {error.filename}: {error.strerror}"
    return None


def _failed(sentence: str, code: int) -> int:
    line = printable(" ".join(sentence.split()), limit=_LONGEST_LINE)
    with suppress(OSError):  # no place for it either
        click.echo(f"crawlcw: {line}", err=True)
    return code
