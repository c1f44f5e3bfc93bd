"""End of a crawl: messages while it waits, the reason of its end, and its exit code."""

import json
import re
import shlex
import shutil
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from signal import SIGTERM

import pytest

from tests.blame.code_site import crawled, running
from tests.faults.proxy import Fault, proxied
from tests.faults.wires import Command as Sent
from tests.support.crawl_process import wait_until
from tests.support.mongod import with_database
from tests.support.plain_site import PlainHandler, PlainSite
from tests.support.work_process import Working, crawlcw

pytestmark = pytest.mark.thorough

NOT_WELL = 3
GONE = 69

Answer = tuple[int, dict[str, str]]


class Site(PlainSite):
    """Serves `/` with links to *pages* pages; *answers* gives the status and headers of each."""

    def __init__(
        self,
        pages: int = 0,
        *,
        answers: Callable[[str], Answer] | None = None,
        takes: float = 0.0,
        port: int = 0,
    ) -> None:
        self.asked = 0
        links = "".join(f'<a href="/{n}">{n}</a>' for n in range(pages))
        site = self

        class Handler(PlainHandler):
            protocol_version = "HTTP/1.1"

            def get(self) -> None:
                site.asked += 1
                robots = self.path == "/robots.txt"
                if not robots:
                    time.sleep(takes)
                status, headers = answers(self.path) if answers and not robots else (200, {})
                self.reply(404 if robots else status, "" if robots else links, headers)

        super().__init__(Handler, port=port)


def spider(*urls: str, name: str = "pages") -> str:
    return f"""
from crawlcw import Spider

class Pages(Spider):
    name = {name!r}
    start_urls = {list(urls)!r}

    def parse(self, response):
        yield from response.follow_all("a")
        yield {{"url": response.url}}
"""


@contextmanager
def dead_url() -> Iterator[str]:
    """A URL whose port refuses every connection."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but not listening
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/"


#: Settings that give hosts up at once.
HASTY = ("-s", "host_max_failures=1", "-s", "host_backoff_base=50ms")


def failing(*paths: str) -> Callable[[str], Answer]:
    return lambda path: (404 if path in paths else 200, {})


@pytest.mark.parametrize("processes", [1, 2])
def test_a_crawl_that_finished_nothing_is_not_well(ledger_url: str, tmp_path: Path, processes: int):
    with Site(answers=failing("/")) as site:
        options = ("--processes", processes)
        code, report, command = crawled(tmp_path, spider(site.url), ledger_url, *options)

        assert (code, report["finish_reason"]) == (NOT_WELL, "drained"), command.log
        assert report["faults"] == "nothing was finished"
        assert report["exit_code"] == NOT_WELL

        # A crawl without due tasks ends the same way: nothing was ever finished.
        again, _, _ = crawled(tmp_path, spider(site.url), ledger_url, *options)
        assert again == NOT_WELL


def test_a_crawl_that_was_well_once_is_so_when_it_has_nothing_to_do(
    ledger_url: str, tmp_path: Path
):
    with Site(3, answers=failing("/1")) as site:
        first, report, command = crawled(tmp_path, spider(site.url), ledger_url)
        again, nothing, _ = crawled(tmp_path, spider(site.url), ledger_url)

    assert (first, report["pages"], report["given_up"]) == (0, 3, 1), command.log
    assert (again, nothing["pages"], nothing["faults"]) == (0, 0, "")


@pytest.mark.representative("sqlite-0")
@pytest.mark.parametrize("processes", [0, 1, 2])
def test_pages_that_failed_before_are_named_with_the_way_to_have_them_again(
    ledger_url: str, tmp_path: Path, processes: int
):
    place = tmp_path / "spider.py"
    options = ("--ledger", ledger_url, "--processes", processes)
    quoted = shlex.quote(ledger_url)

    def last_line(code: str) -> str:
        place.write_text(code)
        return crawlcw("run", place, *options).stdout.splitlines()[-1]

    with Site(3) as site:
        mended = spider(site.url)
        broken = mended.replace("yield {", "response.css_first('h9').text(); yield {")
        for code in (broken, mended):
            last = last_line(code)
            assert last.startswith("Drained, but nothing was finished"), last
            assert f"`crawlcw retry-failed pages --ledger {quoted}` brings them back." in last

        # Some pages are finished now, but failed ones are still left alone.
        crawlcw("add", "pages", f"{site.url}more", "--ledger", ledger_url)
        for _ in range(2):
            assert last_line(mended) == (
                "Drained: nothing is left to do. 1 page was given up in this run or before: "
                f"`crawlcw tasks pages --given-up --ledger {quoted}` lists them, "
                f"`crawlcw retry-failed pages --ledger {quoted}` brings them back."
            )


@pytest.mark.representative("sqlite-1")
@pytest.mark.parametrize("processes", [1, 2])
def test_a_host_that_is_given_up_is_named(ledger_url: str, tmp_path: Path, processes: int):
    with Site(3) as site, dead_url() as dead:
        options = ("--processes", processes, *HASTY)
        code, report, command = crawled(tmp_path, spider(site.url, dead), ledger_url, *options)

    assert (code, report["finish_reason"]) == (NOT_WELL, "drained"), command.log
    ((host, why),) = report["hosts_given_up"].items()
    assert dead.removeprefix("http://").removesuffix("/") in host
    assert why in ("host-unreachable", "connect")
    assert report["faults"] == f"1 host was given up ({host}: {why})"
    assert report["pages"] == 4, "the other host is still crawled"


@pytest.mark.parametrize(
    ("most", "code"), [("none", 0), ("2", 0), ("1", NOT_WELL), ("20%", 0), ("0.19", NOT_WELL)]
)
def test_more_failures_than_allowed_decide_the_exit_code_and_stop_nothing(
    most: str, code: int, tmp_path: Path
):
    ledger = f"sqlite:///{tmp_path}/ledger.db"
    # 2 of 10 pages.
    with Site(9, answers=failing("/1", "/2")) as site:
        options = ("-s", f"max_failures={most}")
        ended, report, command = crawled(tmp_path, spider(site.url), ledger, *options)

    assert (ended, report["finish_reason"], report["pages"]) == (code, "drained", 8), command.log
    assert report["faults"] == (
        f"2 of 10 pages were given up, more than max_failures={'19%' if '.' in most else most}"
        if code
        else ""
    )


def test_the_last_line_says_what_is_wrong(tmp_path: Path):
    ledger = f"sqlite:///{tmp_path}/ledger.db"
    with Site(answers=failing("/")) as site:
        (tmp_path / "spider.py").write_text(spider(site.url))
        run = crawlcw("run", tmp_path / "spider.py", "--ledger", ledger)
        (tmp_path / "quiet.py").write_text(spider(site.url, name="quiet"))
        quiet = crawlcw("run", tmp_path / "quiet.py", "-q", "--ledger", ledger)

    assert run.returncode == quiet.returncode == NOT_WELL
    assert run.stdout.splitlines()[-1] == (
        f"Drained, but nothing was finished: `crawlcw tasks pages --given-up --ledger {ledger}` "
        f"lists them, `crawlcw retry-failed pages --ledger {ledger}` brings them back."
    )
    assert "Drained, but nothing was finished" in quiet.stderr.splitlines()[-1]


BROKEN = """
    def parse(self, response):
        yield from response.follow_all("a", callback=self.parse_book)

    def parse_book(self, response):
        raise KeyError("title")
