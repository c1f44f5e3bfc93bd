"""Terminal behaviour of every command: examples, completion, colours, and closed pipes."""

import os
import pty
import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import click
import pytest
from click.shell_completion import get_completion_class

from crawlcw import Spider, run_spider
from crawlcw.cli.examples import EXAMPLES
from crawlcw.cli.main import COMPLETE_VARIABLE, cli
from crawlcw.cli.selection import any_reason
from crawlcw.testing import ReplayDownloader
from tests.support.commands import invoke
from tests.support.programs import environment, run_to_end

COMMANDS = sorted(cli.list_commands(click.Context(cli)))
URL = "http://a.example/"
SPIDER = f"""\
from crawlcw import Spider

class Books(Spider):
    name = "books"
    start_urls = ["{URL}"]

    def parse(self, response):
        raise SystemExit("no completion may run this")
"""


class Books(Spider):
    name = "books"
    start_urls = [URL]

    def parse(self, response):
        yield {"url": response.url}


@pytest.fixture
async def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("spiders").mkdir()
    Path("spiders/books.py").write_text(SPIDER)
    await run_spider(Books(), downloader=ReplayDownloader({URL: "<h1>books</h1>"}))
    return tmp_path


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_command_ends_with_examples_that_can_be_given(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("orders.txt").touch()
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    told = invoke(name, "--help").stdout

    for example in EXAMPLES[name]:
        assert f"    {example}\n" in told
        (given,) = re.findall(r"crawlcw ([^|>)]+)", example)
        words = shlex.split(given)
        assert words[0] == name
        command.make_context(name, words[1:]).close()
        for option, value in pairwise(words):
            if option == "--reason":
                assert any_reason(value)


def completed(*words: str) -> list[str]:
    """Return the completions of the last of *words*."""
    kind = get_completion_class("bash")
    assert kind is not None
    completing = kind(cli, {}, "crawlcw", COMPLETE_VARIABLE)
    return [each.value for each in completing.get_completions(list(words[:-1]), words[-1])]


def test_a_shell_completes_commands_options_spiders_and_settings(folder: Path):
    assert completed("sta") == ["stats", "state"]
    assert "--metrics-port" in completed("run", "--met")
    assert completed("stats", "b") == ["books"]
    assert completed("run", "-s", "webh") == ["webhook="]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_what_a_shell_runs_names_the_command(shell: str):
    done = invoke("completion", shell)

    assert done.returncode == 0, done.stderr
    assert f"_CRAWLCW_COMPLETE={shell}_complete" in done.stdout


@pytest.mark.thorough
def test_bash_itself_takes_it_and_completes(folder: Path):
    Path("crawlcw").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m crawlcw "$@"\n')
    Path("crawlcw").chmod(0o755)
    # As after the Tab key: the function sets COMPREPLY to the completions.
    script = invoke("completion", "bash").stdout
    asked = "COMP_WORDS=(crawlcw stats bo) COMP_CWORD=2\n_crawlcw_completion ./crawlcw\n"

    done = run_to_end(["bash", "-c", f'{script}\n{asked}echo "${{COMPREPLY[@]}}"'], within=60)

    assert done.stdout.split() == ["books"], done.stderr


PRINTING = (
    "--help",
    "run --help",
    "stats books",
    "stats books --json",
    "hosts books",
    "tasks books",
    "tasks books --json",
    f"show books {URL}",
    "export books -o -",
    "retry-failed books --dry-run",
    "list",
    "settings",
    "guide",
    "guide tutorial",
    "doctor books",
    "doctor books --json",
    "completion bash",
    "check books",
    "run books --processes 0 --fresh --yes -s max_pages=1 -s obey_robots=false -s max_retry=1",
)


@pytest.mark.thorough
@pytest.mark.representative("stats books]")
@pytest.mark.parametrize("line", PRINTING)
def test_a_reader_that_is_gone_is_no_error_of_anybody(line: str, folder: Path):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "crawlcw", *line.split()],
            stdin=subprocess.DEVNULL, stdout=writing, stderr=subprocess.PIPE, text=True,
            env=environment(), timeout=60, check=False,
        )  # fmt: skip
    finally:
        os.close(writing)

    assert done.returncode == 141, done.stderr
    assert "BrokenPipe" not in done.stderr
    assert "Traceback" not in done.stderr


#: The foreground and background colours of ECMA-48, and those of xterm.
COLOURS = re.compile(rb"\x1b\[[0-9;]*(3[0-8]|4[0-8]|9[0-7]|10[0-7])[0-9;]*m")


def on_terminal(*arguments: str, **variables: str) -> bytes:
    """Return the output of Python on a terminal."""
    ours, theirs = pty.openpty()
    known = environment() | {"TERM": "xterm-256color"} | variables
    known = {name: value for name, value in known.items() if value}
    done = subprocess.run(
        [sys.executable, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=known,
        timeout=60, check=True,
    )  # fmt: skip
    os.close(theirs)
    assert done.returncode == 0
    try:
        return os.read(ours, 65536)
    finally:
        os.close(ours)


@pytest.mark.thorough
def test_colours_are_for_terminals_whose_user_wants_them(folder: Path):
    # The environment of the tests may set these variables.
    none = {"NO_COLOR": "", "FORCE_COLOR": ""}

    stats = on_terminal("-m", "crawlcw", "stats", "books", **none | {"NO_COLOR": "1"})
    assert b"finished" in stats
    assert not COLOURS.search(stats)
