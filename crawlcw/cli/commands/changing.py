"""Define the commands that change tasks: `retry-failed`, `recrawl`, `ignore`, `purge`, `reset`.

The commands first end the leases of dead workers, and skip tasks that live workers have leased.
"""

from collections.abc import Awaitable, Callable, Collection, Coroutine
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import wraps
from typing import Any

import click

from crawlcw.cli.ledger_option import Subject, ledger_command, run_command
from crawlcw.cli.numbers import counted
from crawlcw.cli.options import command_line, confirm, duration_option, yes_option
from crawlcw.cli.selection import (
    UNLEASED,
    Selection,
    any_reason,
    dry_run_option,
    from_now,
    host_of,
    ids_of,
    print_count,
    selection_options,
)
from crawlcw.engine.workers import dead_workers, reap_dead_workers
from crawlcw.errors import FAILURE_REASONS, POLICY_REASONS, Reason, UsageError
from crawlcw.ledger.protocol import Count, Ledger, TaskFilter
from crawlcw.model.durations import format_duration
from crawlcw.model.task import Status
from crawlcw.model.transitions import REOPEN, RETRY, REVISIT, WITHDRAW
from crawlcw.tracking import keys as tracking_keys

#: A function that changes the chosen tasks of a ledger, and returns the number of changed tasks.
Change = Callable[[Ledger, TaskFilter], Awaitable[int]]
_LEASED = (Status.PROCESSING,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The tasks that the user chose: by keys, or by options that filter tasks."""

    subject: Subject
    keys: tuple[str, ...]
    selection: Selection
    everything: bool | None = None  #: whether `--all` was given; None if the command has no `--all`
    dry_run: bool
    as_json: bool
    yes: bool

    @property
    def is_given(self) -> bool:
        """Whether the user chose tasks: by keys, by options or by `--all`."""
        return bool(self.keys or self.selection or self.everything)

    def check(self) -> None:
        """Raise `UsageError` unless the user gave exactly one of keys, options and `--all`."""
        if sum([bool(self.keys), bool(self.selection), bool(self.everything)]) != 1:
            raise UsageError(
                "choose the tasks: either KEYs, or --host, --url-prefix, --callback, --reason, "
                f"--since and --status{'' if self.everything is None else ', or --all'}"
            )

    def confirm(self, question: str) -> None:
        """Ask for confirmation if there are no keys; `{}` in *question* stands for the tasks."""
        if not self.keys and not self.dry_run:
            task_text = f"{self.subject.name}{self.selection.condition}"
            confirm(question.format(task_text), yes=self.yes)

    async def count(self, statuses: Collection[Status]) -> tuple[Count, int, int]:
        """Count the tasks that would change, the leased tasks of live workers, and the chosen ids.

        A change affects tasks with these *statuses*, and the leased tasks of dead workers. `count`
        writes nothing.
        """
        async with self.subject.opened() as ledger:
            task_filter = await self._filter(ledger)
            count = await ledger.queries.count(task_filter.with_statuses(statuses))
            orphans = await _orphaned_count(ledger, task_filter)
            leased_count = await _leased_count(ledger, task_filter)
            return count + Count(number=orphans), leased_count - orphans, len(task_filter.ids or ())

    async def change(self, change: Change) -> tuple[Count, int, int]:
        """Change the chosen tasks; return how many changed, how many are leased, how many ids."""
        async with self.subject.opened() as ledger:
            await reap_dead_workers(ledger)
            # Do not change a task that another process changes after this moment.
            task_filter = replace(await self._filter(ledger), changed_before=from_now(ledger))
            count = Count(number=await change(ledger, task_filter))
            return count, await _leased_count(ledger, task_filter), len(task_filter.ids or ())

    async def run(self, change: Change, statuses: Collection[Status], participle: str) -> None:
        """Change or count the chosen tasks; print number and *participle*, such as `7 deleted`."""
        count, at_work, total = await (
            self.count(statuses) if self.dry_run else self.change(change)
        )
        total_note = f" of {total:,}" if self.keys else ""
        self.print_count(
            count, at_work, f"{count}{total_note} {'would be ' if self.dry_run else ''}{participle}"
        )

    def print_count(self, count: Count, at_work: int, message: str) -> None:
        """Print the number of affected tasks as text or JSON, as the command's options say."""
        print_count(count, message, dry_run=self.dry_run, as_json=self.as_json, at_work=at_work)

    async def _filter(self, ledger: Ledger) -> TaskFilter:
        if self.keys:
            return TaskFilter(ids=set(await ids_of(ledger, *self.keys)))
        return self.selection.filter(ledger)


def _choice_command(
    name: str, *, statuses: Collection[Status] = UNLEASED, everything: str | None = None
) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], click.Command]:
    """Return a decorator that makes a command from a function that takes a `Choice`.

    *everything* is the help text of `--all`, or None for a command without `--all`.
    """

    def decorate(function: Callable[..., Coroutine[Any, Any, None]]) -> click.Command:
        @wraps(function)
        def wrapper(subject: Subject, **option_values: Any) -> Coroutine[Any, Any, None]:
            values = {
                field_name: option_values.pop(field_name)
                for field_name in Choice.__slots__
                if field_name in option_values
            }
            return function(Choice(subject=subject, **values), **option_values)

        with_options = selection_options(statuses=statuses)(dry_run_option(yes_option(wrapper)))
        if everything is not None:
            with_options = click.option("--all", "everything", is_flag=True, help=everything)(
                with_options
            )
        keys = click.argument("keys", nargs=-1, metavar="[KEY...]")
        return ledger_command(name, argument="name")(keys(with_options))

    return decorate


