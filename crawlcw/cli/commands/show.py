"""`crawlcw show`: the history of one task."""

from collections.abc import Iterator
from datetime import datetime
from textwrap import indent
from typing import NoReturn

import click

from crawlcw.cli import ledger_option, loading, loop, options, selecting, task_objects
from crawlcw.cli.terminal import logs
from crawlcw.crawl.link_checks import LinkChecks, Refusal
from crawlcw.dashboard.stories import pages_above, pages_ahead
from crawlcw.errors import SpiderError, UsageError
from crawlcw.feeds import escaping
from crawlcw.ledger.documents import trace_document
from crawlcw.ledger.protocol import Ledger
from crawlcw.model import values
from crawlcw.model.sanitize import printable, printable_block
from crawlcw.model.task import BlobRef, Record


@click.command("show")
@click.argument("name")
@click.argument("key", metavar="URL")
@ledger_option.ledger_option
@options.json_option
@logs.log_option
def command(*, name: str, key: str, ledger_url: str, as_json: bool) -> None:
    """Show the history of one URL of NAME: its discovery, attempts and items.

    NAME is a spider, or a use case, whose tasks have keys instead of URLs. For an
    unknown URL it shows whether a crawl would follow a link to it, as far as the
    spider's code and the ledger tell: out of scope, a trap, refused by robots.txt,
    its host given up, dropped (exit code 2).
    """
    loop.run(_show(name, key, ledger_url, as_json=as_json))


async def _show(name: str, key: str, ledger_url: str, *, as_json: bool) -> None:
    async with ledger_option.opened(ledger_url, loading.name_of(name)) as ledger:
        record = await ledger.tasks.get(selecting.task_of(ledger, key))
        if record is None:
            await _tell_why_not(name, key, ledger, as_json=as_json)
        chain = [task.url async for task in pages_above(ledger, record.task)]
        ahead = [found async for found in pages_ahead(ledger, record)]
    if as_json:
        found = task_objects.whole(record) | {"items": list(record.items)}
        if not record.task.carried:
            found["found_on"] = chain
            found["leads_to"] = [
                {"url": each.task.url, "status": each.task.status.name.lower()}
                | ({"reason": each.task.reason} if each.task.reason else {})
                for each in ahead
            ]
        click.echo(escaping.visible(values.to_json(found)))
        return
    for line in _lines(record, chain, ahead):
        click.echo(line)


def _lines(record: Record, chain: list[str], ahead: list[Record]) -> Iterator[str]:
    task = record.task
    why = f" ({task.reason})" if task.reason else ""
    yield printable(task.url, limit=2000)
    yield f"  {task.status.name.lower()}{why} since {_moment(task.update_time)}"
    yield f"  known since {_moment(task.create_time)}, priority {task.priority}"
    if task.due is not None:
        yield f"  due {_moment(task.due)}"
    if task.lock:
        yield printable(f"  held by {task.lock.partition(':')[0]}")
    if task.carried:
        yield printable(f"  stage {task.host}")
    else:
        body = f", a body of {len(task.body):,} bytes" if task.body else ""
        yield printable(f"  {task.method}{body}, for {task.callback}(), depth {task.depth}")
    for url in chain:
        yield printable(f"  found on {url}", limit=2000)
    for each in ahead:
        yield printable(f"  leads to {each.task.url}: {_came_to(each)}", limit=2000)
    if task.context and not isinstance(task.context, BlobRef):
        yield printable(f"  context {values.to_json(task.context)}", limit=2000)
    yield from _attempts(record)
    for item in record.items:
        yield f"  item {escaping.visible(values.to_json(item))}"


def _came_to(record: Record) -> str:
    """Return the status of a page that a redirect leads to, in words."""
    task = record.task
    if record.leads_to is not None:
        return "a redirect as well"
    status = task.status.name.lower()
    return f"{status} ({task.reason})" if task.reason else status


def _attempts(record: Record) -> Iterator[str]:
    for error in record.errors:
        at = _moment(error.time)
        yield printable(
            f"  attempt {error.attempt}, {at}: {error.kind}: {error.message}", limit=700
        )
        if error.traceback:
            # Indented: the exception's text could imitate a line of crawlcw.
            yield indent(printable_block(error.traceback), "    ", lambda _: True)
    response = record.response
    if response is not None:
        cut = f", cut: {response.truncated}" if response.truncated else ""
        kind = response.content_type or "no content type"
        yield printable(
            f"  answered {response.status}, {response.bytes:,} bytes{cut}, {kind}, "
            f"{response.elapsed:.3f} s"
        )
        if response.final_url != record.task.url and record.leads_to is None:
            yield printable(f"  it was at {response.final_url}", limit=2000)
    if (stored := record.task.stored) is not None:
        yield printable(
            f"  its body is in {stored.file}, {stored.length:,} bytes at {stored.offset:,}"
        )
    for each in record.trace:
        fields = {k: v for k, v in trace_document(each).items() if v is not None}
        yield printable(f"  claim {values.to_json(values.clean(fields))}", limit=700)


def _moment(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S}Z"


async def _tell_why_not(name: str, key: str, ledger: Ledger, *, as_json: bool) -> NoReturn:
    """Raise a `UsageError` with the reason why a URL is unknown; print it as JSON as well."""
    refusal, why = (
        (None, "no task has this key") if ledger.kind.tracked else await _why_not(name, key, ledger)
    )
    if as_json:
        reason = None if refusal is None else str(refusal.reason)
        found = {"url": key, "recorded": False, "refused": reason, "why": why}
        click.echo(escaping.visible(values.to_json(found)))
    raise UsageError(f"{key!r} is not recorded: {why}")


async def _why_not(name: str, key: str, ledger: Ledger) -> tuple[Refusal | None, str]:
    """Return a crawl's refusal of a link to a URL, if any, and the reason in words."""
    try:
        spider = loading.make(loading.find(name), ())
    except SpiderError:
        return None, "no parsed page links to it (the spider's code is not here to say more)"
    settings = ledger_option.settings_of(spider)
    checks = LinkChecks(spider, settings, await ledger.notes.state())
    refusal = await checks.refusal_now(key, ledger)
    if refusal is not None:
        return refusal, f"a link to it is not followed, {refusal.reason}: {refusal.why}"
    deep = ""
    if checks.max_depth is not None:
        deep = f" (up to depth {checks.max_depth:,}; deeper ones are kept as refused-depth)"
    return None, f"no parsed page links to it, but a link would be followed{deep}"
