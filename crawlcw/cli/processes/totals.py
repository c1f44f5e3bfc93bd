"""What several workers have done, summed up as if one had done it."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from crawlcw.cli.processes.channel import Account
from crawlcw.engine.stats import MOST_NAMED, FinishReason, Report
from crawlcw.ledger.protocol import Counts
from crawlcw.model.dropped import merged


class Totals:
    """The sums over the accounts of all workers, those that are gone included."""

    def __init__(self, accounts: Callable[[], Iterable[Account]]) -> None:
        self._accounts = accounts
        self._began = time.monotonic()

    @property
    def pages(self) -> int:
        """Pages finished."""
        return sum(account.pages for account in self._accounts())

    @property
    def items(self) -> int:
        """Items recorded."""
        return sum(account.items for account in self._accounts())

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def report(
        self,
        spider: str,
        *,
        finish_reason: FinishReason,
        counts: Counts | None,
        failed_before: int = 0,
        any_finished: bool | None = None,
    ) -> Report:
        """Return the report of all of them together; the last three are the ledger's."""
        accounts = list(self._accounts())
        hosts = {o: why for account in accounts for o, why in account.hosts_given_up.items()}
        more = sum(account.more_hosts_given_up for account in accounts)
        return Report(
            spider=spider,
            finish_reason=finish_reason,
            elapsed=self.elapsed,
            pages=self.pages,
            items=self.items,
            released=sum(account.released for account in accounts),
            counts=counts,
            failures=_sums(account.failures for account in accounts),
            host_failures=_sums(account.host_failures for account in accounts),
            links_dropped=_sums(account.links_dropped for account in accounts),
            leases_lost=sum(account.leases_lost for account in accounts),
            link_examples=merged(account.link_examples for account in accounts),
            items_by_callback=_sums(account.items_by_callback for account in accounts),
            items_dropped=_sums(account.items_dropped for account in accounts),
            stalls=sum(account.stalls for account in accounts),
            longest_stall=max((account.longest_stall for account in accounts), default=0.0),
            forgiven=sum(account.forgiven for account in accounts),
            truncated=sum(account.truncated for account in accounts),
            unchanged=sum(account.unchanged for account in accounts),
            internal_errors=sum(account.internal_errors for account in accounts),
            detail=next((a.detail for a in accounts if a.ending == finish_reason), ""),
            given_up=sum(account.given_up for account in accounts),
            over_full=sum(account.over_full for account in accounts),
            hosts_given_up=dict(islice(hosts.items(), MOST_NAMED)),
            more_hosts_given_up=more + max(0, len(hosts) - MOST_NAMED),
            redirects=sum(account.redirects for account in accounts),
            failed_before=failed_before,
            any_finished=any_finished,
        )


def _sums(counted: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counted:
        total.update(each)
    return dict(total.most_common())


#: Where one worker has ended for one of these, all have: the first counts.
_OF_ALL = (
    FinishReason.STOPPED_AT_ONCE,
    FinishReason.CALLBACK_BROKEN,
    FinishReason.FILES_UNWRITABLE,
    FinishReason.LOGIN_FAILED,
    FinishReason.PROXIES_FAILED,
    FinishReason.INTERNAL_ERROR,
    FinishReason.STOPPED_BY_SPIDER,
    FinishReason.STOPPED,
)


def finish_reason(reasons: Iterable[FinishReason | None], *, is_empty: bool) -> FinishReason:
    """Return why a crawl ended whose workers ended for *reasons*; None for one that failed.

    *is_empty* says that the ledger has nothing left to do. `failed`: there is
    something left, and nobody who stopped for a reason of its own.
    """
    found = set(reasons)
    for told in _OF_ALL:
        if told in found:
            return told
    # One that has drained the ledger has added all its seeds; what is left then
    # is what somebody else gave back, or added, later.
    if found == {FinishReason.DRAINED} or (FinishReason.DRAINED in found and is_empty):
        return FinishReason.DRAINED
    return FinishReason.MAX_PAGES if FinishReason.MAX_PAGES in found else FinishReason.FAILED
