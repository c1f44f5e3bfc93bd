"""Check whether a crawl would follow a link, by the rules of `callbacks`, without a request."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from crawlcw.api.page_head import product_token
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider, scope
from crawlcw.crawl import robots
from crawlcw.crawl.callbacks import Scope
from crawlcw.errors import FetchError, Reason
from crawlcw.ledger.protocol import Ledger
from crawlcw.model import urls
from crawlcw.model.hosts import Host


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a link is not followed."""

    reason: str
    why: str  #: the reason as a text for people


class LinkChecks:
    """Checks links by the rules of a spider's crawl."""

    def __init__(self, spider: Spider, settings: Settings, state: Mapping[str, Any]) -> None:
        """*state* is the ledger's state after the spider's crawls, see `Notes.state`."""
        self._settings = settings
        # The seeded hosts are the hosts of the requests that `start` has yielded.
        seeded = seeded_hosts(state) if spider.allowed_hosts is None else ()
        hosts = {*(scope(spider) or ()), *seeded}
        self.scope = Scope.of(hosts, settings)
        # Whether a link may lead to any host, because no crawl has recorded the hosts of its seeds.
        self._is_anywhere = scope(spider) is None and not seeded
        #: Maximum number of links from a start URL to a page; deeper pages are not requested.
        self.max_depth = self.scope.max_depth

    def refusal(self, url: str) -> Refusal | None:
        """Return why no crawl of the spider follows a link to *url*; None if a crawl follows it."""
        try:
            followed_scope = self.scope
            if self._is_anywhere:
                followed_scope = replace(followed_scope, hosts={urls.locate(url).host})
            followed_scope.admit_url(url)
        except FetchError as error:
            return Refusal(reason=error.reason, why=error.message)
        return None

    async def refusal_now(self, url: str, ledger: Ledger) -> Refusal | None:
        """Return why a link is not followed; also check the records of its host in the ledger."""
        if (refusal := self.refusal(url)) is not None:
            return refusal
        location = urls.locate(url)
        host = (await ledger.hosts.get([location.host])).get(location.host)
        if host is not None and (refusal := self._by_host(host, location.url)) is not None:
            return refusal
        for reason, links in (await ledger.workers.counters()).link_examples.items():
            if url in links or location.url in links:
                return Refusal(
                    reason=reason, why="a page linked to it, but the crawl dropped the link"
                )
        return None

    def _by_host(self, host: Host, url: str) -> Refusal | None:
        settings = self._settings
        if host.given_up is not None:
            return Refusal(reason=host.given_up, why=f"the crawl has given up {host.name}")
        record = host.robots
        if not settings.obey_robots or record is None or record.origin != urls.origin_of(url):
            return None
        agent = product_token(settings.user_agent)
        if robots.parse(record.body.encode(), agent=agent).allows(url):
            return None
        return Refusal(
            reason=Reason.REFUSED_ROBOTS, why=f"the robots.txt of {host.name} forbids it"
        )


def seeded_hosts(state: Mapping[str, Any]) -> frozenset[str]:
    """Return the hosts of the seeds, if a ledger's *state* says that all seeds are written."""
    return frozenset((state.get("seeds") or {}).get("hosts", ()))
