"""Choice of the next proxy, and the state of proxies after their requests."""

from dataclasses import dataclass

import pytest

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.errors import FetchError, ProxiesAwayError, Reason
from crawlcw.fetch.proxies import ProxyPool
from crawlcw.model.proxies import Proxy, parse

A, B, C = (parse(f"http://{name}:80") for name in "abc")
PAGE, OTHER = "http://shop.example/1", "http://shop.example/2"
DOWN = "it cannot be reached"


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


def test_a_failed_proxy_is_left_out_until_its_rest_is_over(clock: Clock):
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


def answer(url: str = PAGE, status: int = 200, *, through: Proxy) -> Response:
    response = Response(url, request=Request(url), status=status)
    response.proxy = through
    return response


def refusal(proxy: Proxy, status: int, url: str = PAGE) -> FetchError:
    error = FetchError(Reason.HTTP_STATUS, f"HTTP {status}", status=status)
    error.response = answer(url, status, through=proxy)
    return error


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
    # The comparison starts again.
    assert pool.may_be_to_blame(failure(B), PAGE, is_fixed=False)


def test_with_one_proxy_nobody_else_can_tell(clock: Clock):
    pool = pool_of(clock, A, B)
    pool.failed(B, "HTTP 407", for_good=True)

    assert pool.another_in(failure(A), PAGE, is_fixed=False) is None
    assert pool_of(clock, A).another_in(failure(A), PAGE, is_fixed=False) is None


def test_a_proxy_that_rests_is_waited_for_to_tell(clock: Clock):
    pool = pool_of(clock, A, B)
    pool.failed(B, DOWN)

    assert pool.another_in(failure(A), PAGE, is_fixed=False) == 10
    # Until then, another failure of the same proxy does not count.
    clock.now += 4
    assert pool.another_in(failure(A), PAGE, is_fixed=False) == 6
    clock.now += 6
    assert pool.choose(PAGE) == B


def test_proxies_that_have_never_worked_say_nothing_of_a_page(clock: Clock):
    many = [parse(f"http://127.0.0.1:{port}") for port in range(1, 6)]
    pool = pool_of(clock, *many)
    pool.answered(many[4], answer(OTHER, through=many[4]))

    for bad in many[:4]:
        assert pool.may_be_to_blame(failure(bad, Reason.PROTOCOL), PAGE, is_fixed=False)
    assert pool.choose(PAGE) == many[4]

    pool.got(PAGE, many[4])
    assert [pool.health(each).failures for each in many] == [1, 1, 1, 1, 0]


def test_equal_failures_of_a_working_proxy_and_another_one_are_the_pages(clock: Clock):
    pool = pool_of(clock, A, B, C)
    pool.answered(B, answer(OTHER, through=B))

    assert pool.may_be_to_blame(failure(A), PAGE, is_fixed=False)
    assert not pool.may_be_to_blame(failure(B), PAGE, is_fixed=False)
    assert pool.health(A).failures == 0


def test_a_page_that_fails_through_ten_proxies_fails_by_itself(clock: Clock):
    many = [parse(f"http://127.0.0.1:{port}") for port in range(1, 100)]
    pool = pool_of(clock, *many)

    told = [pool.may_be_to_blame(failure(each), PAGE, is_fixed=False) for each in many[:10]]

    assert told == [True] * 9 + [False]


@pytest.mark.parametrize(
    ("status", "url", "is_doubted"),
    [
        (502, PAGE, True),
        (407, PAGE, True),
        (502, PAGE.replace("http:", "https:"), False),  # through a tunnel
        (404, PAGE, False),  # a proxy that has worked is trusted
    ],
)
def test_an_answer_may_be_the_proxys_own_where_it_sees_the_request(
    clock: Clock, status: int, url: str, is_doubted: bool
):
    pool = pool_of(clock, A, B)
    pool.answered(A, answer(OTHER, through=A))

    found = pool.may_be_to_blame(refusal(A, status, url), url, is_fixed=False)

    assert found is is_doubted


