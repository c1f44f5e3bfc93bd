"""`crawlcw hosts`: reasons why a host is not being crawled, as a table and as JSON."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from crawlcw.cli.commands import hosts
from crawlcw.dashboard.observer import unfinished_of, why
from crawlcw.errors import Reason
from crawlcw.ledger.protocol import Counts, Ledger
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.model.hosts import Host, RobotsRecord
from crawlcw.model.task import Status, ids_of_host
from crawlcw.model.transitions import Succeeded
from tests.support.commands import invoke
from tests.support.ledgers import START, FakeClock, claimed, failure, make_task, settled

NOW = START
#: Printed as "2 h 0 min" for the next minute.
TWO_HOURS = timedelta(hours=2, seconds=29)
WORK = Counts(by_status={Status.TODO: 1})
NO_WORK = Counts(by_status={Status.FINISHED: 9, Status.IGNORED: 2})
EVIL = "evil\x1b[2J\u202e.com"


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def host(**fields: Any) -> Host:
    return Host(name="example.com", **fields)


# --- reasons

SITEMAPS = ("http://a.com/sitemap.xml",)
GIVEN_UP: dict[str, Any] = {"given_up": Reason.DNS_NXDOMAIN}
OWNED: dict[str, Any] = {"owner": "box-7-ab:12", "ready_at": at(5)}
RESTS: dict[str, Any] = {"not_before": at(300), "failures": 3}
LATER: dict[str, Any] = {"ready_at": at(45)}


@pytest.mark.parametrize(
    ("fields", "counts", "phrase"),
    [
        ({}, WORK, "ready"),
        ({}, NO_WORK, "done"),
        ({}, Counts(), "done"),
        ({}, Counts(by_status={Status.FAILED: 1}), "ready"),
        ({}, Counts(by_status={Status.PROCESSING: 1}), "ready"),
        ({"ready_at": NOW, "not_before": NOW, "failures": 2, "epoch": 4}, WORK, "ready"),
        (GIVEN_UP, WORK, "given up: dns-nxdomain"),
        (OWNED, WORK, "owned by box-7-ab"),
        (OWNED | {"ready_at": NOW}, WORK, "ready"),
        (OWNED | {"ready_at": None}, WORK, "ready"),
        (RESTS, WORK, "resting for 5 min: 3 failures"),
        (RESTS | {"failures": 1}, WORK, "resting for 5 min: 1 failure"),
        ({"not_before": at(4)}, WORK, "waiting its turn in 4.0 s"),
        (LATER, WORK, "next task due in 45 s"),
        # The first reason that applies, in this order.
        (GIVEN_UP | OWNED | RESTS, NO_WORK, "given up: dns-nxdomain"),
        (OWNED | RESTS, NO_WORK, "done"),
        (OWNED | RESTS, WORK, "owned by box-7-ab"),
        (RESTS | LATER, WORK, "resting for 5 min: 3 failures"),
        ({"not_before": at(4)} | LATER, WORK, "waiting its turn in 4.0 s"),
    ],
)
def test_why_a_host_is_not_crawled(fields: dict[str, Any], counts: Counts, phrase: str):
    assert why(host(**fields), unfinished=unfinished_of(counts) > 0, now=NOW) == phrase


# --- the table


def row(name: str, **fields: Any) -> hosts.Row:
    nothing: dict[str, Any] = {
        "counts": WORK,
        "owner": None,
        "delay": 0.0,
        "resting_until": None,
        "failures": 0,
        "given_up": None,
        "sitemaps": (),
        "why": "ready",
    }
    return hosts.Row(name=name, **nothing | fields)


def test_columns_in_which_no_host_has_anything_are_left_out():
    rows = [row("a.com"), row("long.example.com", delay=1.5, counts=Counts())]

    assert list(hosts.table(rows, now=NOW)) == [
        "host              todo  processing  failed  finished  ignored   delay  why",
        "a.com                1           0       0         0        0       -  ready",
        "long.example.com     0           0       0         0        0  1.50 s  ready",
    ]


def test_a_name_is_printable_and_not_endless():
    lines = list(hosts.table([row(EVIL), row("x" * 1000, owner="\x9b", why="\n")], now=NOW))

    assert all(line.isprintable() for line in lines)
    assert lines[1].startswith(r"evil\x1b[2J\u202e.com ")
    assert lines[2].startswith("x" * 79 + "… ")


# --- the command


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CRAWLCW_LEDGER", raising=False)
    return tmp_path


@pytest.fixture
def clock() -> FakeClock:
    """A clock that is set to the command's time, which a test cannot change."""
    clock = FakeClock()
    clock.time = datetime.now(UTC).replace(microsecond=0)
    return clock


