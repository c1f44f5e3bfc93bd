from datetime import UTC, datetime

import pytest

from crawlcw.cli.processes.channel import Account, Lines
from crawlcw.cli.processes.supervisor import shares
from crawlcw.cli.processes.totals import Totals, finish_reason
from crawlcw.engine.stats import EarlyEnd, FinishReason, Stats
from crawlcw.ledger.protocol import Counts
from crawlcw.model.standstill import Standstill
from crawlcw.model.task import Status


def test_an_account_arrives_as_it_was_sent():
    stats = Stats(pages=3, items=4, leases_lost=1)
    stats.failures["timeout-read"] += 2
    stats.dropped.note("refused-scope", "http://b.example/")
    stats.hosts_given_up["https://a.example"] = "connect"
    resting = Standstill(hosts=2, until=datetime(2026, 5, 4, 20, 40, tzinfo=UTC), why="429")
    account = Account.of(stats, standstill=resting, released=6, finish_reason="stopped")

    assert Account.read(account.line().rstrip()) == account
    assert (account.failures, account.links_dropped) == ({"timeout-read": 2}, {"refused-scope": 1})
    assert account.link_examples == {"refused-scope": ["http://b.example/"]}


@pytest.mark.parametrize("reason", [None, *FinishReason])
def test_an_account_keeps_its_finish_reason_on_the_way(reason: FinishReason | None):
    end = None if reason is None else EarlyEnd(reason=reason, detail="enough")

    sent = Account.of(Stats(), finish_reason=reason, ending=end)
    read = Account.read(sent.line())

    assert read == sent
    assert (read.finish_reason, read.ending) == (reason, reason)
    assert {type(read.finish_reason), type(read.ending)} == {type(reason)}


def test_half_an_account_is_none():
    with pytest.raises(ValueError):
        Account.read(Account(pages=3).line()[:-5])


def test_lines_are_given_on_when_they_are_whole_and_the_rest_at_the_end():
    taken = []
    lines = Lines(taken.append)

    lines.data_received(b"one\ntw")
    lines.data_received(b"o\n\nthr")
    before = taken[:]
    lines.connection_lost(None)

    assert before == [b"one", b"two", b""]
    assert taken[3:] == [b"thr"]
    assert lines.ended.is_set()


def test_a_line_without_end_is_given_on_in_pieces():
    taken = []
    lines = Lines(taken.append)

    for _ in range(40):
        lines.data_received(b"x" * (1 << 16))

    assert sum(map(len, taken)) > 1 << 20


def test_the_report_sums_up_what_all_workers_did():
    accounts = [
        Account(
            pages=1,
            items=2,
            failures={"dns": 1},
            host_failures={"tls": 1},
            links_dropped={"trap": 3},
            link_examples={"trap": ["a", "b"]},
        ),
        Account(
            pages=10,
            items=20,
            failures={"tls": 2, "dns": 4},
            link_examples={"trap": ["b", "c", "d"]},
            released=5,
            leases_lost=7,
        ),
    ]
    counts = Counts(by_status={Status.TODO: 5})

    report = Totals(lambda: accounts).report("pages", finish_reason="stopped", counts=counts)

    assert (report.spider, report.finish_reason, report.counts) == ("pages", "stopped", counts)
    assert (report.pages, report.items, report.released, report.leases_lost) == (11, 22, 5, 7)
    assert list(report.failures.items()) == [("dns", 5), ("tls", 2)]
    assert report.host_failures == {"tls": 1}
    assert report.links_dropped == {"trap": 3}
    assert report.link_examples == {"trap": ["a", "b", "c"]}


@pytest.mark.parametrize(
    ("reasons", "is_empty", "reason"),
    [
        (["drained", "drained"], True, "drained"),
        # Somebody else has added to it meanwhile.
        (["drained", "drained"], False, "drained"),
        (["drained", "max-pages"], True, "drained"),
        (["drained", "max-pages"], False, "max-pages"),
        # Nobody knows whether all seeds were added.
        (["max-pages", "max-pages"], True, "max-pages"),
        (["drained", None], True, "drained"),
        (["drained", None], False, "failed"),
        (["max-pages", None], False, "max-pages"),
        ([None, None], True, "failed"),
        (["drained", "stopped"], True, "stopped"),
        (["stopped", None, "max-pages"], False, "stopped"),
        (["stopped", "stopped-at-once"], False, "stopped-at-once"),
    ],
)
def test_why_the_crawl_ended_follows_from_why_its_workers_did(reasons, is_empty, reason):
    assert finish_reason(reasons, is_empty=is_empty) == reason


@pytest.mark.parametrize(
    ("max_pages", "processes", "each"),
    [
        (None, 3, [None, None, None]),
        (9, 3, [3, 3, 3]),
        (11, 3, [3, 4, 4]),
        (3, 3, [1, 1, 1]),
        (2, 5, [1, 1]),
        (1, 5, [1]),
    ],
)
def test_the_shares_of_the_workers_add_up_to_the_limit(max_pages, processes, each):
    assert shares(max_pages, processes) == each
