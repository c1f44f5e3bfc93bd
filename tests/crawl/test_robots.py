"""robots.txt: requested once, obeyed, and never guessed while it is unknown."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from time import perf_counter
from typing import Any

import pytest

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.crawl.robots import ALLOW_ALL, LARGEST, Robots, parse
from crawlcw.errors import FetchError, Reason
from crawlcw.model.hosts import RobotsRecord
from crawlcw.testing.replay import Replay, ReplayDownloader
from tests.support.attempts import way
from tests.support.ledgers import START

pytestmark = pytest.mark.quick

ROBOTS = "http://a.example/robots.txt"
PAGE = "http://a.example/page"
PRIVATE = "http://a.example/private/page"
ORIGIN = "http://a.example"
NO_PRIVATE = Replay(body="User-agent: *\nDisallow: /private/\n")


class FakeTime:
    """Clock for the validity of rules."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Held(ReplayDownloader):
    """Downloader whose answers wait for the test."""

    def __init__(self, answers: dict[str, Any]) -> None:
        super().__init__(answers)
        self.asked = asyncio.Event()
        self.go = asyncio.Event()

    async def fetch(self, request: Request, *, url: str) -> Response:
        self.asked.set()
        await self.go.wait()
        return await super().fetch(request, url=url)


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


def robots_of(
    answers: dict[str, Any] | ReplayDownloader, time: FakeTime | None = None, **settings: Any
) -> tuple[Robots, ReplayDownloader]:
    web = answers if isinstance(answers, ReplayDownloader) else ReplayDownloader(answers)
    clock = time or FakeTime()
    chosen = Settings(**settings)
    return Robots(way(web, chosen), chosen, clock=clock, now=lambda: START), web


async def error_of(robots: Robots, url: str) -> FetchError:
    with pytest.raises(FetchError) as caught:
        await robots.admit(url)
    return caught.value


async def refused(robots: Robots, url: str) -> Reason:
    return (await error_of(robots, url)).reason


def record(body: str, *, origin: str = ORIGIN) -> RobotsRecord:
    return RobotsRecord(origin=origin, body=body, expires=START + timedelta(seconds=60))


async def test_what_is_disallowed_is_refused_and_the_rest_is_not():
    robots, _ = robots_of({ROBOTS: NO_PRIVATE})

    await robots.admit(PAGE)

    assert await refused(robots, PRIVATE) is Reason.REFUSED_ROBOTS


async def test_the_robots_txt_itself_may_always_be_asked_for():
    """RFC 9309, section 2.2.2."""
    robots, _ = robots_of({ROBOTS: "User-agent: *\nDisallow: /"})

    await robots.admit(ROBOTS)

    assert await refused(robots, PAGE) is Reason.REFUSED_ROBOTS


async def test_many_callers_at_once_make_one_request():
    web = Held({ROBOTS: NO_PRIVATE})
    robots, _ = robots_of(web)
    callers = [asyncio.create_task(robots.rules(f"{PAGE}?{n}")) for n in range(50)]
    await web.asked.wait()

    web.go.set()
    rules = await asyncio.gather(*callers)

    assert web.requested_urls == [ROBOTS]
    assert not any(each.allows(PRIVATE) for each in rules)


async def test_every_origin_has_rules_of_its_own():
    robots, web = robots_of({ROBOTS: NO_PRIVATE})

    assert await refused(robots, PRIVATE) is Reason.REFUSED_ROBOTS
    await robots.admit("https://a.example/private/")
    await robots.admit("http://a.example:8080/private/")
    await robots.admit("http://b.example/private/")

    assert web.requested_urls == [
        ROBOTS,
        "https://a.example/robots.txt",
        "http://a.example:8080/robots.txt",
        "http://b.example/robots.txt",
    ]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 451])
async def test_no_robots_txt_allows_all(status: int):
    """HOSTILE 4.18."""
    body = "User-agent: *\nDisallow: /\n"
    robots, _ = robots_of({ROBOTS: Replay(status=status, body=body)})

    await robots.admit(PRIVATE)


@pytest.mark.parametrize(
    "answer",
    [
        Replay(status=429),
        Replay(status=500),
        Replay(status=503),
        Replay(status=599),
        Replay(body="User-agent: *\n", truncated="coding"),
        FetchError(Reason.CONNECT, "refused"),
        FetchError(Reason.TIMEOUT_READ),
        FetchError(Reason.DNS_NXDOMAIN),
    ],
)
async def test_while_nobody_knows_the_rules_nothing_is_fetched(answer: Any):
    """HOSTILE 4.18."""
    robots, web = robots_of({ROBOTS: [answer, NO_PRIVATE]})

    assert await refused(robots, PAGE) is Reason.ROBOTS_UNAVAILABLE
    assert robots.known_rules(PAGE) is None

    # The host rests after that, so the next caller requests it again.
    await robots.admit(PAGE)
    assert await refused(robots, PRIVATE) is Reason.REFUSED_ROBOTS
    assert web.requested_urls == [ROBOTS, ROBOTS]


