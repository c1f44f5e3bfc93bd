"""A blocked event loop costs attempts only for the page that blocks it."""

import asyncio
import signal
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from crawlcw import Settings, open_ledger
from crawlcw.errors import Reason
from crawlcw.model.task import Record, Status
from crawlcw.tracking import Tracker
from tests.blame.code_site import Command, Site, crawled, running, spider
from tests.blame.test_user_code import records
from tests.cli.test_supervisor import is_running
from tests.support.crawl_process import wait_until
from tests.support.programs import children_of

pytestmark = [pytest.mark.timeout(150), pytest.mark.thorough]

_SECONDS = timedelta(seconds=2)
#: The page `/0` blocks the event loop for ever.
STUCK = """
    def parse(self, response):
        yield {{"url": response.url}}
        yield from response.follow_all("a")
        if response.url.endswith("/0"):
            print("stuck", flush=True)
            {keep}
"""
IN_PYTHON = "while True: pass"
IN_SLEEP = "time.sleep(3600)"
IN_C = "import re; re.match(r'(a+)+$', 'a' * 60 + 'b')"


def is_stuck(command: Command) -> bool:
    return "loop_stalled" in command.log


@pytest.mark.parametrize(
    ("ledger_url", "keep", "codes"),
    [("sqlite", IN_PYTHON, {124}), ("mongodb", IN_C, {-signal.SIGVTALRM})],
    indirect=["ledger_url"],
)
async def test_a_callback_that_never_returns_ends_its_process_and_is_found_out(
    ledger_url: str, tmp_path: Path, keep: str, codes: set[int]
):
    """HOSTILE 8.2: it is run again, as by a supervisor, until the page is given up."""
    settings = ("-s", "callback_timeout=1.5s", "-s", "lease=2s", "-s", "max_lost=2")
    settings += ("--processes", "0")
    with Site(5) as site:
        code_ = spider(site.url, STUCK.format(keep=keep))
        code, _, command = await asyncio.to_thread(crawled, tmp_path, code_, ledger_url, *settings)
        assert code in codes, command.log
        assert 'spider.py", line ' in command.log, "the stack is dumped"
        if keep == IN_PYTHON:
            (stalled,) = command.records("loop_stalled")
            assert f"in parse of {site.url}0" in stalled["message"]
            (told,) = command.records("callback_stuck")
            assert (told["url"], told["callback"]) == (f"{site.url}0", "parse")

        for _ in range(6):
            code, report, command = await asyncio.to_thread(
                crawled, tmp_path, code_, ledger_url, *settings
            )
            if code == 0:
                break

    tasks = await records(ledger_url, site)
    assert (code, report["finish_reason"]) == (0, "drained"), command.log
    assert (tasks["0"].task.status, tasks["0"].task.reason) == (
        Status.IGNORED,
        Reason.CRASHED_WORKER,
    )


@pytest.mark.parametrize(
    ("ledger_url", "keep"),
    [("mongodb", IN_PYTHON), ("sqlite", IN_C)],
    indirect=["ledger_url"],
)
async def test_a_callback_that_never_returns_is_found_out_by_the_command_itself(
    ledger_url: str, tmp_path: Path, keep: str
):
    settings = ("-s", "callback_timeout=1.5s", "-s", "lease=2s")
    with Site(5) as site:
        code_ = spider(site.url, STUCK.format(keep=keep))
        code, report, command = await asyncio.to_thread(
            crawled, tmp_path, code_, ledger_url, *settings
        )

    tasks = await records(ledger_url, site)
    assert (code, report["finish_reason"]) == (0, "drained"), command.log
    assert tasks["0"].task.reason is Reason.CRASHED_WORKER
    # Twice beside other pages, and `max_lost` times alone.
    assert len(command.records("worker_crashed")) == 2 + Settings().max_lost


@pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
async def test_a_process_whose_log_is_locked_as_well_ends_too(ledger_url: str, tmp_path: Path):
    # The callback is told as a stall first: then nothing is logged until the process ends.
    code_ = """
    def parse(self, response):
        time.sleep(1.2)
        yield from response.follow_all("a")
        if response.url.endswith("/0"):
            import logging
            logging.getLogger().handlers[0].acquire()
            time.sleep(3600)
"""
    settings = ("-s", "callback_timeout=1.5s", "--processes", "0")
    with Site(1) as site:
        code, _, command = await asyncio.to_thread(
            crawled, tmp_path, spider(site.url, code_), ledger_url, *settings
        )

    assert code == 124, command.log


@pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
async def test_code_that_is_not_crawlcws_to_call_may_keep_the_loop(ledger_url: str, tmp_path: Path):
    busy = """
    async def opened(self):
        self.busy = asyncio.ensure_future(self.compute())

    async def compute(self):
        until = time.process_time() + 5
        while time.process_time() < until:
            pass

    async def parse(self, response):
        await self.busy
        yield {"url": response.url}
"""
    settings = ("-s", "callback_timeout=1s", "--processes", "0")
    with Site(1) as site:
        code, report, command = await asyncio.to_thread(
            crawled, tmp_path, spider(site.url, busy), ledger_url, *settings
        )

    assert (code, report["pages"]) == (0, 1), command.log
    assert command.records("internal") == []


async def task_at(ledger_url: str, site: Site, path: str) -> Record:
    return (await records(ledger_url, site))[path]


@pytest.mark.parametrize("keep", [IN_PYTHON, IN_SLEEP])
async def test_the_leases_of_a_process_with_a_blocked_loop_are_not_taken_over(
    ledger_url: str, tmp_path: Path, keep: str
):
    settings = ("-s", "lease=5s", "-s", "callback_timeout=0s", "--quiet", "--processes", "0")
    with Site(3) as site:
        code_ = spider(site.url, STUCK.format(keep=keep))
        with running(tmp_path, code_, ledger_url, *settings) as command:
            await asyncio.to_thread(wait_until, lambda: is_stuck(command))
            before = await task_at(ledger_url, site, "0")
            ledger = await open_ledger(ledger_url, "pages")
            # Longer than two leases: without renewals, it would have been taken over.
            for _ in range(22):
                assert [t for t in await ledger.tasks.page(limit=9) if t.id == before.task.id] == []
                assert await ledger.host_leases.lease(worker="x", limit=9, lease=_SECONDS) == []
                await asyncio.sleep(0.5)
            await ledger.close()
            after = await task_at(ledger_url, site, "0")
            assert after.task.lock == before.task.lock
            assert after.task.due is not None
            assert before.task.due is not None
            assert after.task.due > before.task.due, "its lease is renewed"

            command.send(signal.SIGINT)
            await asyncio.to_thread(wait_until, lambda: command.records("stop_stuck"))
            command.send(signal.SIGINT)
            code, _ = await asyncio.to_thread(command.end, within=20)

    released = await task_at(ledger_url, site, "0")
    ledger = await open_ledger(ledger_url, "pages")
    assert await ledger.workers.all() == [], "it has left"
    await ledger.close()
    assert code == 130, command.log
    assert (released.task.status, released.task.retry, released.task.lock) == (
        Status.TODO,
        0,
        None,
    ), "released without an attempt"


async def test_a_supervisor_kills_a_worker_that_is_silent(ledger_url: str, tmp_path: Path):
    """The watchdog of the worker cannot: the whole process is frozen."""
    frozen = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    given = ("-s", "callback_timeout=1s", "-s", "max_lost=2", "-s", "lease=3s", "--processes", "2")
    with Site(5) as site:
        code_ = spider(site.url, STUCK.format(keep=frozen))
        code, report, command = await asyncio.to_thread(
            crawled, tmp_path, code_, ledger_url, *given
        )

    tasks = await records(ledger_url, site)
    assert command.records("worker_silent"), command.log
    assert (code, report["finish_reason"]) == (0, "drained"), command.log
    assert tasks["0"].task.reason is Reason.CRASHED_WORKER


