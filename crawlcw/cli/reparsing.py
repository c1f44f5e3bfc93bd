"""Run a changed spider on stored pages, without sending requests.

Stored pages are parsed one after the other. The new items may replace the recorded items. One write
replaces the items of several pages. A page that cannot be read, or whose callback raises, keeps its
recorded items.
"""

from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from anyio import to_thread

from crawlcw.api.attempt import Attempt, redirected, replaced
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider, scope
from crawlcw.archive.bodies import folder_of, read_stored
from crawlcw.archive.records import check_installed
from crawlcw.crawl.admission import Admission
from crawlcw.crawl.callbacks import Produced, Runner, Scope
from crawlcw.crawl.committer import TaskAdder
from crawlcw.crawl.item_keys import Duplicates
from crawlcw.crawl.kept_state import KeptState
from crawlcw.crawl.link_checks import seeded_hosts
from crawlcw.crawl.parsing import Parsing
from crawlcw.engine.stats import Stats
from crawlcw.engine.watchdog import Watchdog
from crawlcw.errors import FetchError, StopCrawl
from crawlcw.fetch.user_layers import UserLayer, after_response
from crawlcw.ledger.protocol import Ledger, TaskFilter
from crawlcw.model.sanitize import printable, text_of
from crawlcw.model.task import DONE, Record, Task
from crawlcw.model.transitions import Failed, Settlement, reparse

#: Maximum number of pages, and maximum number of items, in one write to the ledger.
_COMMIT_SIZE = 100
_GROUP_ITEMS = 1_000


async def stored(ledger: Ledger, *, ids: Collection[bytes] | None = None) -> AsyncIterator[Record]:
    """Yield the finished and ignored pages with stored bodies, in constant memory.

    The last changed page comes first. If *ids* is not None, only pages with these ids are yielded.
    """
    task_filter = TaskFilter(statuses=DONE, ids=ids)
    async with aclosing(ledger.queries.walk(task_filter)) as records:
        async for record in records:
            if record.task.stored is not None:
                yield record


@dataclass(frozen=True, slots=True, kw_only=True)
class Reparser:
    """Reads stored pages, and runs the callbacks of a spider on them."""

    settings: Settings
    folder: Path  #: the folder of the WARC files
    runner: Runner

    async def reparse(self, record: Record, *, callback: str) -> tuple[Response, Produced | Failed]:
        """Return a stored page, and the result of the spider's method *callback* for it.

        Raises `FileMissingError` or `DamagedRecordError` if the stored page cannot be read.
        """
        task, location, info = record.task, record.task.stored, record.response
        assert location is not None
        limit = max(self.settings.max_body, task.options.max_body or 0, info.bytes if info else 0)
        stored_response = await to_thread.run_sync(
            partial(read_stored, self.folder, location, max_size=limit)
        )
        request = Request.of(task)
        request.callback = callback
        response = Response(
            stored_response.url or task.url,
            request=request,
            status=stored_response.status,
            headers=stored_response.headers,
            body=stored_response.body,
            elapsed=timedelta(seconds=info.elapsed if info else 0),
            truncated=((info and info.truncated) or "bytes") if stored_response.is_cut else None,
        )
        # The crawl has fetched the page, so the page's host belongs to the scope.
        self.runner.scope.hosts.add(task.host)
        try:
            response = replaced(await self._after_response(response), request=request)
            return response, await self.runner.run(callback, response, task=task)
        except StopCrawl as stop_request:
            return response, Produced(stop=printable(text_of(stop_request)))
        except FetchError as error:
            return response, Failed(reason=error.reason, message=error.message)

    async def _after_response(self, stored_response: Response) -> Response:
        """Call the spider's `after_response` for a stored page, and return the result."""

        async def return_stored(_: Attempt, __: Request) -> Response:
            return stored_response

        if (hook := after_response(self.runner.spider)) is None:
            return stored_response
        request = redirected(stored_response.request, stored_response.url)
        layer = UserLayer(hook, self.runner.watchdog, Admission())
        return await layer(Attempt(request=request), request, return_stored)


