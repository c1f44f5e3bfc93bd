"""Any robots.txt takes bounded memory and means what RFC 9309 says; any Retry-After is a wait."""

import math
import re
import tracemalloc
from datetime import UTC, datetime
from email.utils import format_datetime
from urllib.parse import quote

from hypothesis import example
from hypothesis import strategies as st

from crawlcw.crawl.robots import LONGEST_CRAWL_DELAY, parse
from crawlcw.errors import FetchError
from crawlcw.model.retry import LONGEST_RETRY_AFTER, RetryPolicy, retry_after
from crawlcw.model.urls import locate
from tests.support.fuzzing import UNSEEN, URL_PIECES, fuzzed, soup

AGENT = "crawlcw"
PAGES = ["http://a.example/", "http://a.example/a/b?c=%2F", "http://a.example/" + 900 * "ab"]

NAMES = ["*", AGENT, "CrawlCW", "crawl", "c*r", "cw", "other", "other-crawlcw", "", "crawlcw/1.0"]
LINES = """
    User-agent:@ user-agent_@ UserAgent:_@ user_agent_@ USER-AGENT_:_@ Disallow:_/ Disallow:_/a/
    Disallow: Allow:_/a Allow:_/$ Disallow:_/*$ Disallow:_*a*b*a*b Disallow:_/%zz%ff dissalow:/
    Allow:_/index.html Crawl-delay:_1 Crawl-delay:_nan Crawl-delay:_inf Crawl-delay:_-1
    Crawl-delay:_1e999 Crawl-delay_1e3 Crawl-delay:_9999999999999999 Crawl-delay:_١
    Request-rate:_1/0 Request-rate:_9e9/1s Visit-time:_1-2 Sitemap:_/s
    Sitemap:http://a.example/s Host:_x # : ::: <!doctype_html> * $ disallow:_http://a.example/
""".split()  # noqa: RUF001, SIM905  # as a list it would be twice as long
ENDS = ["\n", "\r\n", "\r", " # comment\n", "\x0b", "\x85", "\u2028", " ", "\0\n"]

lines = st.builds(
    lambda line, name, end: line.replace("_", " ").replace("@", name) + end,
    st.sampled_from(LINES),
    st.sampled_from(NAMES),
    st.sampled_from(ENDS),
)
bodies = st.one_of(
    st.lists(lines, max_size=20).map(lambda parts: "".join(parts).encode()),
    st.lists(lines, max_size=4).map(lambda parts: "".join(["User-agent: *\n", *parts]).encode()),
    st.lists(lines.map(str.encode) | st.binary(max_size=6), max_size=20).map(b"".join),
    st.binary(max_size=100),
)


@fuzzed(body=bodies, url=soup(URL_PIECES + UNSEEN), quick=80, thorough=3000)
@example(body=b"User-agent: *\nCrawl-delay: 86400\n", url="")
@example(body=b"User-agent: *\nCrawl-delay: nan\n", url="")
def test_any_bytes_are_rules_that_answer_for_any_address(body: bytes, url: str) -> None:
    rules = parse(body, agent=AGENT)

    assert math.isfinite(rules.crawl_delay)
    assert 0 <= rules.crawl_delay <= LONGEST_CRAWL_DELAY
    rules.body.encode()
    assert parse(rules.body.encode(), agent=AGENT).crawl_delay == rules.crawl_delay
    for page in [*PAGES, f"http://a.example/{url}"]:
        try:
            location = locate(page)
        except FetchError:
            continue
        again = parse(rules.body.encode(), agent=AGENT)
        assert rules.allows(location.url) is again.allows(location.url)
    assert rules.allows("http://a.example/robots.txt")


@fuzzed(
    parts=st.lists(st.tuples(lines, st.sampled_from([1, 3, 300])), min_size=1, max_size=5),
    numbered=st.booleans(),
    quick=8,
    thorough=300,
)
@example(parts=[("User-agent: x@\n", 300), ("Allow: /\n", 300)], numbered=True)
@example(parts=[("useragent x**@\n", 300), ("Allow: /$\n", 300)], numbered=True)
def test_the_memory_that_rules_take_grows_with_their_bytes(
    parts: list[tuple[str, int]], numbered: bool
) -> None:
    """A copy of the rules for each name would take 500 MiB and 50 s for 56 KB of text."""
    body = "".join(
        line.replace("@", "").replace("\n", f"{n}\n") if numbered else line
        for line, times in parts
        for n in range(times)
    ).encode()

    tracemalloc.start()
    try:
        parse(body, agent=AGENT)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 100_000 + 300 * len(body)


# RFC 9309, sections 2.2.1 and 2.2.2, implemented as briefly as possible.

#: The product token in any case, without its version; Google's parser also takes the last one.
OURS = [AGENT, "CrawlCW", "crawlcw/2.0", "crawlcw*"]

