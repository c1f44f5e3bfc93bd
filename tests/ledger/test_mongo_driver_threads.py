"""Exit of a process without waiting for stopped threads of MongoDB's driver."""

import threading

import pytest
from pymongo.periodic_executor import PeriodicExecutor

from crawlcw.ledger.mongo import drivers

pytestmark = pytest.mark.quick


def sleeper(name: str, *, seconds: float) -> tuple[PeriodicExecutor, threading.Thread]:
    """A thread like those that monitor a server, asleep for some seconds."""
    executor = PeriodicExecutor(seconds, seconds, target=lambda: True, name=name)
    executor.open()
    return executor, next(each for each in threading.enumerate() if each.name == name)


def test_a_thread_that_is_told_to_stop_is_not_waited_for():
    executor, thread = sleeper("long", seconds=30)
    executor.close()

    drivers.let_go_of_stopped()
    executor.join()

    assert thread.is_alive()


def test_a_thread_of_an_open_client_is_waited_for():
    executor, thread = sleeper("short", seconds=0.05)

    drivers.let_go_of_stopped()
    executor.close()
    executor.join()

    assert not thread.is_alive()
