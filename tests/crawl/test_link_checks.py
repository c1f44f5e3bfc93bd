"""Verdicts on a link: the rules of the spider, and the state of the ledger."""

from datetime import timedelta

import pytest

from crawlcw import Settings, Spider
from crawlcw.crawl.link_checks import LinkChecks
from crawlcw.engine.workers import this_worker
from crawlcw.errors import Reason
from crawlcw.ledger.protocol import Counters, Ledger
from crawlcw.model.hosts import Host, RobotsRecord
from tests.support.ledgers import LEASE, START


class Books(Spider):
    name = "books"
    start_urls = ["http://books.test/"]
    settings = Settings(max_depth=3)


class Careless(Books):
    allowed_hosts = ("books.test",)
    settings = Settings(obey_robots=False)


class Anywhere(Spider):
    name = "anywhere"

    async def start(self):
        for request in ():
            yield request


def checks(spider: Spider | None = None, *, seeds: tuple[str, ...] = ()) -> LinkChecks:
    spider = spider or Books()
    written = {"fingerprint": "f", "hosts": [*seeds]} if seeds else None
    return LinkChecks(spider, spider.settings, {"seeds": written})


async def known(ledger: Ledger, **state: object) -> None:
    """Save a state of the host books.test in the ledger."""
    await ledger.hosts.wake({"books.test": ledger.now()})
    (lease,) = await ledger.host_leases.lease(worker="a", limit=1, lease=LEASE)
    await ledger.host_leases.release([(lease, Host(name="books.test", **state))])


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://books.test/a", None),
        ("http://other.test/a", Reason.REFUSED_SCOPE),
        ("http://books.test/" + "a/" * 40, "trap-path-segments"),
        ("mailto:a@b.test", Reason.REFUSED_SCHEME),
        ("http://", Reason.URL_INVALID),
    ],
    ids=str,
)
def test_a_link_is_judged_by_its_url(url: str, reason: str | None):
    refusal = checks().refusal(url)

    assert (None if refusal is None else refusal.reason) == reason


def test_hosts_that_start_has_led_to_are_in_scope():
    assert checks(seeds=("other.test",)).refusal("http://other.test/") is None
    assert checks(Careless(), seeds=("other.test",)).refusal("http://other.test/") is not None
    assert checks(Anywhere()).refusal("http://other.test/") is None
    assert checks(Anywhere(), seeds=("a.test",)).refusal("http://other.test/") is not None


async def test_what_robots_txt_forbids_is_told_from_the_ledger(ledger: Ledger):
    body = "User-agent: *\nDisallow: /private"
    expires = START + timedelta(days=1)
    await known(ledger, robots=RobotsRecord(origin="http://books.test", body=body, expires=expires))

    refused = await checks().refusal_now("http://books.test/private/1", ledger)
    assert refused is not None
    assert (refused.reason, "books.test" in refused.why) == (Reason.REFUSED_ROBOTS, True)
    assert await checks().refusal_now("http://books.test/public", ledger) is None
    assert await checks().refusal_now("https://books.test/private/1", ledger) is None
    assert await checks(Careless()).refusal_now("http://books.test/private/1", ledger) is None
    assert await checks().refusal_now("http://other.test/", ledger) is not None


@pytest.mark.parametrize("given_up", [Reason.DNS_NXDOMAIN, None])
async def test_a_host_that_was_given_up_is_named(ledger: Ledger, given_up: Reason | None):
    await known(ledger, given_up=given_up)

    refused = await checks().refusal_now("http://books.test/1", ledger)

    assert (None if refused is None else refused.reason) == given_up


@pytest.mark.parametrize("link", ["HTTP://books.test/deep", "HTTP://books.test/as-written"])
async def test_a_link_that_is_among_those_dropped_is_found(ledger: Ledger, link: str):
    worker = this_worker(now=ledger.now())
    await ledger.workers.join(worker)
    examples = ("http://books.test/deep", "HTTP://books.test/as-written")
    counters = Counters(
        links_dropped={"too-many-links": 4}, link_examples={"too-many-links": examples}
    )
    await ledger.workers.beat(worker.name, counters)

    refused = await checks().refusal_now(link, ledger)

    assert refused is not None
    assert (refused.reason, refused.why) == (
        "too-many-links",
        "a page linked to it, but the crawl dropped the link",
    )
    assert await checks().refusal_now("http://books.test/another", ledger) is None
    assert checks().max_depth == 3
