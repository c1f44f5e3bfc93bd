"""`crawlcw work`: work on the tasks of a use case."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial

import click

from crawlcw.cli import exposing, ledger_option, loading, loop, options, signals
from crawlcw.cli.deadline import deadline
from crawlcw.cli.exit_codes import INTERRUPTED, OK
from crawlcw.cli.terminal import logs
from crawlcw.model.counters import FinishReason
from crawlcw.model.task import Status
from crawlcw.telemetry.meter import worker_measures
from crawlcw.tracking import Tracker, UseCase, Worker, WorkReport


@click.command("work")
@click.argument("use_case", metavar="MODULE:OBJECT")
@ledger_option.ledger_option
@options.number_option(
    "--concurrency", minimum=1, default=50, about="Number of tasks to work on concurrently."
)
@options.number_option(
    "--prefetch",
    minimum=0,
    about="Number of tasks to claim ahead. Default and maximum: the value of --concurrency.",
)
@click.option("--drain", is_flag=True, help="End when all tasks are done.")
@options.duration_option(
    "--grace", default="10s", about="Time for current tasks to finish after a signal."
)
@options.duration_option(
    "--stall-timeout",
    default="60s",
    about="Time after which a blocked event loop ends the process with code 124; 0s: never.",
)
@exposing.options
@logs.level_option
@logs.format_option
@click.option("--quiet", "-q", is_flag=True, help="Print no report, only warnings.")
def command(
    *,
    use_case: str,
    ledger_url: str,
    concurrency: int,
    prefetch: int | None,
    drain: bool,
    grace: timedelta,
    stall_timeout: timedelta,
    metrics_port: int | None,
    metrics_host: str,
    log_level: str | None,
    log_format: str,
    quiet: bool,
) -> int:
    """Work on the tasks of a use case until a signal comes; --drain ends it after the last task.

    MODULE:OBJECT is a `crawlcw.tracking.UseCase`: package.module:object,
    file.py:object, or file.py if it declares only one use case. Any number of workers, on any
    machine, may work on one ledger.

    SIGINT or SIGTERM stops the worker gracefully: current tasks finish, and all other tasks are
    released. A second signal stops the worker at once.
    """
    logs.set_up(log_level or ("warning" if quiet else "info"), log_format=log_format)
    make_worker = partial(
        Worker,
        concurrency=concurrency,
        prefetch=prefetch,
        drain=drain,
        grace=grace,
        stall_timeout=stall_timeout,
    )
    metrics = exposing.address_of(host=metrics_host, port=metrics_port)
    loaded_use_case = loading.find_use_case(use_case)
    return loop.run(
        _work(loaded_use_case, ledger_url, make_worker, grace=grace, metrics=metrics, quiet=quiet)
    )


async def _work(
    use_case: UseCase,
    ledger_url: str,
    make_worker: Callable[[Tracker], Worker],
    *,
    grace: timedelta,
    metrics: exposing.Address | None,
    quiet: bool,
) -> int:
    tracker = await Tracker.open(ledger_url, use_case)
    try:
        worker = make_worker(tracker)
    except BaseException:
        await tracker.close()
        raise

    def take_measures() -> exposing.Workers:
        session = tracker.session
        measures = worker_measures(
            session.stats, in_flight=worker.in_flight, leased_tasks=len(session.leases)
        )
        return exposing.Workers(all=[measures], running={"1": measures})

    def abandon() -> int:
        worker.abandon()
        return INTERRUPTED if deadline.is_at_once else OK

    deadline.finish = abandon
    # Handle signals until the `async with` block below has ended, so that no signal interrupts the
    # release of tasks.
    with signals.stopping(worker, grace=grace, blockable=worker):
        async with (
            tracker,
            exposing.exposed(tracker.name, tracker.ledger, take_measures, metrics),
        ):
            report = await worker.run()
    if not quiet:
        click.echo(_summary(tracker.name, report))
    return INTERRUPTED if report.finish_reason == FinishReason.STOPPED_AT_ONCE else OK


def _summary(name: str, report: WorkReport) -> str:
    if report.counts is None:
        counts_text = f"not counted in time: {options.command_line('stats', name)} counts"
    else:
        numbers = (f"{report.counts[status]:,} {status.name.lower()}" for status in Status)
        counts_text = f"{name} has {', '.join(numbers)}"
    return (
        f"{report.finish_reason}: {report.succeeded:,} done, {report.failed:,} failed attempts, "
        f"{report.released:,} released here; {counts_text}"
    )