async def test_the_rules_are_kept_for_a_day(time: FakeTime):
    robots, web = robots_of({ROBOTS: [NO_PRIVATE, Replay(status=404)]}, time)
    assert await refused(robots, PRIVATE) is Reason.REFUSED_ROBOTS

    time.seconds = 24 * 3600 - 1
    assert await refused(robots, PRIVATE) is Reason.REFUSED_ROBOTS
    time.seconds = 24 * 3600 + 1
    await robots.admit(PRIVATE)

    assert web.requested_urls == [ROBOTS, ROBOTS]


@pytest.mark.parametrize(("plain", "secure"), [(2, 5), (5, 2), (5, None), (None, 5)])
async def test_the_crawl_delay_of_a_host_is_the_longest_of_its_origins(
    plain: int | None, secure: int | None
):
    delays = {"http://a.example": plain, "https://a.example": secure}
    bodies = {
        f"{origin}/robots.txt": f"User-agent: *\nCrawl-delay: {seconds}\n"
        for origin, seconds in delays.items()
        if seconds is not None
    }
    robots, _ = robots_of(bodies)
    for url in bodies:
        await robots.rules(url)

    assert robots.crawl_delay("a.example") == 5


async def test_what_another_process_has_fetched_needs_no_request(time: FakeTime):
    robots, web = robots_of({ROBOTS: Replay(status=404)}, time)

    theirs = record("User-agent: *\nDisallow: /private/\nCrawl-delay: 3\n")
    assert robots.known_rules(PAGE, replace(theirs, expires=START)) is None, "a day ago"
    rules = robots.known_rules(PAGE, theirs)

    assert robots.known_rules(PAGE) is rules
    assert rules is not None
    assert rules.crawl_delay == 3
    assert await refused(robots, PRIVATE) is Reason.REFUSED_ROBOTS
    assert robots.known_rules("http://b.example/", theirs) is None, "not of another user agent"
    time.seconds = 59
    assert await refused(robots, PRIVATE) is Reason.REFUSED_ROBOTS
    assert web.requested_urls == []

    time.seconds = 60
    await robots.admit(PRIVATE)
    assert web.requested_urls == [ROBOTS]


async def test_robots_txt_is_not_asked_for_where_it_is_not_obeyed():
    robots, web = robots_of({ROBOTS: NO_PRIVATE}, obey_robots=False)

    await robots.admit(PRIVATE)

    assert await robots.rules(PRIVATE) is ALLOW_ALL
    assert robots.known_rules(PRIVATE) is ALLOW_ALL
    assert web.requested_urls == []


async def test_redirects_are_followed_to_another_host_too():
    robots, _ = robots_of(
        {
            ROBOTS: Replay(status=301, headers={"Location": "https://b.example/r.txt"}),
            "https://b.example/r.txt": NO_PRIVATE,
        }
    )

    assert await refused(robots, PRIVATE) is Reason.REFUSED_ROBOTS


def chain(hops: int) -> dict[str, Any]:
    urls = [ROBOTS, *(f"http://a.example/r{n}" for n in range(hops))]
    answers: dict[str, Any] = {
        url: Replay(status=302, headers={"Location": target}) for url, target in pairwise(urls)
    }
    return answers | {urls[-1]: NO_PRIVATE}


async def test_five_redirects_are_followed():
    """HOSTILE 4.18."""
    robots, web = robots_of(chain(5))

    assert await refused(robots, PRIVATE) is Reason.REFUSED_ROBOTS
    assert len(web.requested_urls) == 6


@pytest.mark.parametrize(
    ("named", "is_ours"),
    [
        ("crawlcw", True),
        ("CrawlCW", True),
        ("crawlcw/0.1", True),
        ("crawlcw 0.1", True),
        ("crawlcw*", True),
        ("news, crawlcw", True),
        ("CrawlCW/1.0,news", True),
        ("news,crawl, crawlcw-news", False),
        (",", False),
        ("crawl", False),
        ("crawlcw-news", False),
        ("craw*lcw", False),
        ("news", False),
    ],
)
async def test_rules_are_for_the_whole_product_token(named: str, is_ours: bool):
    body = f"User-agent: {named}\nDisallow: /private/\n\nUser-agent: *\nDisallow: /other/\n"

    rules = parse(body.encode(), agent="crawlcw")

    assert rules.allows(PRIVATE) is not is_ours
    assert rules.allows("http://a.example/other/") is is_ours


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("Crawl-delay: 2", 2),
        ("Crawl-delay: 0.5", 0.5),
        ("Crawl-delay: 60", 60),
        ("Crawl-delay: 86400", 60),
        ("Crawl-delay: 1e400", 0),
        ("Crawl-delay: -1", 0),
        ("Crawl-delay: nan", 0),
        ("Crawl-delay: soon", 0),
        ("Crawl-delay:", 0),
        ("", 0),
    ],
)
def test_the_crawl_delay_is_a_number_of_seconds_up_to_60(line: str, seconds: float):
    """HOSTILE 4.18."""
    body = f"User-agent: *\n{line}\nDisallow: /private/\n".encode()

    rules = parse(body, agent="crawlcw")

    assert rules.crawl_delay == seconds
    assert not rules.allows(PRIVATE)


