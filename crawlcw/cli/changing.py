"""Commands that change chosen tasks: their options, and the walk over the tasks.

Tasks that live workers hold are left alone; orphaned leases end first.
"""

from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

import click

from crawlcw.cli import confirming, ledger_option, loading, loop, selecting
from crawlcw.cli.selection import (
    UNHELD,
    Selection,
    dry_run_option,
    from_now,
    selection_options,
    tell_count,
)
from crawlcw.cli.terminal import logs
from crawlcw.engine.workers import dead_workers, reap_dead_workers
from crawlcw.errors import UsageError
from crawlcw.ledger.protocol import Count, Ledger, TaskFilter
from crawlcw.model.task import Status

#: Changes the chosen tasks of a ledger; returns their number.
Change = Callable[[Ledger, TaskFilter], Awaitable[int]]
_HELD = (Status.PROCESSING,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The options' values: the tasks of some keys, or those of a selection."""

    name: str  #: of the spider or use case
    ledger_url: str
    keys: tuple[str, ...]
    selection: Selection
    everything: bool | None = None  #: whether `--all` was given; None: no such option
    dry_run: bool
    as_json: bool
    yes: bool

    @property
    def is_given(self) -> bool:
        """Whether tasks are chosen in any way."""
        return bool(self.keys or self.selection or self.everything)

    def check(self) -> None:
        """Raise `UsageError` unless tasks are chosen in exactly one way."""
        if sum([bool(self.keys), bool(self.selection), bool(self.everything)]) != 1:
            raise UsageError(
                "say which tasks: either KEYs, or --host, --url-prefix, --callback, --reason, "
                f"--since and --status{'' if self.everything is None else ', or --all'}"
            )

    def confirm(self, question: str) -> None:
        """Ask before a change of tasks without keys; `{}` stands for the choice."""
        if not self.keys and not self.dry_run:
            which = f"{self.name}{self.selection.which}"
            confirming.confirm(question.format(which), yes=self.yes)

    def opened(self) -> AbstractAsyncContextManager[Ledger]:
        """Open the ledger, see `ledger_option.opened`."""
        return ledger_option.opened(self.ledger_url, self.name)

    async def count(self, statuses: Collection[Status]) -> tuple[Count, int]:
        """Return the numbers of tasks that a change would affect, and would leave alone.

        It affects tasks with these *statuses* and orphaned leases. Nothing is written.
        """
        async with self.opened() as ledger:
            chosen = self._filter(ledger)
            count = await ledger.queries.count(chosen.among(statuses))
            free = await _orphaned_number(ledger, chosen)
            return count + Count(number=free), await _held_number(ledger, chosen) - free

    async def change(self, change: Change) -> tuple[Count, int]:
        """Change the tasks; return their number, and that of those which workers hold."""
        async with self.opened() as ledger:
            await reap_dead_workers(ledger)
            # Tasks that change from now on are left alone.
            chosen = replace(self._filter(ledger), until=from_now(ledger))
            return Count(number=await change(ledger, chosen)), await _held_number(ledger, chosen)

    def run(self, change: Change, statuses: Collection[Status], what: str) -> None:
        """Count or change the tasks, and print the number of those that are *what* now."""
        count, at_work = loop.run(self.count(statuses) if self.dry_run else self.change(change))
        of = f" of {len(set(self.keys)):,}" if self.keys else ""
        self.tell(count, at_work, f"{count}{of} {'would be ' if self.dry_run else ''}{what}")

    def tell(self, count: Count, at_work: int, said: str) -> None:
        """Print the numbers, see `tell_count`."""
        tell_count(count, said, dry_run=self.dry_run, as_json=self.as_json, at_work=at_work)

    def _filter(self, ledger: Ledger) -> TaskFilter:
        if self.keys:
            return TaskFilter(ids={selecting.task_of(ledger, key) for key in self.keys})
        return self.selection.filter(ledger)


def choice_options(
    *, statuses: Collection[Status] = UNHELD, everything: str | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds NAME, KEYs and the options; the command gets a `choice`.

    *everything* is the help of `--all`; None: no such option.
    """

    def add(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def chosen(name: str, **given: Any) -> None:
            options = {each: given.pop(each) for each in Choice.__slots__ if each in given}
            command(choice=Choice(name=loading.name_of(name), **options), **given)

        added = logs.log_option(chosen)
        added = confirming.yes_option(added)
        added = dry_run_option(added)
        added = selection_options(statuses=statuses)(added)
        if everything is not None:
            added = click.option("--all", "everything", is_flag=True, help=everything)(added)
        added = ledger_option.ledger_option(added)
        added = click.argument("keys", nargs=-1, metavar="[KEY...]")(added)
        return click.argument("name")(added)

    return add


async def _held_number(ledger: Ledger, chosen: TaskFilter) -> int:
    held = chosen.among(_HELD)
    return (await ledger.queries.count(held)).number if held.statuses else 0


async def _orphaned_number(ledger: Ledger, chosen: TaskFilter) -> int:
    """Return the number of orphaned tasks: their leases ran out, or their workers are dead."""
    held = chosen.among(_HELD)
    if not held.statuses:
        return 0
    now = ledger.now()
    expired = await ledger.queries.count(replace(held, due_by=now))
    ids = {
        lease.task.id
        for worker in await dead_workers(ledger)
        for lease in await ledger.leases.held(worker.name)
        if lease.expires > now and (chosen.ids is None or lease.task.id in chosen.ids)
    }
    dead = await ledger.queries.count(replace(held, ids=ids)) if ids else Count(number=0)
    return (expired + dead).number
