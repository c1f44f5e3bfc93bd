"""Cookies kept between processes: changes of a jar, and its restored state."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import yarl

from crawlcw.fetch.cookies import MOST_COOKIES, SiteCookies

pytestmark = [pytest.mark.quick, pytest.mark.asyncio]

HOME = yarl.URL("http://a.example/in/1")
SAFE = yarl.URL("https://a.example/")


def sent(jar: SiteCookies, url: yarl.URL) -> dict[str, str]:
    return dict(jar.sent_to(url))


def given(*headers: str, url: yarl.URL = HOME) -> SiteCookies:
    jar = SiteCookies()
    jar.keep(headers, url)
    return jar


def restored(jar: SiteCookies) -> SiteCookies:
    again = SiteCookies()
    again.restore(jar.all())
    return again


@pytest.mark.parametrize(
    ("header", "where", "nowhere"),
    [
        ("k=v", "http://a.example/in/2", "http://a.example/out"),
        ("k=v; Path=/", "http://a.example/out", "http://b.a.example/"),
        ("k=v; Domain=a.example; Path=/", "http://b.a.example/", "http://b.example/"),
        ("k=v; Path=/; Secure", "https://a.example/", "http://a.example/"),
        ("k=v; Path=/", "http://a.example/", "http://a.example:8080/"),
    ],
)
async def test_a_cookie_that_was_kept_is_sent_where_it_was_before(
    header: str, where: str, nowhere: str
):
    origin = SAFE if "Secure" in header else HOME

    for jar in (given(header, url=origin), restored(given(header, url=origin))):
        assert sent(jar, yarl.URL(where)) == {"k": "v"}
        assert sent(jar, yarl.URL(nowhere)) == {}


async def test_a_cookie_that_came_over_tls_does_not_come_back_without():
    jar = restored(given("k=v; Path=/", url=SAFE))

    assert sent(jar, SAFE) == {"k": "v"}
    assert sent(jar, SAFE.with_scheme("http")) == {}


@pytest.mark.parametrize(
    "value",
    [
        '"a b"',
        "a%20b",
        "ä",
        "{x:1}",
        "a=b",
        "YWJjZA==",
        "a/b+c",
        "a,b",
        '{"a":1}',
        "s%3Aa.b/c",
        '"',
    ],
)
async def test_a_value_is_sent_as_it_came(value: str):
    jar = given(f"k={value}; Path=/")

    for each in (jar, restored(jar)):
        assert each.sent_to(HOME) == [("k", value)]


async def test_only_what_has_changed_is_to_be_written():
    jar = given("a=1", "b=1; Max-Age=100")
    assert len(jar.take_changes()) == 2
    assert not jar.changed

    jar.keep(["a=1", "b=1; Max-Age=110"], HOME)
    assert not jar.changed, "a later expiry alone is no change"

    jar.keep(["b=1; Max-Age=1000", "c=1"], HOME)
    assert [each and each.value for each in jar.take_changes().values()] == ["1", "1"]
    jar.keep(["b=2; Max-Age=1000", "c=1; Max-Age=1000"], HOME)
    assert sorted(each.value for each in jar.take_changes().values() if each) == ["1", "2"]
    jar.keep(["a=2", "b=1; Max-Age=0"], HOME)
    changes = jar.take_changes()
    assert sorted("gone" if each is None else each.value for each in changes.values()) == [
        "2",
        "gone",
    ]


async def test_others_changes_are_taken_over_and_our_own_are_not_lost():
    ours, theirs = given("a=1", "b=1", "c=1"), given("a=2", "b=2")
    ours.take_changes()
    ours.keep(["b=3"], HOME)

    ours.restore(theirs.all())

    assert sent(ours, HOME) == {"a": "2", "b": "3"}


async def test_the_end_of_a_cookie_is_kept():
    (cookie,) = given("k=v; Max-Age=60").all().values()
    (other,) = given("k=v; Expires=Wed, 01 Jan 2070 00:00:00 GMT").all().values()

    assert cookie.expires is not None
    assert other.expires is not None
    assert timedelta(seconds=55) < cookie.expires - datetime.now(UTC) <= timedelta(seconds=60)
    assert other.expires - datetime.now(UTC) <= timedelta(days=400)


async def test_a_spiders_own_cookie_for_a_safe_host_is_not_sent_without_tls():
    jar = SiteCookies()
    jar.add("k", "v", url=SAFE)

    assert sent(jar, SAFE) == {"k": "v"}
    assert sent(jar, SAFE.with_scheme("http")) == {}


async def test_a_cookie_that_has_ended_is_sent_no_more():
    kept = given("a=1; Max-Age=60", "b=2; Max-Age=60", "c=3").all()
    jar = SiteCookies()
    jar.restore(
        {k: replace(each, expires=each.expires and datetime.now(UTC)) for k, each in kept.items()}
    )

    assert sent(jar, HOME) == {"c": "3"}
    assert len(jar.all()) == 1


async def test_a_jar_amounts_to_so_much_and_no_more():
    jar = SiteCookies()
    for number in range(MOST_COOKIES + 10):
        host = yarl.URL(f"http://h{number}.example/")
        jar.keep(["k=" + "v" * 1_000], host)

    kept = jar.all().values()
    assert sum(len(each.value) for each in kept) < 2 << 20
    assert f"h{MOST_COOKIES + 9}.example" in {each.domain for each in kept}
