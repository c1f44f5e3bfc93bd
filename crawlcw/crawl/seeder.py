"""Add a spider's start requests to the ledger, and admit links that were too deep before.

If a process dies before `start` has ended, the next process runs `start` again.
"""

import logging
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import KW_ONLY, InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from hashlib import blake2b
from pathlib import Path, PurePath
from typing import Any, cast

import anyio

from crawlcw.api.request import Request
from crawlcw.api.spider import Spider, arguments_of, has_own_start
from crawlcw.api.user_code import spider_code
from crawlcw.crawl.callbacks import Scope
from crawlcw.crawl.committer import TaskAdder
from crawlcw.crawl.coordinator import Coordinator
from crawlcw.engine.batching import GroupWriter
from crawlcw.errors import FetchError, SpiderError
from crawlcw.fetch.addresses import (
    MOST_START_ADDRESSES,
    MOST_START_NAMES,
    START,
    is_address,
)
from crawlcw.fetch.credentials import Credentials
from crawlcw.ledger.protocol import Ledger, TaskFilter
from crawlcw.model.sanitize import printable
from crawlcw.model.task import WAITING, Status, Task

logger = logging.getLogger(__name__)

#: Maximum number of start requests in the first batch; the fetchers wait for this batch.
_FIRST_BATCH = 500
_BATCH = 5_000  #: maximum number of start requests in each later batch
#: Maximum seconds to write the last batch of start requests when the crawl ends.
_LAST_WORDS = 2.0
#: If a spider's seeds are on more hosts than this number, the spider adds its seeds in each run.
MOST_HOSTS = 10_000
_UNFINISHED = (*WAITING, Status.PROCESSING)
#: A worker without a heartbeat for this multiple of a lease counts as dead.
_SILENT_LEASES = 3
_PLAIN = (bool, int, float, str, date, time, timedelta, PurePath, type(None))


class RunStart:
    """Finds the start time of the crawl's current run in the ledger, or records a new run."""

    def __init__(self, ledger: Ledger, *, lease: timedelta) -> None:
        self._ledger = ledger
        self._silence = _SILENT_LEASES * lease
        self._started_at: datetime
        self.earliest_end: datetime | None = None  #: join no run whose end may be earlier
        #: The run's number in the ledger, equal in all processes of the run.
        self.number = 0

    async def find(self, state: Mapping[str, Any]) -> datetime:
        """Join the run that *state* names, or begin a new run; return when it began."""
        run = state.get("run") or {}
        self.number = run.get("number", 0)
        if run:
            started_at = self._started_at = datetime.fromtimestamp(run["began"] / 1000, UTC)
            if "over" not in run and await self._ledger.queries.has(_UNFINISHED):
                return started_at
            ended_at = datetime.fromtimestamp(run.get("over", run["began"]) / 1000, UTC)
            # If processes start together, one process may end the run before the others join it.
            if ended_at >= await self._first_started():
                return started_at
        started_at = self._started_at = self._ledger.now()
        self.number += 1
        await self._note(started_at)
        return started_at

    async def end(self) -> None:
        """Record that the ledger is drained, so that the next crawl begins another run."""
        await self._note(self._started_at, over=self._ledger.now())

    async def _note(self, started_at: datetime, **other_times: datetime) -> None:
        time_by_name = {"began": started_at, **other_times}
        run = {name: round(moment.timestamp() * 1000) for name, moment in time_by_name.items()}
        await self._ledger.notes.set_state({"run": {**run, "number": self.number}})

    async def _first_started(self) -> datetime:
        now, workers = self._ledger.now(), await self._ledger.workers.all()
        alive = [worker for worker in workers if now - worker.heartbeat < self._silence]
        return min(
            [
                now if self.earliest_end is None else self.earliest_end,
                *(worker.started for worker in alive),
            ]
        )


