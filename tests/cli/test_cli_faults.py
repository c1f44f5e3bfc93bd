"""Faults of an ended crawl, and its exit code."""

from typing import Any

import click
import pytest

from crawlcw.api.settings import Settings
from crawlcw.cli.exit_codes import INTERRUPTED, NOT_WELL, OK, USAGE, worst
from crawlcw.cli.ledger_option import ledger_option
from crawlcw.cli.showing import Output, faults_of, last_line, show_report
from crawlcw.engine.stats import MAX_NAMED, Stats
from crawlcw.ledger.protocol import Counts
from crawlcw.model.counters import FINISH_RULES, FinishReason, Report
from crawlcw.model.task import Status

DEAD = {"https://a.example": "connect"}
UNFINISHED = Counts(by_status={Status.IGNORED: 3})


def report(**fields: Any) -> Report:
    """Return the report of a crawl without faults, changed by *fields*."""
    well: dict[str, Any] = {
        "spider": "books",
        "finish_reason": "drained",
        "elapsed": 1.0,
        "pages": 90,
        "items": 0,
        "released": 0,
        "counts": None,
        "failures": {},
        "host_failures": {},
        "links_dropped": {},
    }
    return Report(**(well | fields))


def said(max_failures: int | float | None = None, **fields: Any) -> str:
    ended = report(**fields)
    return last_line(ended, faults_of(ended, max_failures=max_failures))


@pytest.mark.parametrize(
    ("fields", "max_failures", "faults"),
    [
        ({}, None, 0),
        ({"counts": None, "pages": 0}, None, 0),
        ({"counts": Counts(), "pages": 0}, None, 1),
        ({"hosts_given_up": DEAD}, None, 1),
        ({"given_up": 10}, None, 0),
        ({"given_up": 10}, 10, 0),
        ({"given_up": 11}, 10, 1),
        ({"given_up": 1}, 0, 1),
        ({"given_up": 0}, 0, 0),
        # 10 of 100 pages.
        ({"given_up": 10}, 0.1, 0),
        ({"given_up": 10}, 0.099, 1),
        ({"given_up": 10}, 1.0, 0),
        ({"pages": 0, "given_up": 0}, 0.0, 0),
        ({"counts": Counts(), "pages": 0, "given_up": 3, "hosts_given_up": DEAD}, 2, 3),
        # The result of a stopped crawl is still open.
        (
            {"finish_reason": "stopped", "counts": Counts(), "pages": 0, "hosts_given_up": DEAD},
            0,
            0,
        ),
        ({"finish_reason": "files-unwritable", "detail": "cannot save to films"}, None, 1),
        ({"finish_reason": "files-unwritable"}, None, 1),
        ({"finish_reason": "max-pages", "hosts_given_up": DEAD}, 0, 0),
        ({"finish_reason": "stopped-at-once", "given_up": 5}, 0, 0),
        ({"finish_reason": "failed", "given_up": 5}, 0, 0),
        ({"finish_reason": "stopped-by-spider"}, 0, 0),
        ({"finish_reason": "stopped-by-spider", "hosts_given_up": DEAD}, None, 1),
        ({"finish_reason": "callback-broken", "detail": "parse"}, None, 1),
    ],
)
def test_a_crawl_is_not_well_where_something_is_wrong(fields, max_failures, faults):
    assert len(faults_of(report(**fields), max_failures=max_failures)) == faults


def test_the_exit_code_follows(capsys: pytest.CaptureFixture[str]):
    settings = Settings(max_failures="5%")

    assert show_report(report(), Output(), settings=settings) == OK
    assert show_report(report(given_up=5), Output(), settings=settings) == NOT_WELL
    assert (
        "Drained, but 5 of 95 pages were given up, more than max_failures=5%: "
        in (capsys.readouterr().out.splitlines()[-1])
    )


def test_the_last_word_names_each_fault():
    assert said() == "Drained: nothing is left to do."
    assert said(2, counts=UNFINISHED, pages=0, given_up=3, hosts_given_up=DEAD) == (
        "Drained, but nothing was finished, 1 host was given up (https://a.example: connect) and "
        "3 of 3 pages were given up, more than max_failures=2: `crawlcw tasks books --given-up` "
        "lists them, `crawlcw retry-failed books` brings them back."
    )
    assert said(failed_before=1) == (
        "Drained: nothing is left to do. 1 page was given up in this run or before: "
        "`crawlcw tasks books --given-up` lists them, "
        "`crawlcw retry-failed books` brings them back."
    )
    assert said(pages=0, counts=Counts()) == (
        "Drained: the ledger has no page of books yet; `crawlcw add books URL` gives it some."
    )
    assert said(finish_reason="callback-broken", detail="parse raised KeyError", released=7) == (
        "Stopped: 7 tasks were released, and parse raised KeyError. "
        "The same command resumes the crawl."
    )
    assert said(finish_reason="stopped-by-spider", detail="enough") == (
        "Stopped by the spider (enough): 0 tasks were released. The same command resumes the crawl."
    )


@pytest.mark.parametrize(
    ("ledger", "shown"),
    [
        ("mongodb://h/db?replicaSet=rs0", "'mongodb://h/db?replicaSet=rs0'"),
        ("mongodb://me:secret@h/db", "URL"),
        ("postgresql://me@h:5432/db", "postgresql://me@h:5432/db"),
        ("postgresql://h/db?user=me&password=secret", "URL"),
    ],
)
def test_a_printed_command_has_the_ledger_and_no_password(ledger: str, shown: str):
    assert ended_with(ledger) == (
        "Drained: nothing is left to do. 2 pages were given up in this run or before: "
        f"`crawlcw tasks books --given-up --ledger {shown}` lists them, "
        f"`crawlcw retry-failed books --ledger {shown}` brings them back."
    )


def test_no_command_is_printed_for_a_ledger_that_is_gone():
    assert ended_with("sqlite:///:memory:") == (
        "Drained: nothing is left to do. 2 pages were given up in this run or before."
    )


def ended_with(ledger: str) -> str:
    """Return the last word of a crawl by a command with that ledger."""

    @click.command
    @ledger_option
    def command(*, ledger_url: str) -> str:
        return said(failed_before=2)

    return str(command.main(["--ledger", ledger], standalone_mode=False))


def test_each_finish_reason_has_a_rule_of_its_own():
    assert set(FINISH_RULES) == set(FinishReason)


def test_of_many_hosts_some_are_named_and_the_rest_is_counted():
    stats = Stats()
    for number in range(MAX_NAMED + 20):
        stats.host_given_up(f"https://h{number}.example", "connect")
    stats.host_given_up("https://h0.example", "tls")

    assert len(stats.hosts_given_up) == MAX_NAMED
    assert stats.more_hosts_given_up == 20
    shown = said(hosts_given_up=stats.hosts_given_up, more_hosts_given_up=stats.more_hosts_given_up)
    assert (
        "120 hosts were given up (https://h0.example: tls; https://h1.example: connect; " in shown
    )
    assert "; 117 more)" in shown


def test_the_exit_code_of_faults_is_worse_than_an_interrupt_and_better_than_a_usage_error():
    assert worst([OK, NOT_WELL, INTERRUPTED]) == NOT_WELL
    assert worst([NOT_WELL, USAGE]) == USAGE
