"""robots.txt: asked once, obeyed, and never guessed at while nobody knows it."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from crawlcw.downloader.replay import Replay, ReplayDownloader
from crawlcw.errors import FetchError, Reason
from crawlcw.request import Request
from crawlcw.response import Response
from crawlcw.robots import ALLOW_ALL, LARGEST, Robots, parse, product_token
from crawlcw.settings import Settings

ROBOTS = "http://a.example/robots.txt"
PAGE = "http://a.example/page"
PRIVATE = "http://a.example/private/page"
NO_PRIVATE = Replay(body="User-agent: *\nDisallow: /private/\n")


class FakeTime:
    """The clock of the rules' validity."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Held(ReplayDownloader):
    """Answers nothing until the test lets it."""

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
    return Robots(web, Settings(**settings), clock=time or FakeTime()), web


async def refused(robots: Robots, url: str) -> Reason:
    with pytest.raises(FetchError) as caught:
        await robots.admit(url)
    return caught.value.reason


async def test_what_is_disallowed_is_refused_and_the_rest_is_not():
    robots, _ = robots_of({ROBOTS: NO_PRIVATE})

    await robots.admit(PAGE)

    assert await refused(robots, PRIVATE) is Reason.REFUSED_ROBOTS


async def test_many_callers_at_once_make_one_request():
    web = Held({ROBOTS: NO_PRIVATE})
    robots, _ = robots_of(web)
    callers = [asyncio.create_task(robots.rules(f"{PAGE}?{n}")) for n in range(50)]
    await web.asked.wait()

    web.go.set()
    rules = await asyncio.gather(*callers)

    assert web.requested == [ROBOTS]
    assert not any(each.allows(PRIVATE) for each in rules)


async def test_a_caller_that_is_cancelled_takes_nobodys_answer_away():
    web = Held({ROBOTS: NO_PRIVATE})
    robots, _ = robots_of(web)
    first = asyncio.create_task(robots.rules(PAGE))
    second = asyncio.create_task(robots.rules(PAGE))
    await web.asked.wait()

    first.cancel()
    web.go.set()

    assert not (await second).allows(PRIVATE)
    assert web.requested == [ROBOTS]
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_every_origin_has_rules_of_its_own():
    robots, web = robots_of({ROBOTS: NO_PRIVATE})

    assert await refused(robots, PRIVATE) is Reason.REFUSED_ROBOTS
    await robots.admit("https://a.example/private/")
    await robots.admit("http://a.example:8080/private/")
    await robots.admit("http://b.example/private/")

    assert web.requested == [
        ROBOTS,
        "https://a.example/robots.txt",
        "http://a.example:8080/robots.txt",
        "http://b.example/robots.txt",
    ]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 451])
async def test_no_robots_txt_allows_all(status: int):
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
        FetchError(Reason.CONNECT, "refused"),
        FetchError(Reason.TIMEOUT_READ),
        FetchError(Reason.DNS_NXDOMAIN),
    ],
)
async def test_while_nobody_knows_the_rules_nothing_is_fetched_and_later_it_is_asked_again(
    answer: Any, time: FakeTime
):
    robots, web = robots_of({ROBOTS: [answer, NO_PRIVATE]}, time)

    assert await refused(robots, PAGE) is Reason.ROBOTS_UNAVAILABLE
    time.seconds = 29
    assert await refused(robots, PAGE) is Reason.ROBOTS_UNAVAILABLE
    assert web.requested == [ROBOTS], "not for every page"

    time.seconds = 31
    await robots.admit(PAGE)

    assert await refused(robots, PRIVATE) is Reason.REFUSED_ROBOTS
    assert web.requested == [ROBOTS, ROBOTS]


async def test_an_unavailable_robots_txt_says_why():
    robots, _ = robots_of({ROBOTS: FetchError(Reason.CONNECT, "refused\x1b")})

    with pytest.raises(FetchError, match=r"robots-unavailable: connect refused\\x1b"):
        await robots.admit(PAGE)


async def test_an_error_told_to_thousands_does_not_grow(time: FakeTime):
    robots, _ = robots_of({ROBOTS: Replay(status=503)}, time)
    lengths = []
    for _ in range(50):
        with pytest.raises(FetchError) as caught:
            await robots.admit(PAGE)
        lengths.append(len(caught.traceback))

    assert max(lengths[1:]) <= lengths[0] + 1, lengths


