"""Which proxy is next, and what is learned of proxies by how requests through them end."""

from dataclasses import dataclass

import pytest

from crawlcw.api.settings import Settings
from crawlcw.downloader.proxy_pool import ProxyPool
from crawlcw.errors import FetchError, ProxiesAwayError, ProxyFailedError, Reason
from crawlcw.model.proxies import Proxy, ProxyEnvironment, parse

A, B, C = (parse(f"http://{name}:80") for name in "abc")
PAGE, OTHER = "http://shop.example/1", "http://shop.example/2"
DOWN = ProxyFailedError("it cannot be reached")


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def pool_of(clock: Clock, *given: Proxy, **settings: object) -> ProxyPool:
    chosen = {"host_backoff_base": "10s", "host_backoff_max": "1h", "host_max_failures": 3}
    return ProxyPool(Settings(proxies=given, **{**chosen, **settings}), clock=clock)


def failure(proxy: Proxy, reason: Reason = Reason.CONNECT) -> FetchError:
    error = FetchError(reason, "no")
    error.proxy = proxy
    return error


def test_proxies_take_turns(clock: Clock):
    pool = pool_of(clock, A, B, C)

    turns = [pool.choose(PAGE) for _ in range(6)]

    assert set(turns[:3]) == {A, B, C}
    assert turns[3:] == turns[:3]


def test_one_that_failed_is_left_out_until_its_rest_is_over(clock: Clock):
    pool = pool_of(clock, A, B)
    pool.failed(A, DOWN)

    assert {pool.choose(PAGE) for _ in range(4)} == {B}
    clock.now += 10
    assert {pool.choose(PAGE) for _ in range(4)} == {A, B}


def test_where_all_rest_it_is_told_how_long_and_why(clock: Clock):
    pool = pool_of(clock, A, B)
    pool.failed(A, DOWN)
    clock.now += 4
    pool.failed(B, DOWN)

    with pytest.raises(ProxiesAwayError, match="no proxy can be used now: it cannot") as caught:
        pool.choose(PAGE)

    assert caught.value.wait == 6
    assert pool.away() == (6, "it cannot be reached")


def test_a_page_that_failed_is_asked_for_through_another_proxy(clock: Clock):
    pool = pool_of(clock, A, B)

    assert pool.may_be_to_blame(failure(A), PAGE, is_fixed=False)

    assert [pool.choose(PAGE) for _ in range(3)] == [B, B, B]
    assert {pool.choose(OTHER) for _ in range(2)} == {A, B}


def test_where_two_proxies_fail_alike_neither_is_to_blame(clock: Clock):
    pool = pool_of(clock, A, B)
    pool.may_be_to_blame(failure(A), PAGE, is_fixed=False)

    assert not pool.may_be_to_blame(failure(B), PAGE, is_fixed=False)
    assert (pool.health(A).failures, pool.health(B).failures) == (0, 0)
    # And it begins anew.
    assert pool.may_be_to_blame(failure(B), PAGE, is_fixed=False)


def test_with_one_proxy_nobody_else_can_tell(clock: Clock):
    pool = pool_of(clock, A, B)
    pool.failed(B, DOWN)

    assert not pool.may_be_to_blame(failure(A), PAGE, is_fixed=False)


def test_three_pages_in_a_row_that_others_get_let_a_proxy_rest(clock: Clock):
    pool = pool_of(clock, A, B)

    for number in range(3):
        assert pool.wait(A, "shop.example") <= 0
        page = f"{PAGE}{number}"
        assert pool.may_be_to_blame(failure(A), page, is_fixed=False)
        pool.answered(B, page)

    assert pool.wait(A, "shop.example") > 0
    assert {pool.choose(PAGE) for _ in range(3)} == {B}


def test_a_success_in_between_makes_it_chance(clock: Clock):
    pool = pool_of(clock, A, B)

    for number in range(6):
        page = f"{PAGE}{number}"
        pool.may_be_to_blame(failure(A), page, is_fixed=False)
        pool.answered(B, page)
        if number % 2:
            pool.answered(A, OTHER)

    assert pool.wait(A, "shop.example") <= 0


def test_the_proxy_of_a_session_is_overruled_by_others_at_the_same_origin(clock: Clock):
    pool = pool_of(clock, A, B)

    assert not pool.may_be_to_blame(failure(A), PAGE, is_fixed=True)
    pool.answered(B, OTHER)
    assert pool.may_be_to_blame(failure(A), PAGE, is_fixed=True)
    # What may be the page's own is.
    assert not pool.may_be_to_blame(failure(A, Reason.PROTOCOL), PAGE, is_fixed=True)
    clock.now += 61
    assert not pool.may_be_to_blame(failure(A), PAGE, is_fixed=True)


def test_a_ban_is_for_one_host_and_longer_each_time(clock: Clock):
    pool = pool_of(clock, A, B)

    pool.bans.ban(A, "shop.example")
    pool.bans.ban(A, "shop.example")

    assert pool.wait(A, "shop.example") == 600
    assert pool.wait(A, "other.example") <= 0
    assert {pool.choose(PAGE) for _ in range(3)} == {B}
    clock.now += 600
    pool.bans.ban(A, "shop.example")
    assert pool.wait(A, "shop.example") == 1200
    pool.bans.pardon("shop.example")
    assert pool.wait(A, "shop.example") <= 0


def test_a_session_keeps_its_proxy_until_that_is_dead(clock: Clock):
    pool = pool_of(clock, A, B, C)

    assert pool.bound(B.key) == B
    for _ in range(3):
        assert pool.bound(B.key) == B
        pool.failed(B, DOWN)
        clock.now = pool.health(B).ready_at
    assert pool.bound(B.key) in (A, C)


def test_the_sessions_of_a_pool_have_a_proxy_each(clock: Clock):
    pool = pool_of(clock, A, B, C)

    assert [pool.bound(None, place=place) for place in range(4)] == [A, B, C, A]


def test_a_session_whose_proxy_is_not_named_any_more_gets_another(clock: Clock):
    assert pool_of(clock, A).bound(B.key) == A
    assert pool_of(clock).bound(B.key) is None


def test_a_proxy_that_refuses_us_ends_the_crawl_where_there_is_no_other(clock: Clock):
    told: list[str] = []
    pool = pool_of(clock, A, B)
    pool.on_lost = told.append

    pool.failed(A, ProxyFailedError("HTTP 407", for_good=True))
    assert told == []
    pool.failed(B, ProxyFailedError("HTTP 407", for_good=True))

    assert told == ["the proxies (all 2) do not work: HTTP 407"]
    assert pool.is_lost


def test_no_proxy_of_the_environment_holds_for_those_of_the_settings_too(clock: Clock):
    settings = Settings(proxies=[A])
    pool = ProxyPool(settings, ProxyEnvironment.exceptions({"NO_PROXY": "intranet"}), clock=clock)

    assert pool.asks_for(PAGE)
    assert not pool.asks_for("http://intranet/")