@dataclass(slots=True, kw_only=True)
class Saving:
    """Records the new results of a group of stored pages: first the links, then the items."""

    ledger: Ledger
    kept_versions: int
    adder: TaskAdder
    duplicates: Duplicates | None  #: drops items whose keys are recorded; None without keys
    pages: int = 0  #: number of pages whose items were replaced
    items: int = 0
    links: int = 0  #: number of new links
    refused: Counter[str] = field(default_factory=Counter)  #: number of failed pages, by reason
    _settlements: list[Settlement] = field(default_factory=list)
    _positions: list[dict[str, int]] = field(default_factory=list)  #: see `Produced.item_keys`
    _links: list[Task] = field(default_factory=list)
    _too_deep: list[Task] = field(default_factory=list)
    _waiting: int = 0  #: number of items in `_settlements`

    async def take(self, record: Record, produced: Produced) -> None:
        """Add the results of a page to the group; call `flush` if the group is full."""
        settlement = reparse(
            record.task,
            response=record.response,
            items=tuple(produced.items),
            now=self.ledger.now(),
            kept_versions=self.kept_versions,
        )
        assert settlement is not None  # `stored` yields only done pages
        self._settlements.append(settlement)
        self._positions.append(produced.item_keys)
        self._links += produced.tasks
        self._too_deep += produced.too_deep
        self._waiting += len(produced.items)
        if (
            len(self._settlements) >= _COMMIT_SIZE
            or self._waiting + len(self._links) >= _GROUP_ITEMS
        ):
            await self.flush()

    async def add_links(self, tasks: list[Task], too_deep: list[Task]) -> None:
        """Add links to the ledger immediately."""
        self.links += await self.adder.add(tasks, too_deep)

    async def flush(self) -> None:
        """Write the results of the group's pages to the ledger."""
        links, too_deep, settlements = self._links, self._too_deep, self._settlements
        positions, self._positions = self._positions, []
        self._links, self._too_deep, self._settlements, self._waiting = [], [], [], 0
        await self.add_links(links, too_deep)
        if self.duplicates is not None:
            settlements = await self.duplicates.drop(settlements, positions, Counter())
        result = await self.ledger.outcomes.replace(settlements)
        failed_ids = {lease.task.id for lease in result.lost}
        self.refused["it was changed meanwhile"] += len(failed_ids)
        for lease, reason in result.rejected:
            self.refused[f"the ledger cannot store it: {printable(reason)}"] += 1
            failed_ids.add(lease.task.id)
        for settlement in settlements:
            if settlement.lease.task.id not in failed_ids:
                self.pages += 1
                self.items += len(settlement.change.items or ())


async def reparser_of(
    spider: Spider, settings: Settings, ledger: Ledger, *, saving: Saving | None = None
) -> Reparser:
    """Return an object that parses *ledger*'s stored pages with *spider*.

    *saving*, if it is not None, writes the links from `url_list` callbacks immediately. Raises
    `UsageError` without warcio.
    """
    hosts = {*(scope(spider) or ()), *seeded_hosts(await ledger.notes.state())}
    # The spider's state is opened only for reading, so changes by callbacks are not written.
    state = KeptState(spider, ledger)
    await state.open()
    check_installed()
    return Reparser(
        settings=settings,
        folder=folder_of(spider.name, settings),
        runner=Runner(
            spider=spider,
            scope=Scope.of(hosts, settings),
            known_ids=frozenset() if saving is None else saving.adder.known_ids,
            now=ledger.now,
            watchdog=Watchdog(Stats(), limit=settings.callback_timeout),
            parsing=Parsing(settings, selectors=spider.selectors),
            state=state,
            write=_dropping if saving is None else saving.add_links,
        ),
    )


def saving_to(spider: Spider, ledger: Ledger, settings: Settings) -> Saving:
    """Return an object that records the new items and links of stored pages."""

    async def announce(tasks: Iterable[Task]) -> None:
        due_by_host: dict[str, datetime] = {}
        for task in tasks:
            if task.due is not None:
                due_by_host[task.host] = min(task.due, due_by_host.get(task.host, task.due))
        await ledger.hosts.wake(due_by_host)

    adder = TaskAdder(ledger=ledger, stats=Stats(), announce=announce, max_depth=settings.max_depth)
    return Saving(
        ledger=ledger,
        kept_versions=settings.keep_versions,
        adder=adder,
        duplicates=Duplicates.of(spider, ledger, settings.keep_versions),
    )


async def _dropping(tasks: list[Task], too_deep: list[Task]) -> None:
    """Drop the links."""
