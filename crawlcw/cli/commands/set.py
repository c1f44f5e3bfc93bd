"""`crawlcw set`: change settings of a spider's running crawls."""

import json
from collections.abc import Mapping, Sequence

import click

from crawlcw.cli import ledger_option, loading, loop, options, steering
from crawlcw.cli.terminal import logs
from crawlcw.crawl.control import ADJUSTABLE, Control, check, secure_descriptors
from crawlcw.errors import UsageError
from crawlcw.model.sanitize import printable


@click.command("set")
@click.argument("spider")
@click.argument("assignments", nargs=-1, metavar="[NAME=VALUE]...")
@ledger_option.ledger_option
@click.option("--reset", is_flag=True, help="Undo all changes.")
@options.json_option
@logs.log_option
def command(
    *,
    spider: str,
    assignments: tuple[str, ...],
    ledger_url: str,
    reset: bool,
    as_json: bool,
) -> None:
    """Change settings of the crawls of SPIDER while they run, or show the changes.

    NAME is concurrency, delay or per_host_concurrency; NAME= undoes its change. All
    running workers follow, and crawls that start later. The spider's `limits` of
    single hosts stay.
    """
    given = _given(assignments)
    if reset and given:
        raise UsageError("--reset undoes all changes: give it alone")
    name = loading.name_of(spider)
    changes = dict.fromkeys(ADJUSTABLE) if reset else given
    control, workers = loop.run(_set(name, ledger_url, changes))
    if as_json:
        click.echo(json.dumps({"spider": name, **control.fields()}))
        return
    said = " ".join(f"{each}={value}" for each, value in control.settings.items())
    followed = f": {steering.followed_by(workers)}" if changes else ""
    click.echo(f"{name}: {printable(said) or 'no changes; crawls use their own'}{followed}")


def _given(assignments: Sequence[str]) -> dict[str, str | None]:
    """Return the settings by name; None: undo its change."""
    given: dict[str, str | None] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"write NAME=VALUE, not {text!r}")
        given[name.strip()] = value.strip() or None
    check({name: "1" if value is None else value for name, value in given.items()})
    if concurrency := given.get("concurrency"):
        secure_descriptors(int(concurrency))
    return given


async def _set(
    name: str, ledger_url: str, changes: Mapping[str, str | None]
) -> tuple[Control, int]:
    instead = f"`crawlcw policy {name}` shows and changes its settings"
    async with steering.crawls(ledger_url, name, instead=instead) as ledger:
        workers = await steering.tell(ledger, changes) if changes else 0
        return Control.of(await ledger.notes.control()), workers
