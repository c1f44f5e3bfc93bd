"""Commands that change chosen tasks: `retry-failed`, `recrawl`, `ignore`, `purge`, `reset`.

Tasks that live workers hold are left alone; orphaned leases end first.
"""

from collections.abc import Awaitable, Callable, Collection, Coroutine
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import wraps
from typing import Any

import click

from crawlcw.cli.ledger_option import Subject, ledger_command, run_command
from crawlcw.cli.numbers import counted
from crawlcw.cli.options import confirm, duration_option, pasted, yes_option
from crawlcw.cli.selection import (
    UNHELD,
    Selection,
    any_reason,
    dry_run_option,
    from_now,
    host_of,
    selection_options,
    task_of,
    tell_count,
)
from crawlcw.engine.workers import dead_workers, reap_dead_workers
from crawlcw.errors import FAILURE_REASONS, POLICY_REASONS, Reason, UsageError
from crawlcw.ledger.protocol import Count, Ledger, TaskFilter
from crawlcw.model.durations import format_duration
from crawlcw.model.task import Status
from crawlcw.model.transitions import REOPEN, RETRY, REVISIT, WITHDRAW
from crawlcw.tracking import keys as tracking_keys

#: Changes the chosen tasks of a ledger; returns their number.
Change = Callable[[Ledger, TaskFilter], Awaitable[int]]
_HELD = (Status.PROCESSING,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The options' values: the tasks of some keys, or those of a selection."""

    subject: Subject
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
            which = f"{self.subject.name}{self.selection.which}"
            confirm(question.format(which), yes=self.yes)

    async def count(self, statuses: Collection[Status]) -> tuple[Count, int]:
        """Return the numbers of tasks that a change would affect, and would leave alone.

        It affects tasks with these *statuses* and orphaned leases. Nothing is written.
        """
        async with self.subject.opened() as ledger:
            chosen = self._filter(ledger)
            count = await ledger.queries.count(chosen.among(statuses))
            free = await _orphaned_number(ledger, chosen)
            return count + Count(number=free), await _held_number(ledger, chosen) - free

    async def change(self, change: Change) -> tuple[Count, int]:
        """Change the tasks; return their number, and that of those which workers hold."""
        async with self.subject.opened() as ledger:
            await reap_dead_workers(ledger)
            # Tasks that change from now on are left alone.
            chosen = replace(self._filter(ledger), until=from_now(ledger))
            return Count(number=await change(ledger, chosen)), await _held_number(ledger, chosen)

    async def run(self, change: Change, statuses: Collection[Status], what: str) -> None:
        """Count or change the tasks, and print the number of those that are *what* now."""
        count, at_work = await (self.count(statuses) if self.dry_run else self.change(change))
        of = f" of {len(set(self.keys)):,}" if self.keys else ""
        self.tell(count, at_work, f"{count}{of} {'would be ' if self.dry_run else ''}{what}")

    def tell(self, count: Count, at_work: int, said: str) -> None:
        """Print the numbers, see `tell_count`."""
        tell_count(count, said, dry_run=self.dry_run, as_json=self.as_json, at_work=at_work)

    def _filter(self, ledger: Ledger) -> TaskFilter:
        if self.keys:
            return TaskFilter(ids={task_of(ledger, key) for key in self.keys})
        return self.selection.filter(ledger)


def _choice_command(
    name: str, *, statuses: Collection[Status] = UNHELD, everything: str | None = None
) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], click.Command]:
    """Return a decorator that makes a command of a function that takes a `Choice`.

    *everything* is the help of `--all`; None: no such option.
    """

    def made(function: Callable[..., Coroutine[Any, Any, None]]) -> click.Command:
        @wraps(function)
        def chosen(subject: Subject, **given: Any) -> Coroutine[Any, Any, None]:
            values = {each: given.pop(each) for each in Choice.__slots__ if each in given}
            return function(Choice(subject=subject, **values), **given)

        added = selection_options(statuses=statuses)(dry_run_option(yes_option(chosen)))
        if everything is not None:
            added = click.option("--all", "everything", is_flag=True, help=everything)(added)
        keys = click.argument("keys", nargs=-1, metavar="[KEY...]")
        return ledger_command(name, argument="name")(keys(added))

    return made


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


