"""Output of every command for the stored data of a hostile site: HOSTILE section 7."""

import asyncio
import contextlib
import csv
import io
import json
import os
import pty
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from yarl import URL

from crawlcw.api.response import Response
from crawlcw.api.spider import Spider
from crawlcw.feeds.escaping import escape_cell
from crawlcw.feeds.forms import defused
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.tracking import Tracker
from tests.hostile.evil import EVIL, SITE, SPIDER, USE_CASE
from tests.hostile.memory_web import HOME, crawl, page
from tests.hostile.raw_server import serving
from tests.support.ledgers import make_task
from tests.support.servers import ServerProcess

ROOT = Path(__file__).parents[2]
#: Far longer than any command here.
PATIENCE = 120.0
#: Control characters but line feed, and invisible characters.
_CONTROL = re.compile(
    "[^\\S\n \xa0]|[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
    "|[\ufeff\U000e0001]"
)
#: The program's own escape sequences: colours and progress lines.
_OWN = re.compile("\x1b\\[(?:[0-9;]*m|\\?25[lh]|1?A|2K)|\r")


#: The line that `commands` prints after each command.
_ENDS = re.compile(r'^== "(.*)" == (\d+)\r?\n', re.MULTILINE)


_TABLE = re.compile(r'^((?:(?!== ).*\n)*)== "export hostile -o -:csv.*\n', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Shown:
    """The output of all commands together, stdout and stderr."""

    text: str
    code: int
    codes: dict[str, str]


async def _output(folder: Path, *, terminal: bool, **environment: str) -> Shown:
    (folder / "spiders").mkdir()
    (folder / "spiders" / "hostile.py").write_text(SPIDER)
    (folder / "use_case.py").write_text(USE_CASE)
    _write_tasks(folder)
    await _track(f"sqlite:///{folder}/ledger.db")
    async with serving(SITE) as server:
        arguments = (f"sqlite:///{folder}/ledger.db", server.url("/"), str(folder))
        ours, theirs = pty.openpty() if terminal else os.pipe()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.hostile.commands", *arguments,
            cwd=folder, stdout=theirs, stderr=theirs,
            env=os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm"} | environment,
        )  # fmt: skip
        os.close(theirs)
        async with asyncio.timeout(PATIENCE):
            shown = b"".join(await asyncio.to_thread(lambda: list(_all_of(ours))))
            code = await process.wait()
    text = shown.decode("utf-8", "replace")
    return Shown(text, code, dict(_ENDS.findall(text)))


def _write_tasks(folder: Path) -> None:
    """Write files of tasks for `add`, with crawled text in every field."""
    found = [
        *({"key": f"{key}{EVIL}", "data": {EVIL: EVIL}} for key in ("raise", "ok")),
        {"key": "other", EVIL: EVIL, "\ud800": "\udfff"},
    ]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(each) + "\n" for each in found))
    keys = {"lone": f"\ud800{EVIL}", "nul": f"\0{EVIL}", "long": EVIL * 1000}
    for name, key in keys.items():
        (folder / f"{name}.jsonl").write_text(json.dumps({"key": key}))
    (folder / "broken.jsonl").write_text(f'{{"key": "{EVIL}"}}\n')
    (folder / "tasks.txt").write_text(f"raise{EVIL}\n{EVIL}")
    with (folder / "tasks.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["key", EVIL], [f"row {EVIL}", EVIL], ["raise row", EVIL]])


async def _track(ledger: str) -> None:
    """Track tasks with crawled text as keys, data and errors."""
    async with Tracker.open(ledger, "evil", max_retry=1) as tracker:
        await tracker.add(EVIL, data={EVIL: EVIL})
        await tracker.add(EVIL * 2)
        with contextlib.suppress(ValueError):
            async with tracker.start(EVIL):
                raise ValueError(EVIL)


def _rows(table: str) -> list[list[str]]:
    before = csv.field_size_limit(len(table))
    try:
        return list(csv.reader(io.StringIO(table, newline=""), strict=True))
    finally:
        csv.field_size_limit(before)


def _all_of(descriptor: int) -> Iterator[bytes]:
    # Linux raises EIO when the last process on a terminal has ended.
    with contextlib.suppress(OSError):
        while chunk := os.read(descriptor, 1 << 16):
            yield chunk
    os.close(descriptor)


def _assert_harmless(shown: Shown) -> None:
    assert shown.code == 0
    assert len(shown.codes) >= 60
    for arguments, code in shown.codes.items():
        assert code in EXPECTED.get(arguments.split()[0], {"0"}), arguments
    assert sorted(set(_CONTROL.findall(shown.text))) == []
    # The traceback of the spider's own error is indented, and is no error of crawlcw.
    forged = ("FORGED", "[/x]", "Traceback")
    assert [line for line in shown.text.split("\n") if line.startswith(forged)] == []
    assert "a bug in crawlcw" not in shown.text


#: Exit codes: 2 for an unknown name, 3 for a crawl with failed pages.
EXPECTED = {
    "run": {"0", "3"},
    "retry-failed": {"0", "2"},
    "tasks": {"0", "2"},
    "ignore": {"2"},
    "show": {"0", "2"},
    "reset": {"0", "2"},
    "set": {"2"},
    "pause": {"0", "2"},
    "add": {"0", "2"},
    # A use case has no items.
    "export": {"0", "2"},
    # The answer may be an error page.
    "fetch": {"0", "3"},
    "parse": {"0", "3"},
}


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({}, id="utf-8"),
        pytest.param(
            {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
            id="ascii",
            marks=pytest.mark.thorough,
        ),
    ],
)
async def test_what_a_hostile_site_stores_is_harmless_in_a_pipe(
    environment: dict[str, str], tmp_path: Path
):
    """HOSTILE 7.1, HOSTILE 7.2, HOSTILE 7.3, HOSTILE 7.4, HOSTILE 7.6: output of every command."""
    shown = await _output(tmp_path, terminal=False, **environment)
    tables = _TABLE.findall(shown.text)

    _assert_harmless(replace(shown, text=_TABLE.sub("", shown.text)))
    assert len(tables) == 2
    for table in tables:
        # A quoted cell may have several lines: a CSV reader finds the rows.
        rows = _rows(table)
        assert len(rows) > 400
        assert {len(row) for row in rows} == {len(rows[0])}
    lines = (tmp_path / "items.jsonl").read_text().split("\n")
    assert [line for line in lines if _CONTROL.search(line)] == []
    items = [json.loads(line) for line in lines if line]
    assert any(item.get("title") == EVIL for item in items)
    table = (tmp_path / "items.csv").read_bytes().decode()
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", table)