def test_a_refusal_by_a_proxy_that_has_got_nothing_through_is_not_believed(clock: Clock):
    pool = pool_of(clock, A, B)
    pool.answered(A, answer(OTHER, 403, through=A))

    assert pool.may_be_to_blame(refusal(A, 404), PAGE, is_fixed=False)
    assert not pool.may_be_to_blame(refusal(B, 404), PAGE, is_fixed=False)


def test_answers_of_a_proxy_itself_do_not_end_its_row_of_failures(clock: Clock):
    pool = pool_of(clock, A, B)

    for number in range(3):
        page = f"{PAGE}{number}"
        pool.answered(A, answer(page, 502, through=A))
        assert pool.may_be_to_blame(refusal(A, 502, page), page, is_fixed=False)
        pool.answered(B, answer(page, through=B))
        pool.got(page, B)

    assert pool.wait(A, "shop.example") > 0


def test_three_pages_in_a_row_that_others_get_let_a_proxy_rest(clock: Clock):
    pool = pool_of(clock, A, B)

    for number in range(3):
        assert pool.wait(A, "shop.example") <= 0
        page = f"{PAGE}{number}"
        assert pool.may_be_to_blame(failure(A), page, is_fixed=False)
        pool.answered(B, answer(page, through=B))
        pool.got(page, B)

    assert pool.wait(A, "shop.example") > 0
    assert {pool.choose(PAGE) for _ in range(3)} == {B}


def test_a_success_in_between_makes_it_chance(clock: Clock):
    pool = pool_of(clock, A, B)

    for number in range(6):
        page = f"{PAGE}{number}"
        pool.may_be_to_blame(failure(A), page, is_fixed=False)
        pool.answered(B, answer(page, through=B))
        pool.got(page, B)
        if number % 2:
            pool.answered(A, answer(OTHER, through=A))

    assert pool.wait(A, "shop.example") <= 0


def test_the_proxy_of_a_session_is_overruled_by_others_at_the_same_origin(clock: Clock):
    pool = pool_of(clock, A, B)

    assert not pool.may_be_to_blame(failure(A), PAGE, is_fixed=True)
    pool.answered(B, answer(OTHER, through=B))
    assert pool.may_be_to_blame(failure(A), PAGE, is_fixed=True)
    assert pool.may_be_to_blame(refusal(A, 502), PAGE, is_fixed=True)
    # A failure that may be the page's counts for the page.
    assert not pool.may_be_to_blame(failure(A, Reason.PROTOCOL), PAGE, is_fixed=True)
    clock.now += 61
    assert not pool.may_be_to_blame(failure(A), PAGE, is_fixed=True)


def test_a_ban_is_for_one_host_and_longer_each_time(clock: Clock):
    pool = pool_of(clock, A, B)

    pool.ban(A, "shop.example")
    pool.ban(A, "shop.example")

    assert pool.wait(A, "shop.example") == 600
    assert pool.wait(A, "other.example") <= 0
    assert {pool.choose(PAGE) for _ in range(3)} == {B}
    clock.now += 600
    pool.ban(A, "shop.example")
    assert pool.wait(A, "shop.example") == 1200
    pool.unban("shop.example")
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

    pool.failed(A, "HTTP 407", for_good=True)
    assert told == []
    pool.failed(B, "HTTP 407", for_good=True)

    assert told == ["the proxies (all 2) do not work: HTTP 407"]
    assert pool.is_lost


def test_no_proxy_of_the_environment_holds_for_those_of_the_settings_too(clock: Clock):
    settings = Settings(proxies=[A])
    pool = ProxyPool(settings, {"NO_PROXY": "intranet"}, clock=clock)

    assert pool.asks_for(PAGE)
    assert not pool.asks_for("http://intranet/")