@_choice_command("ignore", statuses=WITHDRAW.from_statuses, everything="All waiting tasks.")
async def ignore(choice: Choice) -> None:
    """Withdraw waiting tasks of NAME, a use case or a spider.

    KEY is a task's key, or its URL in a crawl. The options choose the tasks that
    match all of them. Tasks that are done, or held by a worker, stay. `crawlcw reset`
    brings withdrawn tasks back.
    """
    choice.check()
    choice.confirm("Withdraw all waiting tasks of {}?")

    async def withdraw(ledger: Ledger, chosen: TaskFilter) -> int:
        return await ledger.admin.withdraw(chosen, reason=Reason.WITHDRAWN)

    await choice.run(withdraw, WITHDRAW.from_statuses, "withdrawn")


@_choice_command("purge")
async def purge(choice: Choice) -> None:
    """Delete tasks of NAME, a use case or a spider, with their items, for good.

    KEY is a task's key, or its URL in a crawl. The options choose the tasks that
    match all of them. Tasks held by a worker stay. A deleted page is unknown: the
    next link adds it again, and the next run adds start URLs again. `crawlcw drop`
    deletes everything.
    """
    choice.check()
    count, at_work = await choice.count(UNHELD)
    if not choice.dry_run:
        which = f"{counted(count, 'task')} of {choice.subject.name}"
        confirm(f"Delete {which} with their items, for good?", yes=choice.yes)
        count, at_work = await choice.change(_purge)
    said = f"{counted(count, 'task')} {'would be ' if choice.dry_run else ''}deleted"
    choice.tell(count, at_work, said)


async def _purge(ledger: Ledger, chosen: TaskFilter) -> int:
    number = await ledger.admin.purge(chosen.among(UNHELD))
    orphaned = replace(chosen.among(_HELD), due_by=ledger.now())
    return number + (await ledger.admin.purge(orphaned) if orphaned.statuses else 0)


@_choice_command("reset", everything="All tasks.")
@click.option("--sessions", is_flag=True, help="Forget the sessions of a spider: log in again.")
@click.option("--state", is_flag=True, help="Forget the `self.state` of a spider.")
@click.option("--stage", metavar="S", help="Start again in this stage of a use case.")
async def reset(choice: Choice, *, sessions: bool, state: bool, stage: str | None) -> None:
    """Set tasks of NAME, a use case or a spider, to todo as if never tried, even finished ones.

    KEY is a task's key, or its URL in a crawl. The options choose the tasks that
    match all of them. Tasks held by a worker stay. A task of a use case keeps its
    stage, unless --stage names another one, and its data. For use cases, --host means
    the stage.
    """
    if stage is not None:
        tracking_keys.stage(stage)
    if sessions or state:
        if choice.is_given or choice.dry_run or stage is not None:
            option = "--sessions" if sessions else "--state"
            raise UsageError(f"{option} does not select tasks: give it alone")
        await _forget(choice, sessions=sessions, state=state)
        return
    choice.check()
    choice.confirm("Make all tasks of {} todo again?")
    if stage is not None:
        async with choice.subject.opened() as ledger:
            if not ledger.kind.tracked:
                name = choice.subject.name
                raise UsageError(f"{name} is a spider: its tasks have no stages: leave out --stage")

    async def reopen(ledger: Ledger, chosen: TaskFilter) -> int:
        return await ledger.admin.reopen(chosen, stage=stage, anew=True)

    await choice.run(reopen, REOPEN.from_statuses, "todo again")


async def _forget(choice: Choice, *, sessions: bool, state: bool) -> None:
    if sessions:
        confirm(f"Forget all sessions of {choice.subject.name}?", yes=choice.yes)
        async with choice.subject.opened() as ledger:
            count = await ledger.sessions.forget()
        click.echo(f"{counted(count, 'session')} forgotten")
    if state:
        confirm(f"Forget the state of {choice.subject.name}?", yes=choice.yes)
        async with choice.subject.opened() as ledger:
            was_there = await ledger.spider_state.forget()
        click.echo("the state is forgotten" if was_there else "there was no state")