async def fill(ledger: Ledger) -> None:
    """Add hosts to a ledger, one for each reason not to be crawled."""
    now = ledger.now()
    numbers = {"busy.com": 3, "rests.com": 2, "gone.com": 2, "done.com": 1, "later.com": 1}
    numbers |= {"turn.com": 1, "fails.com": 1, EVIL: 1, "unseen.com": 1}
    for name, number in numbers.items():
        due = now + TWO_HOURS if name == "later.com" else now
        first, _ = ids_of_host(name)
        tasks = [
            make_task(
                f"http://example.com/{name}/{n}",
                id=first[:-1] + bytes([n]),
                host=name,
                due=due,
            )
            for n in range(number)
        ]
        await ledger.tasks.add(tasks)
    for lease in await claimed(ledger, worker="w-1"):
        if lease.task.host == "done.com":
            await ledger.outcomes.commit([settled(ledger, lease, Succeeded())])
        elif lease.task.host == "fails.com":
            await ledger.outcomes.commit([failure(ledger, lease)])
        elif not lease.task.url.endswith("busy.com/0"):
            await ledger.outcomes.release([lease])
    await ledger.hosts.give_up("gone.com", reason=Reason.DNS_NXDOMAIN)

    await ledger.hosts.wake({name: now for name in numbers if name != "unseen.com"})
    leases = await ledger.host_leases.lease(worker="w-1", limit=100, lease=TWO_HOURS)
    robots = RobotsRecord(
        origin="http://a.com", body="User-agent: *", sitemaps=SITEMAPS, expires=now
    )
    learned: dict[str, dict[str, Any]] = {
        "rests.com": {"not_before": now + TWO_HOURS, "failures": 2, "delay": 1.5},
        "gone.com": {"given_up": Reason.DNS_NXDOMAIN, "failures": 2, "not_before": now},
        "done.com": {},
        "later.com": {},
        "turn.com": {"not_before": now + TWO_HOURS, "robots": robots},
        "fails.com": {"ready_at": now},
        EVIL: {"ready_at": now},
    }
    await ledger.host_leases.release(
        [
            (lease, replace(lease.host, **learned[lease.host.name]))
            for lease in leases
            if lease.host.name in learned
        ]
    )


@pytest.fixture
async def ledger(folder: Path, clock: FakeClock) -> str:
    """The URL of a ledger with a host for each reason."""
    opened = await SqliteLedger.open(folder / "x.db", "books", clock=clock)
    await fill(opened)
    await opened.close()
    return "sqlite:///x.db"


TABLE = r"""
host                   todo  processing  failed  finished  ignored  owner   delay       rest  failures in a row  given up      why
busy.com                  2           1       0         0        0  w-1         -          -                  -  -             owned by w-1
rests.com                 2           0       0         0        0  -      1.50 s  2 h 0 min                  2  -             resting for 2 h 0 min: 2 failures
evil\x1b[2J\u202e.com     1           0       0         0        0  -           -          -                  -  -             ready
fails.com                 0           0       1         0        0  -           -          -                  -  -             ready
later.com                 1           0       0         0        0  -           -          -                  -  -             next task due in 2 h 0 min
turn.com                  1           0       0         0        0  -           -  2 h 0 min                  -  -             waiting its turn in 2 h 0 min
unseen.com                1           0       0         0        0  -           -          -                  -  -             ready
done.com                  0           0       0         1        0  -           -          -                  -  -             done
gone.com                  0           0       0         0        2  -           -          -                  2  dns-nxdomain  given up: dns-nxdomain
"""  # noqa: E501


def test_the_table_has_every_host_those_with_most_to_do_first(ledger: str):
    run = invoke("hosts", "books", "--ledger", ledger)

    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == TABLE.lstrip("\n")


def test_the_table_has_no_more_hosts_than_asked_for(ledger: str):
    some = invoke("hosts", "books", "--ledger", ledger, "--limit", "2").stdout.splitlines()
    every = invoke("hosts", "books", "--ledger", ledger, "--limit", "0").stdout

    assert [re.split(" +", line)[0] for line in some[:3]] == ["host", "busy.com", "rests.com"]
    assert some[3:] == ["2 of 9 hosts; --limit 0 shows all"]
    assert every == TABLE.lstrip("\n")


def test_a_program_gets_every_host_on_a_line_of_its_own(ledger: str, clock: FakeClock):
    run = invoke("hosts", "books", "--ledger", ledger, "--json", "--limit", "1")

    assert run.returncode == 0
    assert all(line.isprintable() for line in run.stdout.splitlines())
    shown = [json.loads(line) for line in run.stdout.splitlines()]
    assert [each["host"] for each in shown] == [
        *("busy.com", "done.com", EVIL, "fails.com", "gone.com", "later.com", "rests.com"),
        *("turn.com", "unseen.com"),
    ]
    assert shown[6] == {
        "host": "rests.com",
        "todo": 2,
        "failed": 0,
        "processing": 0,
        "finished": 0,
        "ignored": 0,
        "owner": None,
        "delay": 1.5,
        "resting_until": (clock.time + TWO_HOURS).isoformat().replace("+00:00", "Z"),
        "failures": 2,
        "given_up": None,
        "sitemaps": [],
        "why": "resting for 2 h 0 min: 2 failures",
    }
    assert (shown[0]["owner"], shown[0]["processing"]) == ("w-1", 1)
    assert (shown[4]["given_up"], shown[4]["resting_until"]) == ("dns-nxdomain", None)
    by_name = {host["host"]: host for host in shown}
    assert by_name["turn.com"]["sitemaps"] == list(SITEMAPS)