groups = st.lists(
    st.tuples(
        st.lists(st.sampled_from(["*", *OURS, "crawl", "other", "zcrawlcw", "craw*l"]), min_size=1),
        st.lists(
            st.tuples(
                st.booleans(),
                st.lists(
                    st.sampled_from(["a", "b", "/", "*", "c.html", "?", "=", "ü"]), max_size=6
                ),
                st.sampled_from(["", "", "$"]),
            ),
            max_size=6,
        ),
    ),
    max_size=4,
)
paths = st.lists(st.sampled_from(["a", "b", "/", "c.html", "?", "=", "%C3%BC"]), max_size=7)


@fuzzed(groups=groups, paths=st.lists(paths, min_size=5, max_size=5), quick=60, thorough=3000)
@example(groups=[(["crawl"], [(False, [], "")])], paths=[[]])
@example(groups=[(["craw*l"], [(False, [], "")]), (["*"], [(True, [], "")])], paths=[[]])
@example(groups=[(["zcrawlcw"], [(False, [], "")])], paths=[[]])
@example(groups=[(["crawlcw"], []), (["*"], [(False, [], "")])], paths=[[]])
def test_the_longest_match_of_the_most_specific_group_decides(
    groups: list[tuple[list[str], list[tuple[bool, list[str], str]]]], paths: list[list[str]]
) -> None:
    body = ""
    rules: dict[str, list[tuple[bool, str]]] = {}
    named: set[str] = set()
    for names, patterns in groups:
        of_group = [(allow, "/" + "".join(parts) + end) for allow, parts, end in patterns]
        body += "".join(f"User-agent: {name}\n" for name in names) + "Crawl-delay:\n"
        body += "".join(f"{'Allow' if allow else 'Disallow'}: {p}\n" for allow, p in of_group)
        # Order and repetition of names do not change a group, and only a rule ends its names.
        named |= {AGENT if name in OURS else name for name in names}
        for name in named:
            rules.setdefault(name, []).extend(of_group)
        if of_group:
            named = set()
    chosen = next((rules[name] for name in (AGENT, "*") if name in rules), [])

    parsed = parse(body.encode(), agent=AGENT)

    for parts in paths:
        path = "/" + "".join(parts)
        assert parsed.allows(f"http://a.example{path}") is is_allowed(chosen, path)


def is_allowed(rules: list[tuple[bool, str]], path: str) -> bool:
    lengths = [
        (len(octets), allow)
        for allow, pattern in rules
        if matches(octets := quote(pattern, safe="/*$="), quote(path, safe="/=%"))
    ]
    # Of two rules of equal length, the allowing one wins.
    return max(lengths, default=(0, True))[1]


def matches(pattern: str, path: str) -> bool:
    parts = map(re.escape, pattern.removesuffix("$").split("*"))
    end = r"\Z" if pattern.endswith("$") else ""
    return re.match(".*".join(parts) + end, path) is not None


NOW = datetime(2026, 1, 1, tzinfo=UTC)
DATES = """
    Thu, Thu Fri, , 01 31 99 0 Jan Feb Foo dec 1970 2026 9999 10000 0001 00:00:00 23:59:60
    99:99:99 99999999999:0:0 GMT UTC EST +0000 -0000 +9999 -2359 +99999999999 nan -nan inf 1e5
    1e309 -5 0x10 120 3600 3601 ٣ ² ( ) ((( \\ " < > ; : - Thu,_01_Jan_9999_00:00:00_GMT
    31_Dec_9999_23:59:59_-2359
""".split()  # noqa: SIM905  # as a list it would be twice as long
dates = st.lists(st.sampled_from([*DATES, 5000 * "9", *UNSEEN])).map(
    lambda words: " ".join(words).replace("_", " ")
)


real_dates = st.builds(
    lambda moment, zone: format_datetime(moment).replace("+0000", zone),
    st.datetimes(timezones=st.just(UTC)),
    st.sampled_from(["GMT", "+0000", "-0000", "+2359", "-2359", ""]),
)


@fuzzed(
    header=dates
    | real_dates
    | st.text(max_size=20)
    | st.floats().map(str)
    | st.integers().map(str),
    now=st.datetimes(timezones=st.just(UTC)),
    quick=100,
    thorough=5000,
)
@example(header="Fri, 31 Dec 9999 23:59:59 -2359", now=NOW)
@example(header="99999999999999999999", now=NOW)
@example(header="nan", now=NOW)
@example(header="Thu, 01 Jan 99999999999999999999 00:00:00 GMT", now=NOW)
@example(header="Thu, 01 Jan 2026 00:01:00 +99999999999", now=NOW)
@example(header="Wed, 31 Dec 2025 00:00:00 GMT", now=NOW)
def test_any_retry_after_is_a_wait_of_an_hour_at_most_or_none(header: str, now: datetime) -> None:
    seconds = retry_after(header, now=now)

    if seconds is not None:
        assert 0 <= seconds <= LONGEST_RETRY_AFTER.total_seconds()
        assert RetryPolicy().wait(1, chance=0.0, retry_after=seconds) <= LONGEST_RETRY_AFTER