def _failure_reason(text: str) -> Reason:
    if text in POLICY_REASONS:
        raise UsageError(
            f"{text} is not a failure: such tasks are unwanted, and another attempt would have "
            "the same result; change the spider or its settings"
        )
    return any_reason(text, FAILURE_REASONS)


@ledger_command("retry-failed")
@selection_options(statuses=RETRY.from_statuses, reason=_failure_reason)
@dry_run_option
async def retry_failed(
    subject: Subject, *, selection: Selection, dry_run: bool, as_json: bool
) -> None:
    """Set failed tasks of SPIDER to todo again, as if never tried.

    SPIDER is as for `crawlcw run`, or the name of a use case. Failed tasks are those
    that wait for another attempt and those given up, but not unwanted ones
    (robots.txt, out of scope ...). For use cases, --host means the stage.
    """
    async with subject.opened() as ledger:
        chosen = selection.filter(ledger)
        if dry_run:
            count = await ledger.admin.count_failed(chosen)
        else:
            count = Count(number=await ledger.admin.retry_failed(chosen))
        tracked = ledger.kind.tracked
    # A use case's tasks may have other workers than `crawlcw work`.
    run = "" if tracked else subject.said_as
    _tell_again(count, "task", "tried", run=run, dry_run=dry_run, as_json=as_json)


@ledger_command("recrawl")
@click.argument("urls", nargs=-1, metavar="[URL...]")
@duration_option("--older-than", about="Only pages visited longer ago: 12h, 7d ...")
@selection_options(statuses=REVISIT.from_statuses)
@dry_run_option
@yes_option
async def recrawl(
    subject: Subject,
    *,
    urls: tuple[str, ...],
    older_than: timedelta | None,
    selection: Selection,
    dry_run: bool,
    as_json: bool,
    yes: bool,
) -> None:
    """Let the next run visit the finished pages of SPIDER again, or only the given URLs.

    The requests are conditional: a page that has not changed since its last visit
    keeps its items and is not parsed; otherwise the new items replace the old ones.
    To parse all pages again after a change of the spider, use `crawlcw reset`. With
    --status ignored, or a --reason, it applies to ignored pages instead of finished
    ones.
    """
    if selection.host is not None:
        selection = replace(selection, host=host_of(selection.host))
    # Only ignored pages have a reason.
    usual = Status.FINISHED if selection.reason is None else Status.IGNORED
    statuses = selection.statuses or (usual,)
    instead = f"{pasted('reset', subject.name, '--all')} starts them again"
    not_pages = f": its tasks are not pages; {instead}"
    async with subject.opened(crawls_only=not_pages) as ledger:
        if not urls and not dry_run:
            when = ""
            if older_than is not None:
                when = f" that were visited more than {format_duration(older_than)} ago"
            finished = " finished" if statuses == (Status.FINISHED,) else ""
            pages = f"all{finished} pages of {subject.name}{selection.which}{when}"
            confirm(f"Visit {pages} again?", yes=yes)
        now = None if dry_run else from_now(ledger)
        until = now if older_than is None else ledger.now() - older_than
        chosen = selection.filter(ledger, until=until).among(statuses)
        # The other options narrow the named URLs.
        chosen = replace(chosen, ids={task_of(ledger, url) for url in urls} or None)
        if dry_run:
            count = await ledger.queries.count(chosen)
        else:
            count = Count(number=await ledger.admin.revisit(chosen))
    _tell_again(count, "page", "visited", run=subject.said_as, dry_run=dry_run, as_json=as_json)


def _tell_again(
    count: Count, thing: str, done: str, *, run: str, dry_run: bool, as_json: bool
) -> None:
    """Print the number of tasks that will be *done* again, by a run of the spider *run*."""
    how = ""
    if run and count.number and not dry_run:
        how = f" by {run_command(run) or 'the next run'}"
    said = f"{counted(count, thing)} {'would' if dry_run else 'will'} be {done} again{how}"
    tell_count(count, said, dry_run=dry_run, as_json=as_json)
