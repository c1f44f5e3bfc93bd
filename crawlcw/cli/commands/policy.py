"""`crawlcw policy`: leases and retries of a use case's tasks."""

import json
from dataclasses import fields
from datetime import timedelta
from typing import Any

import click

from crawlcw.cli import ledger_option, loop, options
from crawlcw.cli.terminal import logs
from crawlcw.errors import UnknownNameError
from crawlcw.ledger_opening import open_tracked
from crawlcw.model.durations import format_duration
from crawlcw.tracking import Policy, Tracker, keys


@click.command("policy")
@click.argument("use_case")
@click.argument("assignments", nargs=-1, metavar="[NAME=VALUE]...")
@ledger_option.ledger_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object; durations in seconds.")
@logs.log_option
def command(*, use_case: str, assignments: tuple[str, ...], ledger_url: str, as_json: bool) -> None:
    """Show or change the settings of USE_CASE; workers follow a change within half a minute.

    The settings are in the ledger, so they apply to all workers and servers of the ledger.
    """
    changes = options.pairs(assignments)
    name = keys.use_case(use_case)
    command_line = options.command_line("set", name)
    advice = f"its settings are in its code, and {command_line} changes those of its crawls"
    with ledger_option.for_use_cases(name, instead=advice):
        policy = loop.run(_policy(name, ledger_url, changes))
    if as_json:
        values = {field.name: getattr(policy, field.name) for field in fields(Policy)}
        click.echo(json.dumps(values, default=timedelta.total_seconds))
        return
    for field in fields(Policy):
        descriptor = vars(Policy)[field.name]
        click.echo(
            f"{field.name:<16} {_value_text(getattr(policy, field.name)):<10} {descriptor.doc}"
        )


async def _policy(name: str, ledger_url: str, changes: dict[str, str]) -> Policy:
    """Change the recorded policy, and return it. If *changes* is empty, only read it."""
    if changes:
        async with Tracker.open(ledger_url, name) as tracker:
            return await tracker.configure(**changes)
    try:
        async with ledger_option.closing(open_tracked(ledger_url, name, create=False)) as ledger:
            return Policy.of(await ledger.notes.policy())
    except UnknownNameError:
        return Policy()


def _value_text(value: Any) -> str:
    return format_duration(value) if isinstance(value, timedelta) else f"{value:,}"
