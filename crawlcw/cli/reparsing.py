"""Giving stored pages to a spider that has changed: nothing is asked for.

Pages are taken one after the other; what a spider makes of them may be recorded in the
place of what they gave before, some pages at a time. A page that cannot be read, or whose
callback raises, keeps what it has.
"""

from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from anyio import to_thread

from crawlcw.api.attempt import replaced
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider, scope
from crawlcw.archive.bodies import folder_of, read_stored
from crawlcw.archive.records import check_installed
from crawlcw.crawl.callbacks import Produced, Runner, Scope
from crawlcw.crawl.committer import TaskAdder
from crawlcw.crawl.kept_state import KeptState
from crawlcw.crawl.link_checks import seeded_hosts
from crawlcw.crawl.parsing import Parsing
from crawlcw.engine.stats import Stats
from crawlcw.engine.watchdog import Watchdog
from crawlcw.errors import FetchError, StopCrawl
from crawlcw.fetch.user_layers import Hooks
from crawlcw.ledger.protocol import Cursor, Ledger, TaskFilter
from crawlcw.model.sanitize import printable
from crawlcw.model.task import DONE, Record, Task
from crawlcw.model.tracebacks import text_of
from crawlcw.model.transitions import Failed, Settlement, reparse

#: Records that are read of the ledger at once.
_PAGE = 200
#: Pages, or items of theirs, that are recorded at once.
_GROUP = 100
_GROUP_ITEMS = 1_000


async def stored(ledger: Ledger, *, ids: Collection[bytes] | None = None) -> AsyncIterator[Record]:
    """Yield the pages whose bodies are stored and that nobody works on, in flat memory.

    The last changed first; of those with *ids*, where they are given.
    """
    chosen = TaskFilter(statuses=DONE, ids=ids)
    after: Cursor | None = None
    while found := await ledger.queries.find(chosen, limit=_PAGE, after=after):
        last = found[-1].task
        after = Cursor(update_time=last.update_time, id=last.id)
        for record in found:
            if record.task.stored is not None:
                yield record


@dataclass(frozen=True, slots=True, kw_only=True)
class Reparser:
    """Reads stored pages and gives them to the callbacks of a spider."""

    settings: Settings
    folder: Path  #: of the WARC files
    runner: Runner

    async def reparsed(
        self, record: Record, *, callback: str
    ) -> tuple[Response, Produced | Failed]:
        """Return a stored page, and what the spider's method named *callback* makes of it.

        Raises `FileMissingError` or `DamagedRecordError` where it cannot be read.
        """
        task, place, info = record.task, record.task.stored, record.response
        assert place is not None
        most = max(self.settings.max_body, task.options.max_body or 0, info.bytes if info else 0)
        answer = await to_thread.run_sync(partial(read_stored, self.folder, place, most=most))
        request = Request.of(task)
        request.callback = callback
        response = Response(
            answer.url or task.url,
            request=request,
            status=answer.status,
            headers=answer.headers,
            body=answer.body,
            elapsed=timedelta(seconds=info.elapsed if info else 0),
            truncated=((info and info.truncated) or "bytes") if answer.is_cut else None,
        )
        # It was crawled, so it was in the scope.
        self.runner.scope.hosts.add(task.host)
        try:
            response = await Hooks(self.runner.spider, self.runner.watch).answered(response)
            response = replaced(response, request=request)
            return response, await self.runner.run(callback, response, task=task)
        except StopCrawl as wish:
            return response, Produced(stop=printable(text_of(wish)))
        except FetchError as error:
            return response, Failed(reason=error.reason, message=error.message)


@dataclass(slots=True, kw_only=True)
class Saving:
    """Records what stored pages give now: links first, then the items, a group at a time."""

    ledger: Ledger
    kept_versions: int
    adder: TaskAdder
    pages: int = 0  #: that have other items now, or the same again
    items: int = 0
    links: int = 0  #: that nobody knew
    refused: Counter[str] = field(default_factory=Counter)  #: pages that stay as they were: why
    _settlements: list[Settlement] = field(default_factory=list)
    _links: list[Task] = field(default_factory=list)
    _too_deep: list[Task] = field(default_factory=list)
    _waiting: int = 0  #: items of these settlements

    async def take(self, record: Record, produced: Produced) -> None:
        """Take what one page gives; it is recorded by the next `flush` at the latest."""
        settlement = reparse(
            record.task,
            response=record.response,
            items=tuple(produced.items),
            now=self.ledger.now(),
            kept_versions=self.kept_versions,
        )
        assert settlement is not None  # for `stored` yields pages that are done
        self._settlements.append(settlement)
        self._links += produced.tasks
        self._too_deep += produced.too_deep
        self._waiting += len(produced.items)
        if len(self._settlements) >= _GROUP or self._waiting + len(self._links) >= _GROUP_ITEMS:
            await self.flush()

    async def add_links(self, tasks: list[Task], too_deep: list[Task]) -> None:
        """Add links at once; see `Runner.write`."""
        self.links += await self.adder.add(tasks, too_deep)

    async def flush(self) -> None:
        """Record what was taken."""
        links, too_deep, settlements = self._links, self._too_deep, self._settlements
        self._links, self._too_deep, self._settlements, self._waiting = [], [], [], 0
        await self.add_links(links, too_deep)
        committed = await self.ledger.outcomes.replace(settlements)
        failed = {lease.task.id for lease in committed.lost}
        self.refused["it was changed meanwhile"] += len(failed)
        for lease, why in committed.rejected:
            self.refused[f"the ledger cannot hold it: {printable(why)}"] += 1
            failed.add(lease.task.id)
        for each in settlements:
            if each.lease.task.id not in failed:
                self.pages += 1
                self.items += len(each.change.items or ())


async def reparser_of(
    spider: Spider, settings: Settings, ledger: Ledger, *, saving: Saving | None = None
) -> Reparser:
    """Return what parses the stored pages of *ledger* with *spider*.

    What `url_list` callbacks find goes to *saving* at once, where it is given.
    Raises `UsageError` without warcio.
    """
    hosts = {*(scope(spider) or ()), *seeded_hosts(await ledger.notes.state())}
    # It is read, and what pages change in it stays here.
    state = KeptState(spider, ledger)
    await state.open()
    check_installed()
    return Reparser(
        settings=settings,
        folder=folder_of(spider.name, settings),
        runner=Runner(
            spider=spider,
            scope=Scope.of(hosts, settings),
            seen=frozenset() if saving is None else saving.adder.seen,
            now=ledger.now,
            watch=Watchdog(Stats(), limit=settings.callback_timeout),
            parsing=Parsing(settings),
            state=state,
            write=_dropping if saving is None else saving.add_links,
        ),
    )


def saving_to(ledger: Ledger, settings: Settings) -> Saving:
    """Return what records the items and the links of stored pages."""

    async def announce(tasks: Iterable[Task]) -> None:
        dues: dict[str, datetime] = {}
        for task in tasks:
            if task.due is not None:
                dues[task.host] = min(task.due, dues.get(task.host, task.due))
        await ledger.hosts.wake(dues)

    adder = TaskAdder(ledger=ledger, stats=Stats(), announce=announce, max_depth=settings.max_depth)
    return Saving(ledger=ledger, kept_versions=settings.keep_versions, adder=adder)


async def _dropping(tasks: list[Task], too_deep: list[Task]) -> None:
    """Add no links."""
