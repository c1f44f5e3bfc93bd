"""Orders that are charged while workers are killed: each is finished once, with one charge."""

import random
import time
from contextlib import ExitStack
from pathlib import Path
from signal import SIGSTOP

import pytest

from crawlcw.model.task import Status
from tests.support.crawl_process import Store, wait_until
from tests.support.docs import REPOSITORY
from tests.support.work_process import Working, crawlcw, tasks_of

pytestmark = pytest.mark.thorough

ORDERS = 2_000
WORKERS = 3
SEED = 20_261_121


def in_first_lines(book: Path) -> dict[str, int]:
    """Return the fence of the first charge of each order, which is the accepted one."""
    first: dict[str, int] = {}
    for line in book.read_text().splitlines() if book.exists() else ():
        order, fence = line.split()
        first.setdefault(order, int(fence))
    return first


@pytest.mark.timeout(600)
def test_every_order_is_finished_once_with_one_accepted_charge(
    ledger_url: str, tmp_path: Path, processes: ExitStack, soaking: bool
):
    most_kills, concurrency = (60, 2) if soaking else (6, 4)
    orders = ORDERS * (10 if soaking else 1)
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    store = Store(ledger_url, "orders")
    book = tmp_path / "charges.txt"
    keys = "".join(f"order-{n}\n" for n in range(orders))
    added = crawlcw("add", "orders", "-", "--ledger", ledger_url, given=keys)
    assert added.stdout == f"{orders:,} added, 0 known already\n", added.stderr

    def start() -> Working:
        return processes.enter_context(
            Working(
                REPOSITORY / "examples" / "orders.py",
                ledger_url,
                *("--drain", "--concurrency", concurrency),
                log=tmp_path / "log",
                environment={"CHARGES": str(book)},
            )
        )

    workers = [start() for _ in range(WORKERS)]
    held: list[int] = []
    while len(in_first_lines(book)) < orders and len(held) < most_kills:
        # On a busy machine, a worker needs seconds to start.
        done = len(in_first_lines(book))
        wait_until(lambda done=done: len(in_first_lines(book)) > min(done, orders - 1))
        victim = workers.pop(chance.randrange(WORKERS))
        victim.send(SIGSTOP)
        held.append(len(store.held_by(victim.pid)))
        victim.kill()
        workers.append(start())
        time.sleep(chance.uniform(0.8, 1.2))
    ended = [worker.end() for worker in workers]

    assert {code for code, _ in ended} == {0}, workers[0].log
    tasks = tasks_of(ledger_url, "orders")
    accepted = in_first_lines(book)
    assert len(tasks) == len(accepted) == orders
    assert {task.status for task in tasks.values()} == {Status.FINISHED}
    assert {task.holder for task in tasks.values()} == {None}
    assert {task.retry for task in tasks.values()} == {0}
    recorded = {key: task.results["charge"]["accepted"] for key, task in tasks.items()}
    assert recorded == accepted
    assert {tuple(each.event for each in task.trace) for task in tasks.values()} == {("finish",)}
    # Only tasks of a killed worker were requested twice.
    again = len(book.read_text().splitlines()) - orders
    assert again <= sum(held)
    # The test is valid only if kills interrupted tasks.
    assert sum(map(bool, held)) >= 2
    doctor = crawlcw("doctor", "orders", "--ledger", ledger_url)
    assert doctor.returncode == 0, doctor.stdout
    print(f"{len(held)} kills, {sum(held)} orders were held, {again} were charged again")
