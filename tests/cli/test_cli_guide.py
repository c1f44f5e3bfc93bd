"""`crawlcw guide`: the list of pages, a page, and a page that does not exist."""

import json
import os
import sys

import pytest

from crawlcw.guide import pages
from tests.support import terminals
from tests.support.commands import invoke


def on_a_terminal(*arguments: str, pager: str) -> str:
    """Return the command's output on a terminal of 80 columns, through *pager*."""
    environment = os.environ | {"PAGER": pager, "COLUMNS": "80", "TERM": "xterm"}
    command = [sys.executable, "-m", "crawlcw", *arguments]
    process, terminal = terminals.started(command, environment)
    written = b"".join(terminals.chunks(terminal))
    process.wait(timeout=60)
    return written.decode().replace("\r\n", "\n")


def test_a_program_gets_the_pages_as_objects():
    listed = [json.loads(line) for line in invoke("guide", "--json").stdout.splitlines()]
    one = json.loads(invoke("guide", "tutorial", "--json").stdout)

    known = pages.all_pages()
    assert listed == [{"name": each.name, "about": each.summary} for each in known]
    assert (one["name"], one["text"]) == ("tutorial", pages.page("tutorial").text)


def test_the_guide_lists_its_pages_with_a_line_each():
    lines = invoke("guide").stdout.splitlines()

    assert [line.split()[0] for line in lines] == list(pages.NAMES)
    assert all(line.endswith(".") and len(line) <= 100 for line in lines)


@pytest.mark.thorough
@pytest.mark.representative("SETTINGS")
@pytest.mark.parametrize("name", ["settings", "SETTINGS", "settings.md"])
def test_a_page_is_written_as_it_is_where_stdout_is_no_terminal(name):
    shown = invoke("guide", name)

    assert shown.returncode == 0
    assert shown.stdout == pages.page("settings").text


def test_a_page_is_laid_out_and_goes_through_the_pager_on_a_terminal():
    shown = on_a_terminal("guide", "settings", pager="sed s/^/paged:/")

    assert all(line.startswith("paged:") for line in shown.splitlines())
    assert "| setting |" not in shown
    assert max(len(line.removeprefix("paged:")) for line in shown.splitlines()) <= 80


@pytest.mark.thorough
@pytest.mark.representative("polite")
@pytest.mark.parametrize(
    ("wrong", "advice"),
    [
        ("polite", "the nearest is 'politeness', and `crawlcw guide` lists"),
        ("setings", "the nearest is 'settings', and `crawlcw guide` lists"),
        ("nosuch", "`crawlcw guide` lists"),
    ],
)
def test_an_unknown_page_is_one_sentence_that_names_the_nearest_one(wrong, advice):
    missed = invoke("guide", wrong)

    assert (missed.returncode, missed.stdout) == (2, "")
    assert len(missed.stderr.splitlines()) == 1
    assert f"no page '{wrong}': {advice} all pages" in missed.stderr


def test_a_link_to_a_page_is_shown_as_the_command_that_shows_it():
    shown = " ".join(on_a_terminal("guide", "spiders", pager="cat").split())

    assert "see settings (crawlcw guide settings)" in shown
    assert ".md" not in shown