async def _leased_count(ledger: Ledger, task_filter: TaskFilter) -> int:
    leased_filter = task_filter.with_statuses(_LEASED)
    return (await ledger.queries.count(leased_filter)).number if leased_filter.statuses else 0


async def _orphaned_count(ledger: Ledger, task_filter: TaskFilter) -> int:
    """Return the number of orphaned tasks, whose leases have expired or whose workers are dead."""
    leased_filter = task_filter.with_statuses(_LEASED)
    if not leased_filter.statuses:
        return 0
    now = ledger.now()
    expired_count = await ledger.queries.count(replace(leased_filter, due_by=now))
    ids = {
        lease.task.id
        for worker in await dead_workers(ledger)
        for lease in await ledger.leases.leases_of(worker.name)
        if lease.expires > now and (task_filter.ids is None or lease.task.id in task_filter.ids)
    }
    dead_count = (
        await ledger.queries.count(replace(leased_filter, ids=ids)) if ids else Count(number=0)
    )
    return (expired_count + dead_count).number


@_choice_command("ignore", statuses=WITHDRAW.from_statuses, everything="All waiting tasks.")
async def ignore(choice: Choice) -> None:
    """Withdraw waiting tasks of NAME, a use case or a spider.

    KEY is the key of a task, or the URL of a page. Tasks must match all given options. The command
    changes no finished task, and no task that a worker has leased. `crawlcw reset` brings withdrawn
    tasks back.
    """
    choice.check()
    choice.confirm("Withdraw all waiting tasks of {}?")

    async def withdraw(ledger: Ledger, task_filter: TaskFilter) -> int:
        return await ledger.admin.withdraw(task_filter, reason=Reason.WITHDRAWN)

    await choice.run(withdraw, WITHDRAW.from_statuses, "withdrawn")


@_choice_command("purge")
async def purge(choice: Choice) -> None:
    """Delete tasks of NAME and the items of these tasks. No command restores them.

    NAME is a use case or a spider. KEY is the key of a task, or the URL of a page. Tasks must match
    all options. The command does not delete tasks that a worker has leased. A crawl adds a deleted
    page again if it finds a link to the page. The next run also adds the start URLs again. `crawlcw
    drop` deletes everything.
    """
    choice.check()
    count, at_work, _ = await choice.count(UNLEASED)
    if not choice.dry_run:
        task_text = f"{counted(count, 'task')} of {choice.subject.name}"
        confirm(f"Delete {task_text} with their items, for good?", yes=choice.yes)
        count, at_work, _ = await choice.change(_purge)
    message = f"{counted(count, 'task')} {'would be ' if choice.dry_run else ''}deleted"
    choice.print_count(count, at_work, message)


async def _purge(ledger: Ledger, task_filter: TaskFilter) -> int:
    number = await ledger.admin.purge(task_filter.with_statuses(UNLEASED))
    orphaned_filter = replace(task_filter.with_statuses(_LEASED), due_by=ledger.now())
    return number + (await ledger.admin.purge(orphaned_filter) if orphaned_filter.statuses else 0)