async def test_a_supervisor_that_is_told_to_stop_waits_for_no_stuck_worker(
    ledger_url: str, tmp_path: Path
):
    given = ("-s", "grace=1s", "--processes", "2")
    with Site(5) as site:
        code_ = spider(site.url, STUCK.format(keep=IN_PYTHON))
        with running(tmp_path, code_, ledger_url, *given) as command:
            await asyncio.to_thread(wait_until, lambda: is_stuck(command))
            command.send(signal.SIGTERM)
            await asyncio.to_thread(command.end, within=40)

    released = await task_at(ledger_url, site, "0")
    assert (released.task.status, released.task.lock) == (Status.TODO, None), command.log


@pytest.mark.parametrize(
    ("ledger_url", "keep"),
    [("sqlite", IN_PYTHON), ("mongodb", IN_SLEEP), ("sqlite", IN_C)],
    indirect=["ledger_url"],
)
@pytest.mark.parametrize(("signals", "code"), [(1, 0), (2, 130)])
async def test_a_crawl_that_is_stopped_while_a_callback_hangs_ends_as_any_other(
    ledger_url: str, tmp_path: Path, keep: str, signals: int, code: int
):
    given = ("-s", "grace=1s", "-s", "callback_timeout=0s")
    with Site(5) as site:
        code_ = spider(site.url, STUCK_IN["parse"].format(keep=keep))
        with running(tmp_path, code_, ledger_url, *given) as command:
            await asyncio.to_thread(wait_until, (tmp_path / "stuck").exists)
            for event in ("stop", "stop_now")[:signals]:
                command.send(signal.SIGINT)
                await asyncio.to_thread(wait_until, partial(command.records, event))
            ended, _ = await asyncio.to_thread(command.end, within=40)

    assert ended == code, command.log
    assert command.records("worker_crashed") == [], "the command ended it"
    tasks = await records(ledger_url, site)
    assert {each.task.retry for each in tasks.values()} == {0}
    # Tasks of a killed worker keep its lock, and can be claimed at once.
    assert all(each.task.due < datetime.now(UTC) for each in tasks.values() if each.task.lock)


#: The method that blocks the event loop for ever, after a message.
STUCK_IN = {
    "parse": """
    def parse(self, response):
        open("stuck", "w").close()
        {keep}
""",
    "start": """
    async def start(self):
        from crawlcw import Request
        yield Request(self.start_urls[0])
        open("stuck", "w").close()
        {keep}
""",
    "opened": """
    async def opened(self):
        open("stuck", "w").close()
        {keep}
""",
}


@pytest.mark.parametrize("method", STUCK_IN)
@pytest.mark.parametrize(
    ("ledger_url", "keep"),
    [("sqlite", IN_PYTHON), ("mongodb", IN_SLEEP)],
    indirect=["ledger_url"],
)
async def test_a_worker_whose_loop_stands_still_ends_after_its_supervisor(
    ledger_url: str, tmp_path: Path, method: str, keep: str
):
    given = ("-s", "grace=1s", "-s", "callback_timeout=0s", "-s", "lease=10m")
    with Site(5) as site:
        code = spider(site.url, STUCK_IN[method].format(keep=keep))
        with running(tmp_path, code, ledger_url, *given) as command:
            await asyncio.to_thread(wait_until, (tmp_path / "stuck").exists)
            (worker,) = children_of(command.process.pid)
            command.send(signal.SIGKILL)
            await asyncio.to_thread(wait_until, lambda: not is_running(worker))

    tasks = await records(ledger_url, site)
    assert {(each.task.lock, each.task.retry) for each in tasks.values()} <= {(None, 0)}