def test_a_formula_of_a_page_is_text_in_a_table():
    """HOSTILE 7.5: cells have no escape sequences either."""
    formulas = [start + "cmd|'/c calc'!A0\x1b[2J\x9b" for start in "=+-@\uff1d"]

    cells = [defused(escape_cell(text)) for text in formulas]

    assert [cell[0] for cell in cells] == ["'"] * 5
    assert {cell.isprintable() for cell in cells} == {True}


@pytest.mark.thorough
async def test_what_a_hostile_site_stores_is_harmless_on_a_terminal(tmp_path: Path):
    """HOSTILE 7.1, HOSTILE 7.2, HOSTILE 7.3, HOSTILE 7.4: on a terminal with colours."""
    shown = await _output(tmp_path, terminal=True)

    assert _OWN.search(shown.text.replace("\r", "")), "no colours or progress were printed"
    _assert_harmless(replace(shown, text=_OWN.sub("", shown.text)))


async def test_what_is_stored_of_a_task_is_harmless_in_what_the_server_answers(
    tmp_path: Path, processes: ExitStack
):
    """HOSTILE 7.1, HOSTILE 7.2: in the server's log as well, for any request."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    await _track(url)
    server = ServerProcess(processes, url, "--port", "0", "--log-level", "debug", use_case="evil")
    assert server.ready().startswith("serving evil at")
    answers: dict[int, list[bytes]] = {}

    async def ask(method: str, path: str, **options: Any) -> None:
        address = URL(server.address + path, encoded=True)
        async with client.request(method, address, **options) as answer:
            answers.setdefault(answer.status, []).append(await answer.read())

    async with aiohttp.ClientSession() as client:
        created = [
            {"key": f"new {EVIL}", "data": {EVIL: EVIL}},
            {"key": "x", "data": {"\ud800": 1}},
        ]
        for task in created:
            await ask("POST", "/create_task", json={"tasks": [task]})
        await ask("POST", "/claim_task", json={"worker": EVIL, "limit": 1})
        await ask("POST", "/claim_task", json={"worker": "ann", "limit": 9})
        await ask("POST", "/end_task", json={"worker": "ann", "key": EVIL, "status": EVIL})
        for headers in ({}, {"Content-Type": "application/json"}):
            await ask("POST", "/claim_task", data=EVIL.encode(), headers=headers)
        for path in (
            "/tasks",
            "/stats",
            "/openapi.json",
            f"/task/{quote(EVIL)}",
            f"/{quote(EVIL)}",
        ):
            await ask("GET", path)
        await ask("GET", f"/tasks?status={quote(EVIL)}")
    reader, writer = await asyncio.open_connection("127.0.0.1", URL(server.address).port)
    writer.write(EVIL.encode() + b"\r\n\r\n")
    await reader.read()
    writer.close()
    code, out, err = await asyncio.to_thread(server.stop, signal.SIGTERM)

    assert (code, out) == (0, "")
    assert answers.keys() >= {200, 404, 422}
    assert max(answers) < 500
    for body in (body for bodies in answers.values() for body in bodies):
        json.loads(body)
        assert _CONTROL.findall(body.decode()) == []
    assert sum(b"\\u202e" in body for body in answers[200]) >= 2
    assert sorted(set(_CONTROL.findall(err))) == []
    assert [line for line in err.split("\n") if line.startswith(("FORGED", "[/x]"))] == []


async def test_a_reader_that_goes_away_is_told_nothing(tmp_path: Path):
    """HOSTILE 7.7: `| head` ends a command with 141 and without an error message."""
    ledger = await SqliteLedger.open(tmp_path / "ledger.db", "hostile")
    await ledger.tasks.add(
        [make_task(context={"pad": "x" * 1000}, url=f"http://a.example/{n}") for n in range(500)]
    )
    await ledger.close()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "crawlcw", "tasks", "hostile", "--json", "--limit", "0",
        "--ledger", f"sqlite:///{tmp_path}/ledger.db",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None

    await process.stdout.readexactly(1)
    process.stdout._transport.close()  # type: ignore[attr-defined]  # as `head` does when it has enough
    said = await process.stderr.read()

    assert (await process.wait(), said) == (141, b"")


async def test_what_is_stored_of_an_error_is_short(tmp_path: Path):
    """HOSTILE 7.9: an exception with a text of 300 kB."""

    class Failing(Spider):
        name = "everything"
        start_urls = [HOME]

        def parse(self, response: Response) -> None:
            raise ValueError(EVIL + "x" * 300_000)

    crawled = await crawl({HOME: page()}, tmp_path, spider=Failing())

    (error,) = crawled.records[HOME].errors
    assert error.kind == "parse-error"
    assert len(error.message) <= 500
    assert len(error.traceback or "") <= 20_000
    assert (tmp_path / "ledger.db").stat().st_size < 300_000
