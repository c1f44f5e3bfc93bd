"""HTTP server of the dashboard: routes and handlers."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from aiohttp import web
from pydantic import TypeAdapter

import crawlcw
from crawlcw.dashboard import actions, asked
from crawlcw.dashboard.assets import assets
from crawlcw.dashboard.crawls import Crawls
from crawlcw.dashboard.gate import Gate
from crawlcw.dashboard.history import history
from crawlcw.dashboard.metrics import scrape
from crawlcw.dashboard.searches import search
from crawlcw.dashboard.stories import story
from crawlcw.dashboard.streams import Streams
from crawlcw.feeds.escaping import escape_json
from crawlcw.model.values import to_json
from crawlcw.server.connections import Connections, Deadlines, places
from crawlcw.server.listening import application, check_reach, listening
from crawlcw.server.metrics import answer_of
from crawlcw.server.reading import read_body, read_query
from crawlcw.server.refusals import told
from crawlcw.server.refused import RefusedError

_MOST_CONNECTIONS = 256
_HISTORY: TypeAdapter[asked.History] = TypeAdapter(asked.History)
_FIND: TypeAdapter[asked.FindTasks] = TypeAdapter(asked.FindTasks)
_ACT: TypeAdapter[asked.Act] = TypeAdapter(asked.Act)
_STEER: TypeAdapter[asked.Steer] = TypeAdapter(asked.Steer)


@asynccontextmanager
async def serving(
    crawls: Crawls, *, host: str, port: int, token: str | None, allowed_hosts: Collection[str] = ()
) -> AsyncIterator[str]:
    """Serve the dashboard of *crawls* within the block, and yield the address.

    *allowed_hosts* are accepted host names, besides those of loopback and *host*. Raises
    `UsageError` if *host* is not loopback and there is no *token*, if the server cannot
    listen at the address, or if the limit of open files is too low.
    """
    check_reach(host, token)
    gate = Gate(token=token, hosts=[host, *allowed_hosts])
    dashboard = _Dashboard(crawls, gate)
    connections = Connections(most=places(_MOST_CONNECTIONS), deadlines=Deadlines())
    served = application(connections, gate.check, around=[told])
    dashboard.add_routes(served.router)
    async with listening(served, host=host, port=port, stop=dashboard.streams.stop) as address:
        yield address


class _Dashboard:
    """The request handlers."""

    def __init__(self, crawls: Crawls, gate: Gate) -> None:
        self._crawls = crawls
        self._gate = gate
        self.streams = Streams(crawls)

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Add the routes of the handlers."""
        for path, respond in assets().items():
            router.add_route("GET", path, _sending(respond))
        crawl = "/api/crawls/{name}"
        router.add_route("GET", "/api/start", self._start)
        router.add_route("GET", f"{crawl}/live", self.streams.answer)
        router.add_route("GET", f"{crawl}/history", self._history)
        router.add_route("GET", f"{crawl}/tasks", self._tasks)
        router.add_route("GET", f"{crawl}/tasks/{{task:[0-9a-f]{{32}}}}", self._task)
        router.add_route("POST", f"{crawl}/act", self._act)
        router.add_route("POST", f"{crawl}/steer", self._steer)
        router.add_route("GET", "/metrics", answer_of(partial(scrape, self._crawls)))
        router.add_route("GET", "/{rest:.*}", _nothing)

    async def _start(self, _request: web.Request) -> web.Response:
        """Return the first data of the page."""
        return _answered(
            {
                "version": crawlcw.__version__,
                "key": self._gate.key,
                "crawls": await self._crawls.names(),
            }
        )

    async def _history(self, request: web.Request) -> web.Response:
        ledger = await self._crawls.ledger(request.match_info["name"])
        return _answered(await history(ledger, read_query(request, _HISTORY).span))

    async def _tasks(self, request: web.Request) -> web.Response:
        ledger = await self._crawls.ledger(request.match_info["name"])
        return _answered(await search(ledger, read_query(request, _FIND)))

    async def _task(self, request: web.Request) -> web.Response:
        ledger = await self._crawls.ledger(request.match_info["name"])
        record = await ledger.tasks.get(bytes.fromhex(request.match_info["task"]))
        if record is None:
            raise RefusedError(404, "no task with this id is recorded")
        return _answered(await story(ledger, record))

    async def _act(self, request: web.Request) -> web.Response:
        overview = await self._crawls.overview(request.match_info["name"])
        answer = await actions.act(overview.ledger, await read_body(request, _ACT))
        overview.changed()
        return _answered(answer)

    async def _steer(self, request: web.Request) -> web.Response:
        overview = await self._crawls.overview(request.match_info["name"])
        answer = await actions.steer(overview.ledger, await read_body(request, _STEER))
        overview.changed()
        return _answered(answer)


def _sending(
    respond: Callable[[], web.Response],
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handler(_request: web.Request) -> web.Response:
        return respond()

    return handler


async def _nothing(_request: web.Request) -> web.Response:
    raise RefusedError(404, "the dashboard has no such path")


def _answered(answer: dict[str, Any]) -> web.Response:
    body = escape_json(to_json(answer)).encode()
    return web.Response(body=body, content_type="application/json")