"""


def test_a_broken_callback_is_not_well(ledger_url: str, tmp_path: Path):
    with Site(40) as site:
        code_ = spider(site.url).partition("    def parse")[0] + BROKEN
        code, report, command = crawled(tmp_path, code_, ledger_url)

    assert (code, report["finish_reason"]) == (NOT_WELL, "callback-broken"), command.log
    assert report["faults"].startswith("a callback is broken: ")


def test_the_progress_says_until_when_its_hosts_rest_and_why(ledger_url: str, tmp_path: Path):
    """With one process and with two: a line comes every ten seconds."""

    def answers(path: str) -> Answer:
        return (429, {"Retry-After": "300"}) if path == "/" else (200, {})

    with Site(answers=answers) as site:
        commands = []
        for processes in (1, 2):
            folder = tmp_path / str(processes)
            folder.mkdir()
            code = spider(site.url, name=f"pages{processes}")
            commands.append(running(folder, code, ledger_url, "--processes", processes))
        with commands[0] as one, commands[1] as two:
            for command in (one, two):
                wait_until(lambda: command.records("progress"))  # noqa: B023  # called at once
                command.send(SIGTERM)
            ends = [command.end()[0] for command in (one, two)]
            lines = [command.records("progress")[0] for command in (one, two)]

    assert ends == [0, 0]
    for line in lines:
        resting = line["idle_reason"]
        assert (resting["hosts_resting"], resting["cause"]) == (1, "429, Retry-After"), line
        left = datetime.fromisoformat(resting["ends_at"]) - datetime.now(UTC)
        assert timedelta(minutes=4) < left < timedelta(minutes=6)
        local = datetime.fromisoformat(resting["ends_at"]).astimezone()
        said = f"1 host rests until {local:%H:%M}: 429, Retry-After"
        assert resting["sentence"] == said
        assert line["message"].endswith(said)


def test_counting_that_takes_too_long_decides_nothing(
    mongodb_uri: str, database_name: str, tmp_path: Path
):
    """Each count exceeds the driver's timeout, as on a slow server with a million tasks."""

    def slow(command: Sent) -> Fault | None:
        stages = [name for stage in command.body.get("pipeline", ()) for name in stage]
        # A count with a limit of 1 reads one index key, which is quick on any server.
        is_count = command.name == "count" and command.body.get("limit") != 1
        counts = is_count or "$group" in stages
        return Fault(delay=timedelta(seconds=4)) if counts else None

    with Site(5) as site, proxied(mongodb_uri) as (proxy, near):
        proxy.plan(slow)
        url = with_database(near, database_name) + "&timeoutMS=1500"
        options = ("--processes", 2, "-o", tmp_path / "items.jsonl")
        code, report, command = crawled(tmp_path, spider(site.url), url, *options)

    assert (code, report["finish_reason"], report["pages"]) == (0, "drained", 6), command.log
    assert report["counts"] is None
    items = [json.loads(line) for line in (tmp_path / "items.jsonl").read_text().splitlines()]
    assert len(items) == 6