@_choice_command("reset", everything="All tasks.")
@click.option("--sessions", is_flag=True, help="Delete a spider's login sessions.")
@click.option("--state", is_flag=True, help="Forget the `self.state` of a spider.")
@click.option("--stage", metavar="S", help="Stage of a use case in which the tasks start again.")
async def reset(choice: Choice, *, sessions: bool, state: bool, stage: str | None) -> None:
    """Set tasks of NAME (a use case or a spider) to todo, as if they were never tried.

    KEY is the key of a task, or the URL of a page. Tasks must match all given options. Tasks that a
    worker has leased do not change. A task of a use case keeps its data and its stage, unless
    --stage names a new stage. For use cases, --host means the stage.
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

    async def reopen(ledger: Ledger, task_filter: TaskFilter) -> int:
        return await ledger.admin.reopen(task_filter, stage=stage, deletes_results=True)

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
            had_state = await ledger.spider_state.forget()
        click.echo("the state is forgotten" if had_state else "there was no state")


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
    """Set failed tasks of SPIDER to todo again, as if they were never tried.

    SPIDER names a spider as in `crawlcw run`, or a use case. Failed tasks are the tasks that wait
    for another attempt, and the tasks that a crawl has given up. Tasks that the crawl refused
    (robots.txt, out of scope ...) do not change. For use cases, --host means the stage.
    """
    async with subject.opened() as ledger:
        task_filter = selection.filter(ledger)
        if dry_run:
            count = await ledger.admin.count_failed(task_filter)
        else:
            count = Count(number=await ledger.admin.retry_failed(task_filter))
        is_tracked = ledger.kind.tracked
    # Print no run command for a use case, because its worker may be a program of the user.
    run = "" if is_tracked else subject.reference
    _print_reopened(count, "task", "tried", run=run, dry_run=dry_run, as_json=as_json)


@ledger_command("recrawl")
@click.argument("urls", nargs=-1, metavar="[URL...]")
@duration_option("--older-than", about="Only pages whose last visit is older than 12h, 7d ...")
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
    """Let the next run visit all finished pages of SPIDER (or the pages of given URLs) again.

    The crawl sends conditional requests (If-None-Match), so it parses only pages that changed after
    the last visit. It replaces the items of these pages. `crawlcw reset SPIDER --all` lets it parse
    all pages again, for example after a change of the spider. With `--status ignored` or with
    --reason, the command chooses ignored pages, not finished pages.
    """
    if selection.host is not None:
        selection = replace(selection, host=host_of(selection.host))
    # Only ignored pages have a reason.
    default_status = Status.FINISHED if selection.reason is None else Status.IGNORED
    statuses = selection.statuses or (default_status,)
    advice = f"{command_line('reset', subject.name, '--all')} starts them again"
    message = f": its tasks are not pages; {advice}"
    async with subject.opened(crawls_only=message) as ledger:
        if not urls and not dry_run:
            age_note = ""
            if older_than is not None:
                age_note = f" that were visited more than {format_duration(older_than)} ago"
            finished_note = " finished" if statuses == (Status.FINISHED,) else ""
            pages = f"all{finished_note} pages of {subject.name}{selection.condition}{age_note}"
            confirm(f"Visit {pages} again?", yes=yes)
        now = None if dry_run else from_now(ledger)
        changed_before = now if older_than is None else ledger.now() - older_than
        task_filter = selection.filter(ledger, changed_before=changed_before).with_statuses(
            statuses
        )
        # The options restrict the URLs that the user named.
        task_filter = replace(task_filter, ids=await ids_of(ledger, *urls) or None)
        if dry_run:
            count = await ledger.queries.count(task_filter)
        else:
            count = Count(number=await ledger.admin.revisit(task_filter))
    _print_reopened(
        count, "page", "visited", run=subject.reference, dry_run=dry_run, as_json=as_json
    )


def _print_reopened(
    count: Count, noun: str, participle: str, *, run: str, dry_run: bool, as_json: bool
) -> None:
    """Print how many tasks will be tried again; *participle* may replace the word `tried`."""
    run_note = ""
    if run and count.number and not dry_run:
        run_note = f" by {run_command(run) or 'the next run'}"
    message = (
        f"{counted(count, noun)} {'would' if dry_run else 'will'} be {participle} again{run_note}"
    )
    print_count(count, message, dry_run=dry_run, as_json=as_json)