@dataclass
class Seeder:
    """Adds the seeds of one crawl to the ledger, and notes the seeds' hosts."""

    spider: Spider
    adder: TaskAdder
    _: KW_ONLY
    coordinator: Coordinator
    scope: Scope  #: scope of the crawl, which gets the hosts of the seeds
    credentials: Credentials  #: secrets of the start URLs; `start` may add more
    lease: InitVar[timedelta]
    stop: Callable[[str], None]  #: ends the crawl if `start` raises `StopCrawl`
    _start_hosts: set[str] = field(init=False, default_factory=set)
    _request_count: int = 0  #: number of requests that `start` has yielded so far
    _has_ended: bool = False  #: whether `start` has ended
    _is_repeated: bool = False  #: whether each crawl must run `start`
    _fingerprint: str | None = None  #: digest of the seeds; None if each crawl must add its seeds
    _noted_names: set[str] = field(init=False, default_factory=set)
    _noted_addresses: set[str] = field(init=False, default_factory=set)

    def __post_init__(self, lease: timedelta) -> None:
        self._ledger = self.adder.ledger
        self.run_start = RunStart(self._ledger, lease=lease)
        #: Whether all processes are told that the seeds' hosts may have private addresses.
        self._notes_hosts = has_own_start(self.spider)
        self._origins = self.credentials.origins  #: origins for which no new record is needed
        self._seed_writer = GroupWriter(self._add_seeds, first_size=_FIRST_BATCH, max_size=_BATCH)

    def unwritten_count(self) -> int:
        """Return the number of start requests that the ledger may not have yet."""
        return self._seed_writer.unwritten_count

    async def is_seeded(self, state: Mapping[str, Any]) -> bool:
        """Return whether all seeds are in the ledger; set the seeds' hosts and the run's start."""
        self.adder.run_started_at = await self.run_start.find(state)
        if not self.spider.start_again:
            with spider_code("start_urls", stop=self.stop):
                self._fingerprint = fingerprint(self.spider)
        noted_origins = state.get("start_origins") or {}
        if self._fingerprint is not None and noted_origins.get("fingerprint") == self._fingerprint:
            # Use the recorded start origins, because pages may be requested before `start` runs.
            self.credentials.trust(noted_origins["origins"])
        seeds = state.get("seeds")
        if not seeds or seeds["fingerprint"] != self._fingerprint:
            return False
        if not await self._ledger.queries.find(TaskFilter(), limit=1):
            # Forget the record of the seeds, because another program has deleted all tasks.
            await self._ledger.notes.set_state({"seeds": None})
            return False
        for host in seeds["hosts"]:
            self._note_start(host)
        return True

    def _note_start(self, host: str) -> None:
        self._start_hosts.add(host)
        # The host may redirect to its name with or without www, see `Scope.admit_url`.
        site = {host, f"www.{host}", host.removeprefix("www.")}
        self.coordinator.frontier.page_limit.unlimited_hosts.update(site)
        if self.spider.allowed_hosts is None:
            self.scope.hosts.add(host)

    async def run(self, state: Mapping[str, Any], *, seeded: bool) -> None:
        """Admit links that were too deep for earlier crawls; add the seeds if they are missing."""
        await self._go_deeper(state.get("depth"))
        if not seeded:
            await self._seed()
        self.coordinator.note_seeded()

    async def _go_deeper(self, last_depth: Mapping[str, Any] | None) -> None:
        """Admit the links that were too deep for the limit in *last_depth*; note the new limit."""
        limit = self.adder.max_depth
        old_limit = None if last_depth is None else last_depth["limit"]
        if last_depth is not None and old_limit == limit:
            # Do not write an unchanged limit: fetchers could run before `start` sets passwords.
            return
        if old_limit is not None and (limit is None or limit > old_limit):
            number = await self._ledger.admin.admit_to_depth(limit)
            logger.info(
                "now following %d links that were too deep before (max_depth)",
                number,
                extra={"event": "links_admitted", "links": number},
            )
        # Note the limit last, so that another process admits the links again if this process dies.
        await self._ledger.notes.set_state({"depth": {"limit": limit}})

    async def _seed(self) -> None:
        """Add the spider's start requests to the ledger, soon after `start` yields them."""
        gathering = self._seed_writer
        try:
            await gathering.run(self._read())
        finally:
            # Write the last requests even if the crawl ends, because `start` may be unable to yield
            # the same requests again.
            try:
                with anyio.move_on_after(_LAST_WORDS, shield=True):
                    await gathering.finish()
                    await self._note_seeded()
            finally:
                if gathering.unwritten_count:
                    logger.warning(
                        "could not write %d start requests: the next run calls start() again",
                        gathering.unwritten_count,
                        extra={"event": "not_seeded", "requests": gathering.unwritten_count},
                    )

    async def _read(self) -> AsyncIterator[Task]:
        # `api.spider.check` has found that this is an asynchronous generator.
        start_requests = cast("AsyncGenerator[object, None]", self.spider.start())
        with spider_code("start()", stop=self.stop):
            async with aclosing(start_requests):
                async for request in start_requests:
                    if not isinstance(request, Request):
                        kind = "None" if request is None else f"a {type(request).__name__}"
                        raise SpiderError(
                            f"the spider's start() yielded {printable(kind)}: write `yield "
                            "Request(url)`; only callbacks yield items"
                        )
                    if (task := self._task(request)) is None:
                        continue
                    try:
                        yield task
                    except GeneratorExit:
                        return  # the crawl ends

            # This line is not reached if `start` stops the crawl.
            self._has_ended = True

    def _task(self, request: Request) -> Task | None:
        self._request_count += 1
        # The salt, a part of the task's id, is the same for the same request in all processes of a
        # run.
        salt = f"run {self.run_start.number} seed {self._request_count}".encode()
        try:
            task = self.scope.addressed(request).task(now=self._ledger.now(), salt=salt)
            # The ledger stores no passwords, so each process must run `start` to get a password.
            if self.credentials.learn(request.url):
                self._is_repeated = True
        except FetchError as error:
            logger.warning(
                "no URL to start from: %s",
                printable(error),
                extra={"event": "seed_refused", "reason": error.reason},
            )
            return None
        self._note_start(task.host)
        # Each run must run `start` again, because a request with `dont_filter` needs a new task in
        # each run, and a request with `changed` may repeat a task.
        if request.dont_filter or request.changed is not None:
            self._is_repeated = True
        return task

    async def _note_seeded(self) -> None:
        """Record that `start` need not run again, if all its requests are in the ledger."""
        if not self._has_ended or self._is_repeated or len(self._start_hosts) > MOST_HOSTS:
            return
        if self._fingerprint is not None:
            seeds = {"fingerprint": self._fingerprint, "hosts": sorted(self._start_hosts)}
            await self._ledger.notes.set_state({"seeds": seeds})

    async def _add_seeds(self, batch: list[Task]) -> None:
        origins = self.credentials.origins
        if self._origins < origins and len(origins) <= MOST_HOSTS:
            self._origins = origins
            note = {"fingerprint": self._fingerprint, "origins": sorted(origins)}
            await self._ledger.notes.set_state({"start_origins": note})
        if self._notes_hosts:
            await self._note_hosts({task.host for task in batch})
        await self.adder.add(batch)

    async def _note_hosts(self, hosts: set[str]) -> None:
        """Let all processes accept private addresses of these hosts; limit the number of hosts."""
        addresses = {host for host in hosts if is_address(host)}
        new_hosts = set[str]()
        for of_kind, noted_hosts, limit in (
            (addresses, self._noted_addresses, MOST_START_ADDRESSES),
            (hosts - addresses, self._noted_names, MOST_START_NAMES),
        ):
            batch = [*(of_kind - noted_hosts)][: limit - len(noted_hosts)]
            noted_hosts.update(batch)
            new_hosts.update(batch)
        if new_hosts:
            # Write the hosts before their tasks, because any process may request the tasks next.
            await self._ledger.notes.set_state({f"{START}{host}": True for host in new_hosts})