async def test_the_rules_are_kept_for_a_day(time: FakeTime):
    robots, web = robots_of({ROBOTS: [NO_PRIVATE, Replay(status=404)]}, time)
    assert await refused(robots, PRIVATE) is Reason.REFUSED_ROBOTS

    time.seconds = 24 * 3600 - 1
    assert await refused(robots, PRIVATE) is Reason.REFUSED_ROBOTS
    time.seconds = 24 * 3600 + 1
    await robots.admit(PRIVATE)

    assert web.requested == [ROBOTS, ROBOTS]


async def test_robots_txt_is_not_asked_for_where_it_is_not_obeyed():
    robots, web = robots_of({ROBOTS: NO_PRIVATE}, obey_robots=False)

    await robots.admit(PRIVATE)

    assert await robots.rules(PRIVATE) is ALLOW_ALL
    assert web.requested == []


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
    robots, web = robots_of(chain(5))

    assert await refused(robots, PRIVATE) is Reason.REFUSED_ROBOTS
    assert len(web.requested) == 6


@pytest.mark.parametrize(
    "answers", [chain(6), {ROBOTS: Replay(status=302, headers={"Location": ROBOTS})}]
)
async def test_after_more_redirects_it_is_as_if_there_were_none(answers: dict[str, Any]):
    robots, web = robots_of(answers)

    await robots.admit(PRIVATE)

    assert len(web.requested) <= 6


async def test_it_is_for_the_first_word_of_the_user_agent():
    answer = Replay(body="User-agent: mybot\nDisallow: /\n\nUser-agent: *\nDisallow:\n")

    robots, _ = robots_of({ROBOTS: answer}, user_agent="mybot/2.1 (+http://me.example)")
    assert await refused(robots, PAGE) is Reason.REFUSED_ROBOTS
    robots, _ = robots_of({ROBOTS: answer})
    await robots.admit(PAGE)


async def test_closing_ends_what_is_under_way():
    web = Held({})
    robots, _ = robots_of(web)
    caller = asyncio.create_task(robots.rules(PAGE))
    await web.asked.wait()

    await robots.close()

    with pytest.raises(asyncio.CancelledError):
        await caller


@pytest.mark.parametrize(
    ("user_agent", "token"),
    [
        ("crawlcw/0.1 (+https://x)", "crawlcw"),
        ("mybot", "mybot"),
        (" mybot/1/2 x", "mybot"),
    ],
)
def test_the_product_token_is_the_first_word_without_its_version(user_agent: str, token: str):
    assert product_token(user_agent) == token


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
    body = f"User-agent: *\n{line}\nDisallow: /private/\n".encode()

    rules = parse(body, agent="crawlcw")

    assert rules.crawl_delay == seconds
    assert not rules.allows(PRIVATE)


@pytest.mark.parametrize(
    "body",
    [b"", b"<!doctype html><title>404</title>", bytes(range(256)) * 100, b"\x00" * 1000, b"\n:\n"],
)
def test_garbage_has_no_rules(body: bytes):
    rules = parse(body, agent="crawlcw")

    assert rules.allows(PRIVATE)
    assert rules.crawl_delay == 0


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_byte_order_marks_and_line_ends_of_any_kind_are_read(mark: bytes, end: bytes):
    body = mark + end.join([b"User-agent: *", b"Disallow: /private/", b""])

    assert not parse(body, agent="crawlcw").allows(PRIVATE)


def test_nothing_is_read_behind_512_kib():
    start = b"User-agent: *\nDisallow: /early/\n"
    body = start + b"#" * (LARGEST - len(start) - 1) + b"\nDisallow: /private/\n"

    rules = parse(body, agent="crawlcw")

    assert not rules.allows("http://a.example/early/x")
    assert rules.allows(PRIVATE)


def test_an_allow_opens_a_part_of_what_is_disallowed():
    rules = parse(
        b"User-agent: *\nDisallow: /private/\nAllow: /private/open\nDisallow: /*.pdf$\n",
        agent="crawlcw",
    )

    assert rules.allows("http://a.example/private/open")
    assert not rules.allows("http://a.example/private/shut")
    assert not rules.allows("http://a.example/a.pdf")
    assert rules.allows("http://a.example/a.pdf?download")


def test_sitemaps_are_found():
    rules = parse(b"Sitemap: http://a.example/s.xml\n", agent="crawlcw")

    assert rules.sitemaps == ("http://a.example/s.xml",)
    assert rules.allows(PRIVATE)