def removed(ledger: Path) -> None:
    ledger.unlink()


def replaced_by_a_copy(ledger: Path) -> None:
    shutil.copy(ledger, ledger.with_suffix(".copy"))
    ledger.with_suffix(".copy").replace(ledger)


def replaced_by_another_file(ledger: Path) -> None:
    ledger.with_suffix(".new").write_bytes(b"")
    ledger.with_suffix(".new").replace(ledger)


MISHAPS = [removed, replaced_by_a_copy, replaced_by_another_file]


def workers(ledger: Path) -> int:
    """Return the number of processes that have joined the crawl in a ledger's file."""
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as db:
        return db.execute('SELECT COUNT(*) FROM "pages.workers" WHERE left_at IS NULL').fetchone()[
            0
        ]


@pytest.mark.representative("removed-1")
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("mishap", MISHAPS)
def test_a_ledger_file_that_is_gone_ends_the_crawl(
    mishap: Callable[[Path], None], processes: int, tmp_path: Path
):
    ledger = tmp_path / "ledger.db"
    options = ("--processes", processes, "-s", "per_host_concurrency=2")
    with (
        Site(300, takes=0.1) as site,
        running(tmp_path, spider(site.url), f"sqlite:///{ledger}", *options) as command,
    ):
        # A process that has not opened the file yet would create a new one.
        wait_until(lambda: site.asked > 5 and workers(ledger) == processes)
        mishap(ledger)
        code, report = command.end()

    assert (code, report) == (GONE, {}), command.log
    what = "was moved or removed" if mishap is removed else "was replaced by another file"
    said = [line for line in command.log.splitlines() if line.startswith("crawlcw: ")]
    assert said, command.log
    for line in said:
        assert re.match(rf"crawlcw: The ledger {re.escape(str(ledger))} {what} while it was", line)
        assert "run the command again" in line


def test_a_ledger_file_that_the_last_page_removes_is_not_drained(tmp_path: Path):
    with Site() as site:
        code_ = spider(site.url) + "        __import__('pathlib').Path('ledger.db').unlink()\n"
        code, report, command = crawled(tmp_path, code_, "sqlite:///ledger.db")

    assert (code, report) == (GONE, {}), command.log


USE_CASE = """\
import asyncio
from crawlcw.tracking import UseCase

orders = UseCase("orders", lease="1s")

@orders.stage
async def charge(execution):
    print("begun", flush=True)
    await asyncio.sleep(3600)
"""


@pytest.mark.parametrize("mishap", MISHAPS)
def test_a_ledger_file_that_is_gone_ends_a_worker_too(
    mishap: Callable[[Path], None], tmp_path: Path
):
    ledger = tmp_path / "ledger.db"
    url = f"sqlite:///{ledger}"
    (tmp_path / "orders.py").write_text(USE_CASE)
    added = crawlcw(
        "add", "orders", "-", "--stage", "charge", "--ledger", url, given='{"key": "one"}\n'
    )
    assert added.returncode == 0, added.stderr

    with Working(tmp_path / "orders.py", url, log=tmp_path / "log") as working:
        assert working.process.stdout is not None
        assert working.process.stdout.readline() == "begun\n"
        mishap(ledger)
        code, said = working.end()

    assert (code, said) == (GONE, ""), working.log
    what = "was moved or removed" if mishap is removed else "was replaced by another file"
    assert f"crawlcw: The ledger {ledger} {what} while it was in use" in working.log