def fingerprint(spider: Spider) -> str | None:
    """Return a digest that changes if the spider's start requests may change; None if unknown.

    The digest covers the spider's arguments and source files, and the simple values (such as
    numbers, texts and lists) of the spider's classes and modules.
    """
    kinds = type(spider).__mro__
    try:
        fingerprint_parts = [_plain_form(arguments_of(spider))]
        for kind in kinds[: kinds.index(Spider)]:
            module = sys.modules[kind.__module__]
            fingerprint_parts += [
                kind.__qualname__,
                _plain_form(Path(str(module.__file__)).read_bytes()),
            ]
            fingerprint_parts += [_named_values(vars(module)), _named_values(vars(kind))]
    except (TypeError, AttributeError, KeyError, OSError):
        return None
    fingerprint_parts.append(_named_values(vars(spider)))
    # `start_urls` may be an iterable of another kind, such as the lines of a file.
    fingerprint_parts.append(_named_values({"start_urls": list(spider.start_urls)}))
    return blake2b(repr(fingerprint_parts).encode(), digest_size=16).hexdigest()


def _plain_form(value: object) -> object:
    """Return a plain value in a form whose `repr` is equal in every process.

    Raises `TypeError` for a value that is not plain, because its `repr` may hide a change.
    """
    match value:
        case Mapping():
            return "mapping", [
                (_plain_form(key), _plain_form(element)) for key, element in value.items()
            ]
        case list() | tuple():
            return [_plain_form(element) for element in value]
        case bytes():
            return "bytes", blake2b(value).digest()  # there may be megabytes
        case set() | frozenset():
            # Sort the elements, because the order of a set differs between processes.
            return "set", sorted(repr(_plain_form(element)) for element in value)
        case _ if isinstance(value, _PLAIN):
            return value
    raise TypeError(type(value))


def _named_values(values_by_name: Mapping[str, object]) -> list[object]:
    """Return each name with its value, or with the value's type if `_plain_form` refuses it."""
    parts: list[object] = []
    for name, value in sorted(values_by_name.items()):
        if not name.startswith("__"):
            try:
                parts += [name, _plain_form(value)]
            except TypeError:
                parts += [name, type(value).__name__]
    return parts
