"""Send the requests without a task that a spider's code sends and waits for.

`Response.fetch` sends a request of a page's callback: it uses the page's session, and passes the
spider's layers and hooks. `Spider.fetch` is for the code that may run inside of these layers, so
its requests pass no hook and no layer without `wire`.
"""

import asyncio
from collections.abc import Callable, Container, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

from crawlcw.api.attempt import (
    Attempt,
    LoggedOutError,
    Next,
    Purpose,
    copied,
    replaced,
    user_attempt,
)
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.crawl.admission import Admission
from crawlcw.crawl.callbacks import Scope
from crawlcw.engine.stats import Stats
from crawlcw.errors import Defer, FetchError, Reason, SpiderError
from crawlcw.fetch.addresses import current_hop
from crawlcw.fetch.redirects import throttles
from crawlcw.ledger.protocol import Ledger
from crawlcw.model.task import WAITING, Status

#: Maximum number of requests that the callbacks of one attempt at a page may send.
_MAX_FETCHES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TasklessRequests:
    """Sends requests that have no task."""

    next_by_purpose: Mapping[str, Next]  #: the layers for each purpose of a request
    admission: Admission
    stats: Stats
    throttle_statuses: Container[int]
    scope: Scope  #: adds the Referer of a page's requests

    async def fetch(
        self, request: Request, source: Response | None = None, *, page: Attempt | None = None
    ) -> Response:
        """See `Spider.fetch` and, for a request of the callback of *page*, `Response.fetch`.

        *source* is the response whose `fetch` was called.
        """
        location, _ = request.identity()
        if source is not None:
            request = copied(request)  # the header must not change the spider's request
            request.headers = self.scope.with_referer(request.headers, location.url, page=source)
        purpose = Purpose.FETCH
        if page is not None:
            purpose = Purpose.PAGE
            _check_request_of(page, request)
        url, hop, holder = location.url, current_hop.get(None), page or user_attempt.get(None)
        session = None if page is None else page.session
        attempt = Attempt(
            request=request, purpose=Purpose.FETCH, session=session, page=page, may_wait=False
        )
        try:
            async with _shared_slot(holder, attempt), attempt:
                await self.admission.admit(attempt, url)
                try:
                    response = await self.next_by_purpose[purpose](attempt, request)
                finally:
                    self.admission.note_request(url)
        except Defer as wait:
            raise FetchError(Reason.HOST_UNREACHABLE, wait.cause) from wait
        except LoggedOutError as error:
            raise _logged_out(error.response) from None
        finally:
            if hop is not None:
                current_hop.set(hop)  # a spider's own downloader may have called `fetch`
        self.stats.fetched += 1
        self.stats.taskless += 1
        self.stats.bytes += response.size
        self.stats.statuses[response.status] += 1
        if throttles(response, self.throttle_statuses):
            self.admission.throttled(response)
        if page is not None and source is not None:
            # Share the page's session, so that the callback may retire it by either response.
            sends = partial(self.fetch, page=page)
            response = replaced(response, session=source.session, sends=sends)
        return response


def _check_request_of(page: Attempt, request: Request) -> None:
    """Count a request of a page's callback; raises `SpiderError` for a request it may not send."""
    session, name = page.session, request.options.session
    if name is not None and (session is None or session.identity.name != name):
        raise SpiderError(
            f"response.fetch() uses the page's session, not {name!r}: yield the request instead"
        )
    if request.options.browser:
        raise SpiderError("response.fetch() renders no page: yield a request with browser=True")
    page.fetch_count += 1
    if page.fetch_count > _MAX_FETCHES:
        raise SpiderError(
            f"a page may send {_MAX_FETCHES} requests by response.fetch(): yield the other requests"
        )


def _shared_slot(holder: Attempt | None, attempt: Attempt) -> "asyncio.Lock | nullcontext[None]":
    """Let *attempt* use the slot that *holder* has, if any; return the lock of this slot."""
    if holder is None or holder.slot is None:
        return nullcontext()
    attempt.slot, attempt.slot_host = _keep_slot, holder.slot_host
    if holder.slot_lock is None:
        holder.slot_lock = asyncio.Lock()
    return holder.slot_lock


def _logged_out(response: Response) -> FetchError:
    error = FetchError(
        Reason.LOGGED_OUT, f"HTTP {response.status} for {response.url}", status=response.status
    )
    error.response = response
    return error


def _keep_slot() -> None:
    """Free no slot, because another attempt has the slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpiderRequests(TasklessRequests):
    """Implements `api.spider.RunningCrawl` for one crawl."""

    ledger: Ledger
    known_ids: Container[bytes]  #: ids of tasks that the ledger has
    unwritten_seeds: Callable[[], int]  #: number of start requests that are perhaps not written

    async def has_pages(self) -> bool:
        """See `Spider.has_pages`."""
        return self.unwritten_seeds() > 0 or await self.ledger.queries.has(
            (*WAITING, Status.PROCESSING)
        )
