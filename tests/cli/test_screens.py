"""Output of commands on a terminal and in a pipe: colours, widths, numbers."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from crawlcw.errors import Reason
from crawlcw.ledger_opening import open_ledger
from tests.cli.test_cli import environment
from tests.support import terminals
from tests.support.commands import invoke
from tests.support.ledgers import claimed, failure, make_task, success

LONG = f"https://books.test/{'long-' * 8}title/"
EVIL = "https://books.test/\x1b[31mred"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
GREEN, MAGENTA, CYAN = "\x1b[32m", "\x1b[35m", "\x1b[36m"


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    """The URL of a ledger: a page is finished, one is ignored, one with an odd URL waits."""

    async def fill(url: str) -> str:
        ledger = await open_ledger(url, "books")
        tasks = [make_task(LONG, depth=10), make_task("https://books.test/b", depth=2)]
        await ledger.tasks.add(tasks)
        done, refused = await claimed(ledger, limit=2)
        await ledger.outcomes.commit(
            [success(ledger, done), failure(ledger, refused, Reason.REFUSED_ROBOTS)]
        )
        await ledger.tasks.add([make_task(EVIL, depth=2)])
        await ledger.close()
        return url

    return asyncio.run(fill(f"sqlite:///{tmp_path}/ledger.db"))


def on_terminal(*arguments: str, columns: int = 200, **variables: str) -> str:
    """Return the output of a command on a terminal of this width."""
    # pytest-xdist sets COLUMNS, which a command prefers to the terminal's width.
    inherited = {name: value for name, value in environment().items() if name != "COLUMNS"}
    process, terminal = terminals.started(
        [sys.executable, "-m", "crawlcw", *arguments],
        inherited | {"TERM": "xterm-256color"} | variables,
        size=(40, columns),
    )
    text = b"".join(terminals.chunks(terminal)).decode().replace("\r\n", "\n")
    process.wait()
    return text


def test_statuses_have_colours_on_a_terminal_only_and_the_words_say_the_same(ledger: str):
    for command in (("tasks", "books"), ("stats", "books")):
        arguments = (*command, "--ledger", ledger)
        shown = on_terminal(*arguments)
        plain = [
            subprocess.run(
                [sys.executable, "-m", "crawlcw", *arguments],
                check=True,
                capture_output=True,
                text=True,
                env=environment(),
            ).stdout,
            on_terminal(*arguments, NO_COLOR="1"),
            on_terminal(*arguments, TERM="dumb"),
        ]

        for status in (f"{GREEN}finished", f"{MAGENTA}ignored", f"{CYAN}todo"):
            assert status in shown
        assert {COLOUR.sub("", text) for text in (shown, *plain)} == {plain[0]}
        assert "\x1b" not in "".join(plain)
        assert "\x1b[31m" not in shown


def test_tasks_are_in_columns_and_a_narrow_terminal_has_a_line_for_each_key(ledger: str):
    wide = COLOUR.sub("", on_terminal("tasks", "books", "--ledger", ledger)).splitlines()
    narrow = on_terminal("tasks", "books", "--ledger", ledger, columns=80).splitlines()

    assert len(wide) == 3
    assert len({line.index("parse()") for line in wide}) == 1
    assert {line.index("https://books.test/") for line in wide} == {34}
    assert all(line.count("books.test") == 1 for line in wide)
    assert len(narrow) == 6
    assert f"  {LONG}" in narrow


def test_depths_are_in_numeric_order(ledger: str):
    stats = ("stats", "books", "--ledger", ledger, "--by", "depth")

    assert re.findall(r"^ (\d+) ", invoke(*stats).stdout, re.MULTILINE) == ["2", "10"]
    lines = invoke(*stats, "--json").stdout.splitlines()
    assert [json.loads(line)["depth"] for line in lines] == [2, 10]


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ("--concurrency", "write a whole number of at least 1, not 'zwei'"),
        ("--metrics-port", "write a whole number 0 to 65535, not 'zwei'"),
    ],
)
def test_a_number_that_is_none_is_answered_with_what_to_write(option: str, advice: str):
    run = invoke("run", "books", option, "zwei")

    assert (run.returncode, run.stdout) == (2, "")
    assert (
        run.stderr
        == f"crawlcw: Invalid value for '{option}': {advice}. See `crawlcw run --help`.\n"
    )


def test_the_help_of_every_command_has_each_example_in_one_line():
    commands = re.findall(r"^  ([a-z][a-z-]+)  ", invoke("--help").stdout, re.MULTILINE)

    assert len(commands) > 30
    for name in commands:
        text = invoke(name, "--help").stdout
        assert not re.search(r"\x08|\\b", text), name
        examples = text.partition("  Examples:\n")[2].splitlines()
        assert examples
        assert all("crawlcw " in example for example in examples), name
