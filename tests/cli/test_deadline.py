"""The deadline of a process, in the process of the test: it does not exit."""

import asyncio
import importlib
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest

from crawlcw.cli import loop
from crawlcw.cli.deadline import Deadline, running_code
from tests.support.programs import run_to_end

NOT_AT_ALL = timedelta(0)
HOUR = timedelta(hours=1)


@dataclass
class Exits:
    """Stands for `os._exit`."""

    codes: list[int] = field(default_factory=list)
    came: threading.Event = field(default_factory=threading.Event)

    def __call__(self, code: int) -> None:
        self.codes.append(code)
        self.came.set()


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> Exits:
    exits = Exits()
    monkeypatch.setattr(os, "_exit", exits)
    monkeypatch.setattr(logging, "shutdown", lambda: None)
    monkeypatch.setattr("crawlcw.cli.deadline._BEYOND_GRACE", 0.0)
    monkeypatch.setattr("crawlcw.cli.deadline._LAST_WORDS", 1000.0)
    monkeypatch.setattr("crawlcw.cli.deadline._OWN_WORK", 0.0)
    return exits


@pytest.fixture
def deadline(exits: Exits) -> Iterator[Deadline]:  # it must not exit
    made = Deadline()
    made.is_enabled = True
    yield made
    for timer in timers():
        timer.cancel()
        timer.join()


def timers() -> list[threading.Timer]:
    return [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


@pytest.fixture
def ended() -> Iterator[threading.Event]:
    ended = threading.Event()
    yield ended
    ended.set()


def test_the_earliest_time_counts_and_unfinished_work_is_finished(
    deadline: Deadline, exits: Exits, caplog: pytest.LogCaptureFixture
):
    deadline.finish = lambda: 3
    deadline.allow(HOUR)
    deadline.allow(NOT_AT_ALL)
    deadline.allow(HOUR)

    assert exits.came.wait(20)
    assert (exits.codes, deadline.is_at_once) == ([3], False)
    assert "all tasks are released" in caplog.text


def test_the_outcome_of_a_command_is_reported(
    deadline: Deadline, exits: Exits, caplog: pytest.LogCaptureFixture
):
    deadline.report = lambda outcome: 2 if outcome() == "well" else 1
    deadline.end_command(lambda: "well")
    deadline.hurry()

    assert exits.came.wait(20)
    assert (exits.codes, deadline.is_at_once) == ([2], True)
    assert "all tasks are released" not in caplog.text


def test_work_that_cannot_be_released_ends_as_interrupted(
    deadline: Deadline, exits: Exits, caplog: pytest.LogCaptureFixture
):
    def finish() -> int:
        raise OSError("no ledger")

    deadline.finish = finish
    deadline.allow(NOT_AT_ALL)

    assert exits.came.wait(20)
    assert exits.codes == [130]
    assert "could not release the leases, which will expire: no ledger" in caplog.text


def test_a_time_that_is_lifted_ends_nothing(deadline: Deadline, exits: Exits):
    deadline.allow(HOUR)
    deadline.lift()
    for timer in timers():
        timer.join()

    assert exits.codes == []
    deadline.allow(NOT_AT_ALL)
    assert exits.came.wait(20), "a new time counts"


def test_crawlcws_own_work_is_waited_for(
    deadline: Deadline, exits: Exits, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("crawlcw.cli.deadline._OWN_WORK", 1000.0)
    places: list[list[str]] = [["parse (spider.py:3)"], [], []]
    monkeypatch.setattr("crawlcw.cli.deadline.running_code", lambda *_, **__: places.pop())
    deadline.allow(NOT_AT_ALL)

    assert exits.came.wait(20)
    assert places == []


def test_a_program_that_calls_crawlcw_has_no_deadline(exits: Exits):
    Deadline().allow(NOT_AT_ALL)

    assert (timers(), exits.codes) == ([], [])


def test_the_script_of_a_command_is_no_code_of_the_users(tmp_path: Path):
    script = tmp_path / "crawlcw"
    script.write_text(
        "import threading\n"
        "from crawlcw.cli.deadline import running_code\n"
        "asked = threading.Thread(target=lambda: print(running_code(None)))\n"
        "asked.start()\n"
        "asked.join()\n"
    )

    ended = run_to_end([sys.executable, str(script)])

    assert (ended.stdout, ended.returncode) == ("[]\n", 0), ended.stderr


def test_an_installed_package_is_the_users_if_its_spider_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: threading.Event, deadline: Deadline
):
    package = tmp_path / "site-packages" / "shop"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    code = "class Books: pass\ndef work(began, ended):\n    began.set()\n    ended.wait()\n"
    (package / "spiders.py").write_text(code)
    monkeypatch.syspath_prepend(package.parent)
    module = importlib.import_module("shop.spiders")
    began = threading.Event()
    thread = threading.Thread(target=module.work, args=(began, ended), name="installed")
    thread.start()
    began.wait()

    assert "thread installed" in running_code(None)
    deadline.add_user_package(module.Books)
    named = "thread installed, work (spiders.py:4)"
    assert named in running_code(None, folder=deadline.folder)
    ended.set()
    thread.join()


def test_a_second_loop_of_a_command_has_unfinished_work_again():
    async def is_finished() -> bool:
        return loop.deadline.is_finished

    before = [loop.run(is_finished()), loop.deadline.is_finished]
    assert [*before, loop.run(is_finished())] == [False, True, False]


def test_what_runs_is_named_by_function_and_line(ended: threading.Event):
    began = threading.Barrier(3)

    def work() -> None:
        began.wait()
        ended.wait()

    async def generate():
        await asyncio.Event().wait()
        yield

    async def waits() -> None:
        async for _ in generate():
            pass

    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(thread_name_prefix="pool") as pool:
            pool.submit(int).result()
            pool.submit(work)
            thread = threading.Thread(target=work, name="plain")
            thread.start()
            began.wait()
            task = asyncio.create_task(waits())
            await asyncio.sleep(0)
            names = await asyncio.to_thread(running_code, loop)
            task.cancel()
            ended.set()
            thread.join()
        return names

    names = asyncio.run(main())

    line = r".*\.%s \(test_deadline\.py:\d+\)"
    for pattern in (
        "thread plain, " + line % "work",
        "thread pool_0, " + line % "work",
        # The generator, not the coroutine that waits for it.
        line % "generate",
    ):
        assert [name for name in names if re.fullmatch(pattern, name)], names
