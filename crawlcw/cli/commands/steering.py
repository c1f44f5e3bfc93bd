"""`crawlcw pause`, `resume`, `set` and `stop`: control a spider's crawls through its ledger."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import anyio
import click

from crawlcw.cli import options
from crawlcw.cli.exit_codes import OK, STILL_AT_WORK
from crawlcw.cli.ledger_option import Subject, ledger_command, run_command
from crawlcw.cli.numbers import counted
from crawlcw.crawl.control import ADJUSTABLE, FOLLOWED_WITHIN, Control, check_changes
from crawlcw.engine.workers import is_dead
from crawlcw.errors import UsageError
from crawlcw.ledger.protocol import Ledger
from crawlcw.model.durations import format_duration, iso_time
from crawlcw.model.sanitize import printable

#: A worker without a heartbeat for this time counts as dead. Workers send a heartbeat every 5 s.
_SILENT = timedelta(seconds=30)
_POLL_EVERY = 0.25
_NO_CRAWL = ", not a crawl: "


@ledger_command("pause")
@options.json_option
async def pause(subject: Subject, *, as_json: bool) -> None:
    """Pause the crawls of SPIDER, on all machines, until `crawlcw resume`.

    Current requests finish, all other tasks are released, and the processes wait. A crawl that
    starts during the pause waits until the end of the pause.
    """
    advice = f"{_NO_CRAWL}SIGTERM ends its workers, and `crawlcw work FILE` resumes"
    async with subject.opened(crawls_only=advice) as ledger:
        earlier_pause = Control.of(await ledger.notes.control()).paused
        paused = iso_time(earlier_pause or ledger.now())
        if earlier_pause is None:
            await ledger.notes.set_control({"paused": paused})
        workers = await _at_work(ledger)
    if as_json:
        click.echo(json.dumps({"spider": subject.name, "paused": paused, "workers": workers}))
        return
    already_note = "" if earlier_pause is None else " already"
    click.echo(f"{subject.name} is paused{already_note}: {_follow_note(workers)}")


@ledger_command("resume")
@options.json_option
async def resume(subject: Subject, *, as_json: bool) -> None:
    """Resume the crawls of SPIDER after `crawlcw pause`."""
    name = subject.name
    advice = f"{_NO_CRAWL}`crawlcw work FILE` works on its tasks"
    async with subject.opened(crawls_only=advice) as ledger:
        was_paused = Control.of(await ledger.notes.control()).paused is not None
        workers = await _record_control(ledger, {"paused": None})
    if as_json:
        fields = {"spider": name, "paused": None, "was_paused": was_paused, "workers": workers}
        click.echo(json.dumps(fields))
    elif not was_paused:
        click.echo(f"{name} is not paused")
    elif workers:
        click.echo(f"{name} is resumed: {_follow_note(workers)}")
    else:
        run = run_command(subject.reference) or "the next run"
        click.echo(f"{name} is no longer paused: {run} continues the crawl")


@ledger_command("set")
@click.argument("assignments", nargs=-1, metavar="[NAME=VALUE]...")
@click.option("--reset", is_flag=True, help="Undo all changes.")
@options.json_option
async def set_(
    subject: Subject, *, assignments: tuple[str, ...], reset: bool, as_json: bool
) -> None:
    """Change settings of the crawls of SPIDER while they run, or show the changes.

    NAME is concurrency, delay or per_host_concurrency; NAME= resets the setting. The change applies
    to running workers within a second, and to crawls that start later. The command does not change
    the spider's `limits`, which are limits of single hosts.
    """
    changes = _changes(assignments)
    if reset:
        if changes:
            raise UsageError("--reset undoes all changes: give it alone")
        changes = dict.fromkeys(ADJUSTABLE)
    advice = (
        f"{_NO_CRAWL}{options.command_line('policy', subject.name)} shows and changes its settings"
    )
    async with subject.opened(crawls_only=advice) as ledger:
        workers = await _record_control(ledger, changes) if changes else 0
        control = Control.of(await ledger.notes.control())
    if as_json:
        click.echo(json.dumps({"spider": subject.name, **control.fields()}))
        return
    settings_text = " ".join(f"{name}={value}" for name, value in control.settings.items())
    effect = f": {_follow_note(workers)}" if changes else ""
    if changes and not workers:
        effect += "; crawls that start later follow the change"
    click.echo(
        f"{subject.name}: {printable(settings_text) or 'no changes; crawls use their own'}{effect}"
    )


def _changes(assignments: Sequence[str]) -> dict[str, str | None]:
    """Return the new value of each setting; the value None resets a setting."""
    changes = {name: value or None for name, value in options.pairs(assignments).items()}
    check_changes(changes)
    return changes


@ledger_command("stop")
@click.option("--wait", is_flag=True, help="Wait until the workers have ended.")
@options.duration_option(
    "--timeout",
    "limit",
    default="60s",
    about="Maximum time of --wait; after it the exit code is 75 if a worker still runs.",
)
@options.json_option
async def stop(subject: Subject, *, wait: bool, limit: timedelta, as_json: bool) -> int:
    """End the running crawls of SPIDER gracefully, on all machines.

    Current requests finish within the crawl's `grace`, and all other tasks are released. `crawlcw
    run SPIDER` resumes the crawl. A worker that was killed on another machine counts as running for
    30 s.
    """
    name = subject.name
    async with subject.opened(crawls_only=f"{_NO_CRAWL}SIGTERM ends its workers") as ledger:
        stopped_at = ledger.now()
        workers = remaining = await _record_control(ledger, {"stopped": iso_time(stopped_at)})
        if wait:
            remaining = await _wait_for_end(ledger, stopped_at, limit)
    if as_json:
        fields = {"spider": name, "stopped": iso_time(stopped_at), "workers": workers}
        click.echo(json.dumps({**fields, "remaining": remaining} if wait else fields))
    elif not workers:
        click.echo(f"no worker of {name} is at work")
    elif not wait:
        click.echo(
            f"{name} is stopped: {counted(workers, 'worker')} will end within "
            f"{FOLLOWED_WITHIN:g} s and the time of current requests"
        )
    elif remaining:
        verb = "is" if remaining == 1 else "are"
        click.echo(
            f"{counted(remaining, 'worker')} of {name} {verb} still at work after "
            f"{format_duration(limit)}: {options.command_line('stats', name)} lists them"
        )
    else:
        click.echo(f"{name} is stopped: {counted(workers, 'worker')} ended")
    return STILL_AT_WORK if wait and remaining else OK


async def _wait_for_end(ledger: Ledger, stopped_at: datetime, limit: timedelta) -> int:
    """Wait for the end of workers that started before *stopped_at*; return how many still run."""
    with anyio.move_on_after(limit.total_seconds()):
        while await _at_work(ledger, started_by=stopped_at):  # noqa: ASYNC110  # poll the ledger
            await anyio.sleep(_POLL_EVERY)
    return await _at_work(ledger, started_by=stopped_at)


async def _record_control(ledger: Ledger, control: Mapping[str, Any]) -> int:
    """Record an order (*control*) to the crawls of a ledger; return the number of live workers."""
    await ledger.notes.set_control(control)
    return await _at_work(ledger)


async def _at_work(ledger: Ledger, *, started_by: datetime | None = None) -> int:
    """Return the number of live workers, without workers that started after *started_by*."""
    now = ledger.now()
    return sum(
        not is_dead(worker)
        and now - worker.heartbeat < _SILENT
        and (started_by is None or worker.started <= started_by)
        for worker in await ledger.workers.all()
    )


def _follow_note(workers: int) -> str:
    """Return a text that says how many workers will follow a change, and within which time."""
    if not workers:
        return "no worker is at work"
    follow = "follows" if workers == 1 else "follow"
    return f"{counted(workers, 'worker')} {follow} within {FOLLOWED_WITHIN:g} s"