@pytest.mark.parametrize(
    "body",
    [b"", b"<!doctype html><title>404</title>", bytes(range(256)) * 100, b"\x00" * 1000, b"\n:\n"],
)
def test_garbage_has_no_rules(body: bytes):
    """HOSTILE 4.18."""
    rules = parse(body, agent="crawlcw")

    assert rules.allows(PRIVATE)
    assert rules.crawl_delay == 0


def test_rules_full_of_wildcards_cost_little():
    """HOSTILE 4.19."""
    rules = parse(b"User-agent: *\nDisallow: /" + b"*a" * 2_000 + b"*b$\n", agent="crawlcw")
    began = perf_counter()

    assert rules.allows("http://example.com/" + "a" * 1_900)
    assert perf_counter() - began < 0.5


def test_nothing_is_read_behind_512_kib():
    """HOSTILE 4.18."""
    start = b"User-agent: *\nDisallow: /early/\n"
    body = start + b"#" * (LARGEST - len(start) - 1) + b"\nDisallow: /private/\n"

    rules = parse(body, agent="crawlcw")

    assert not rules.allows("http://a.example/early/x")
    assert rules.allows(PRIVATE)


@pytest.mark.parametrize("rule", ["Dissallow", "dissalow", "Disalow", "DIASLLOW", "disallaw"])
def test_a_misspelled_disallow_counts_as_well_where_it_is_the_only_one(rule: str):
    rules = parse(f"User-agent: *\n{rule}: /private/\n".encode(), agent="crawlcw")

    assert (rules.allows(PRIVATE), rules.allows(PAGE)) == (False, True)


def test_an_allow_opens_a_part_of_what_is_disallowed():
    rules = parse(
        b"User-agent: *\nDisallow: /private/\nAllow: /private/open\nDisallow: /*.pdf$\n",
        agent="crawlcw",
    )

    assert rules.allows("http://a.example/private/open")
    assert not rules.allows("http://a.example/private/shut")
    assert not rules.allows("http://a.example/a.pdf")
    assert rules.allows("http://a.example/a.pdf?download")


@pytest.mark.parametrize(
    ("body", "delay"),
    [
        ("User-agent: *\nCrawl-delay: 2\nUser-agent: x\nDisallow: /private/", 2),
        ("User-agent: *\nCrawl-delay: 2\nUser-agent: x\nCrawl-delay: 1\nDisallow: /private/", 2),
        ("User-agent: x\nCrawl-delay: 2\nUser-agent: *\nDisallow: /private/", 2),
        ("User-agent: x\nCrawl-delay: 2\nUser-agent: *\nCrawl-delay: 1\nDisallow: /private/", 1),
        ("User-agent: *\nRequest-rate: 1/5\nNoindex: /\nUser-agent: x\nDisallow: /private/", 0),
        ("User-agent: x\nCrawl-delay: 2\nAllow: /\nUser-agent: *\nDisallow: /private/", 0),
        ("User-agent: *\nDisallow: /private/\nCrawl-delay: 2\nUser-agent: x\nAllow: /private/", 2),
    ],
)
def test_only_a_rule_ends_the_names_of_a_group(body: str, delay: float):
    """RFC 9309, section 2.2.4: other lines must not interfere with the rules."""
    rules = parse(body.encode(), agent="crawlcw")

    assert not rules.allows(PRIVATE)
    assert rules.allows(PAGE)
    assert rules.crawl_delay == delay


@pytest.mark.parametrize("path", ["/login?next=/a", "/login?next=%2Fa", "/login?next=%2fa"])
@pytest.mark.parametrize(
    "rule",
    ["/login?next=/", "/login?next=%2F", "/*?next=%2f", "/*next=/", "/*next=%2F", "/login?*=%2Fa$"],
)
def test_a_slash_in_a_query_is_the_same_in_both_spellings(rule: str, path: str):
    """RFC 9309, section 2.2.2."""
    rules = parse(f"User-agent: *\nDisallow: {rule}\n".encode(), agent="crawlcw")

    assert not rules.allows(f"{ORIGIN}{path}")
    assert rules.allows(f"{ORIGIN}/login?next=a")


def test_a_slash_in_a_path_and_its_escape_are_two():
    rules = parse(b"User-agent: *\nDisallow: /a%2Fb\n", agent="crawlcw")

    assert not rules.allows(f"{ORIGIN}/a%2fb?c=/")
    assert rules.allows(f"{ORIGIN}/a/b")


def test_sitemaps_are_found():
    rules = parse(b"Sitemap: http://a.example/s.xml\n", agent="crawlcw")

    assert rules.sitemaps == ("http://a.example/s.xml",)
    assert rules.allows(PRIVATE)
