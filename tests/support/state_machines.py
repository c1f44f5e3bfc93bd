"""State machines of Hypothesis on a ledger of any store, a new one for each example."""

import asyncio
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.support import ledgers
from tests.support.ledgers import LedgerFactory

#: Makes a store, and pushes its clean-up on the stack.
Stores = Callable[[ExitStack], LedgerFactory]


class StoreMachine(RuleBasedStateMachine):
    """State machine with a store, on which it runs coroutines."""

    stores: ClassVar[Stores]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self._ends = ExitStack()
        self.store = type(self).stores(self._ends)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(coroutine)

    def teardown(self) -> None:
        self.run(self.store.close())
        self.runner.close()
        self._ends.close()


def sqlite(*, tracked: bool = False) -> Stores:
    def made(ends: ExitStack) -> LedgerFactory:
        folder = ends.enter_context(tempfile.TemporaryDirectory(prefix="crawlcw-test-"))
        return ledgers.on_sqlite(Path(folder), tracked=tracked)

    return made


def mongomock(_: ExitStack) -> LedgerFactory:
    return ledgers.on_mongomock()


def mongodb(uri: str, database: str, **options: Any) -> Stores:
    runs = count()

    def made(ends: ExitStack) -> LedgerFactory:
        # A database for each example: dropping one waits for its open cursors.
        name = f"{database}_{next(runs)}"
        ends.callback(ledgers.drop_database, uri, name)
        return ledgers.on_mongodb(uri, name, **options)

    return made


def postgres(url: str) -> Stores:
    def made(ends: ExitStack) -> LedgerFactory:
        ends.callback(ledgers.empty_postgres, url)
        return ledgers.on_postgres(url)

    return made


def explore(machine: type[StoreMachine], stores: Stores, *, examples: int, steps: int) -> None:
    """Run *examples* examples of a machine's steps, the same ones each time."""
    run_state_machine_as_test(
        type(machine.__name__, (machine,), {"stores": staticmethod(stores)}),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
