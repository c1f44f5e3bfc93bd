"""Answer a running spider's `has_pages` and `fetch`, which send requests without a task."""

from collections.abc import Callable, Container
from dataclasses import dataclass

from crawlcw.api.attempt import Attempt, Next, Purpose, user_attempt
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.crawl.admission import Admission
from crawlcw.engine.stats import Stats
from crawlcw.errors import Defer, FetchError, Reason
from crawlcw.fetch.addresses import current_hop
from crawlcw.fetch.redirects import throttles
from crawlcw.ledger.protocol import Ledger
from crawlcw.model.task import WAITING, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class SpiderRequests:
    """Implements `api.spider.RunningCrawl` for one crawl."""

    ledger: Ledger
    known_ids: Container[bytes]  #: ids of tasks that the ledger has
    send: Next  #: the layers of requests without a task
    admission: Admission
    stats: Stats
    throttle_statuses: Container[int]
    unwritten_seeds: Callable[[], int]  #: number of start requests that are perhaps not written

    async def has_pages(self) -> bool:
        """See `Spider.has_pages`."""
        return self.unwritten_seeds() > 0 or await self.ledger.queries.has(
            (*WAITING, Status.PROCESSING)
        )

    async def fetch(self, request: Request) -> Response:
        """See `Spider.fetch`."""
        location, _ = request.identity()
        url, hop, holder = location.url, current_hop.get(None), user_attempt.get(None)
        try:
            async with Attempt(request=request, purpose=Purpose.FETCH, may_wait=False) as attempt:
                if holder is not None and holder.slot is not None:
                    # The page whose code runs has a slot, and this request may use it.
                    attempt.slot, attempt.slot_host = _keep_slot, holder.slot_host
                await self.admission.admit(attempt, url)
                try:
                    response = await self.send(attempt, request)
                finally:
                    self.admission.note_request(url)
        except Defer as wait:
            raise FetchError(Reason.HOST_UNREACHABLE, wait.cause) from wait
        finally:
            if hop is not None:
                current_hop.set(hop)  # a spider's own downloader may have called `fetch`
        self.stats.fetched += 1
        self.stats.bytes += response.size
        self.stats.statuses[response.status] += 1
        if throttles(response, self.throttle_statuses):
            self.admission.throttled(response)
        return response


def _keep_slot() -> None:
    """Free no slot, because another attempt has the slot."""