async def test_a_worker_that_hangs_before_it_crawls_ends_after_its_supervisor(tmp_path: Path):
    (tmp_path / "one.py").write_text(
        "import os, time\nfrom pathlib import Path\nfrom crawlcw import Spider\n"
        "class One(Spider):\n    name = 'one'\n    start_urls = ['http://127.0.0.1:9/']\n"
        "if os.getpid() == os.getsid(0):\n    Path('stuck').touch()\n    time.sleep(3600)\n"
    )
    with Command(tmp_path, "run", "one.py") as command:
        await asyncio.to_thread(wait_until, (tmp_path / "stuck").exists)
        (worker,) = children_of(command.process.pid)
        command.send(signal.SIGKILL)
        await asyncio.to_thread(wait_until, lambda: not is_running(worker))


FOREVER = """
    async def parse(self, response):
        for request in response.follow_all("a"):
            yield request
        if response.url.endswith("/0"):
            await asyncio.Event().wait()
"""


async def test_a_callback_that_awaits_for_ever_fails_its_own_page(ledger_url: str, tmp_path: Path):
    with Site(4) as site:
        code, report, command = await asyncio.to_thread(
            crawled, tmp_path, spider(site.url, FOREVER), ledger_url, "-s", "callback_timeout=1s"
        )

    page = await task_at(ledger_url, site, "0")
    assert (code, report["finish_reason"]) == (0, "drained"), command.log
    assert (report["pages"], report["failures"]) == (4, {"parse-error": 1})
    assert page.errors[0].message == "TimeoutError: parse did not end within 1 s"


BUSY = """
    start_urls = {urls!r}

    def parse(self, response):
        until = time.process_time() + 0.05
        while time.process_time() < until:
            pass
        yield {{"url": response.url}}
"""


async def test_parsing_that_takes_all_the_cpu_costs_no_other_page_an_attempt(
    ledger_url: str, tmp_path: Path
):
    """150 hosts, with timeouts shorter than the time to parse twenty pages."""
    settings = ("connect_timeout=0.5s", "read_timeout=0.5s", "timeout=1s", "lease=3s")
    given = [part for each in settings for part in ("-s", each)]
    with Site(1, address="0.0.0.0") as site:
        port = site.url.rsplit(":", 1)[1]
        urls = [f"http://127.0.1.{n}:{port}1" for n in range(1, 151)]
        code, report, command = await asyncio.to_thread(
            crawled, tmp_path, spider(site.url, BUSY.format(urls=urls)), ledger_url, *given
        )

    assert (code, report["finish_reason"], report["pages"]) == (0, "drained", 150), command.log
    assert (report["failures"], report["host_failures"], report["leases_lost"]) == ({}, {}, 0)


HANDLER = """
import time
from crawlcw.tracking import UseCase

orders = UseCase("orders", lease=2, max_lost=2)

@orders.stage
async def todo(execution):
    if execution.key == "bad":
        while True:
            pass
"""


async def test_a_handler_that_keeps_the_loop_ends_its_worker_and_keeps_its_lease_until_then(
    ledger_url: str, tmp_path: Path
):
    (tmp_path / "orders.py").write_text(HANDLER)
    given = ("work", "orders.py", "--ledger", ledger_url, "--drain")
    async with Tracker.open(ledger_url, "orders") as tracker:
        await tracker.add_many(["bad", "good"])

        with Command(tmp_path, *given, "--stall-timeout", "5s", "--log-format", "json") as command:
            await asyncio.to_thread(wait_until, lambda: is_stuck(command))
            for _ in range(6):
                task = await tracker.get("bad")
                assert task is not None
                assert task.status is Status.PROCESSING
                page = await tracker.ledger.tasks.page(limit=9)
                assert command.process.poll() is not None or "bad" not in [t.url for t in page]
                await asyncio.sleep(0.5)
            code, _ = await asyncio.to_thread(command.end)
        assert code == 124, command.log

        for _ in range(5):
            with Command(tmp_path, *given, "--stall-timeout", "1s") as command:
                code, _ = await asyncio.to_thread(command.end)
            if code == 0:
                break
        bad, good = await tracker.get("bad"), await tracker.get("good")

    assert bad is not None
    assert good is not None
    assert (bad.status, bad.reason) == (Status.IGNORED, Reason.CRASHED_WORKER)
    assert good.status is Status.FINISHED
