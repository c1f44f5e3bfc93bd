"""Choice of the next proxy, and the state of proxies after their requests."""

import asyncio
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from crawlcw.api.attempt import Attempt, Session
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.errors import FetchError, ProxiesAwayError, ProxyFailedError, Reason, SettingsError
from crawlcw.fetch.proxies import Proxies, ProxyPool
from crawlcw.model.identities import Identity
from crawlcw.model.proxies import Proxy, parse
from tests.blame.virtual import VirtualClock, run, virtual

A, B, C = (parse(f"http://{name}:80") for name in "abc")
S = parse("socks5h://s:1080")
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


def pool_of(clock: Callable[[], float], *given: Proxy, **settings: object) -> ProxyPool:
    chosen = {"host_backoff_base": "10s", "host_backoff_max": "1h", "host_max_failures": 3}
    return ProxyPool(Settings(proxies=given, **{**chosen, **settings}), clock=clock)


def failure(proxy: Proxy, reason: Reason = Reason.CONNECT) -> FetchError:
    error = FetchError(reason, "no")
    error.proxy = proxy
    return error


@pytest.mark.parametrize("none", [None, (), "", "none"])
def test_a_pool_may_be_empty(none: Any, clock: Clock):
    assert ProxyPool(Settings(proxies=none), clock=clock).is_empty


def test_a_setting_that_lists_no_proxies_is_refused():
    with pytest.raises(SettingsError, match="neither a list of URLs"):
        Settings(proxies=8080)  # type: ignore[arg-type]  # the test of the type


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

    with pytest.raises(ProxiesAwayError, match="no proxy is usable now: it cannot") as caught:
        pool.choose(PAGE)

    assert caught.value.wait == 6
    assert pool.away() == (6, "it cannot be reached")
    clock.now += 7
    assert pool.away() is None


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
    # Where no other is left, it is asked again.
    pool.failed(B, DOWN, for_good=True)
    assert pool.choose(PAGE) == A


def test_where_two_proxies_fail_alike_neither_is_to_blame(clock: Clock):
    pool = pool_of(clock, A, B)
    pool.may_be_to_blame(failure(A), PAGE, is_fixed=False)

    assert not pool.may_be_to_blame(failure(B), PAGE, is_fixed=False)
    assert (pool.health(A).failures, pool.health(B).failures) == (0, 0)
    # The comparison starts again.
    assert pool.may_be_to_blame(failure(B), PAGE, is_fixed=False)


def test_a_page_that_takes_too_long_is_the_fault_of_a_proxy_that_has_got_nothing_through(
    clock: Clock,
):
    pool = pool_of(clock, A)
    late = failure(A, Reason.TIMEOUT_TOTAL)

    assert pool.another_in(late, PAGE, is_fixed=False) == 0
    assert pool.away() == (10, "the proxy http://a:80 has not forwarded any response in time: no")
    clock.now += 10
    pool.answered(A, answer(through=A))
    assert pool.another_in(late, PAGE, is_fixed=False) is None
    assert pool.another_in(FetchError(Reason.TIMEOUT_TOTAL, "no"), PAGE, is_fixed=False) is None
    assert pool.away() is None


def test_a_page_that_fails_through_ten_proxies_fails_by_itself(clock: Clock):
    many = [parse(f"http://127.0.0.1:{port}") for port in range(1, 100)]
    pool = pool_of(clock, *many)

    told = [pool.may_be_to_blame(failure(each), PAGE, is_fixed=False) for each in many[:10]]

    assert told == [True] * 9 + [False]


@pytest.mark.parametrize(
    ("proxy", "status", "url", "is_doubted"),
    [
        (A, 502, PAGE, True),
        (A, 407, PAGE, True),
        (A, 502, PAGE.replace("http:", "https:"), False),  # through a tunnel
        (S, 502, PAGE, False),  # likewise
        (A, 404, PAGE, False),  # a proxy that has worked is trusted
    ],
)
def test_an_answer_may_be_the_proxys_own_where_it_sees_the_request(
    clock: Clock, proxy: Proxy, status: int, url: str, is_doubted: bool
):
    pool = pool_of(clock, A, S, B)
    pool.answered(proxy, answer(OTHER, through=proxy))

    found = pool.may_be_to_blame(refusal(proxy, status, url), url, is_fixed=False)

    assert found is is_doubted


def test_three_pages_in_a_row_that_others_get_let_a_proxy_rest(clock: Clock):
    pool = pool_of(clock, A, B)

    for number in range(3):
        assert pool.wait(A, "shop.example") <= 0
        page = f"{PAGE}{number}"
        assert pool.may_be_to_blame(failure(A), page, is_fixed=False)
        pool.answered(B, answer(page, through=B))
        pool.note_fetched(page, B)

    assert pool.wait(A, "shop.example") > 0
    assert {pool.choose(PAGE) for _ in range(3)} == {B}


def test_the_proxy_of_a_session_is_overruled_by_others_at_the_same_origin(clock: Clock):
    pool = pool_of(clock, A, B)

    pool.answered(A, answer(OTHER, through=A))
    assert not pool.may_be_to_blame(failure(A), PAGE, is_fixed=True)
    pool.answered(B, answer(OTHER, through=B))
    assert pool.may_be_to_blame(failure(A), PAGE, is_fixed=True)
    assert pool.may_be_to_blame(refusal(A, 502), PAGE, is_fixed=True)
    # A failure that may be the page's counts for the page.
    assert not pool.may_be_to_blame(failure(A, Reason.PROTOCOL), PAGE, is_fixed=True)
    assert pool.wait(A) <= 0
    assert pool.may_be_to_blame(failure(A), PAGE, is_fixed=True)
    # The third one in a row.
    assert pool.wait(A) > 0
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
    pool.ban(A, "other.example")
    pool.unban("shop.example")
    assert pool.wait(A, "shop.example") <= 0
    assert pool.wait(A, "other.example") == 600


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

    assert [pool.bound(None, pool_index=place) for place in range(4)] == [A, B, C, A]
    pool.failed(A, DOWN)
    assert [pool.bound(None, pool_index=place) for place in range(3)] == [B, B, C]
    pool.failed(B, DOWN, for_good=True)
    pool.failed(C, DOWN)
    # One that rests is of more use than one that is dead.
    assert [pool.bound(None, pool_index=place) for place in range(3)] == [A, C, C]


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
    # The proxies of the environment are not read, so a wrong one does no harm.
    variables = {"NO_PROXY": "intranet", "HTTP_PROXY": "ftp://gate"}
    pool = ProxyPool(Settings(proxies=[A]), variables, clock=clock)

    assert pool.asks_for(PAGE)
    assert not pool.asks_for("http://intranet/")


def test_the_environment_is_not_read_where_the_settings_say_no(clock: Clock):
    variables = {"HTTP_PROXY": "http://gate:80"}

    assert ProxyPool(Settings(), variables, clock=clock).asks_for(PAGE)
    assert not ProxyPool(Settings(proxy_env=False), variables, clock=clock).asks_for(PAGE)


def test_a_proxy_that_nothing_installed_speaks_to_is_refused_before_the_first_request(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "python_socks.async_.asyncio", None)

    with pytest.raises(SettingsError, match=re.escape("pip install 'crawlcw[socks]'")):
        pool_of(clock, A, S)
    assert pool_of(clock, A).asks_for(PAGE)


@dataclass
class Net:
    """The network behind the layer. `down` counts the requests that each proxy is yet to fail."""

    down: dict[Proxy, int]
    takes: float = 0.0  #: seconds of an answer or a failure
    for_good: bool = False  #: whether waiting does not help
    asked: list[Proxy | None] = field(default_factory=list)

    async def __call__(self, attempt: Attempt, request: Request, /) -> Response:
        self.asked.append(attempt.proxy)
        await asyncio.sleep(self.takes)
        left = 0 if attempt.proxy is None else self.down.get(attempt.proxy, 0)
        if attempt.proxy is not None and left:
            self.down[attempt.proxy] = left - 1
            raise ProxyFailedError(DOWN, is_permanent=self.for_good)
        return Response(request.url, request=request, status=200)


Asked = Callable[..., float]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[VirtualClock, Asked]]:
    """The clock for a pool, and a function that asks by it and returns the seconds."""
    with virtual(monkeypatch) as clock:

        def ask(
            pool: ProxyPool,
            net: Net,
            *urls: str,
            bound: Proxy | None = None,
            named: Proxy | None = None,
        ) -> float:
            requests = [Request(url, proxy=named and named.url) for url in urls or (PAGE,)]
            session = Session(identity=Identity(name="ann"), jar=None, proxy=bound)
            attempt = Attempt(request=requests[0], session=session)

            async def main() -> None:
                for each in requests:
                    await Proxies(pool)(attempt, each, net)

            began = clock.now
            run(clock, main(), within=timedelta(minutes=1))
            return round(clock.now - began, 1)

        yield clock, ask


REST = {"host_backoff_base": "2s", "host_backoff_max": "2s"}


@pytest.mark.parametrize("bound", [None, A], ids=["any", "of a session"])
def test_a_request_waits_for_the_first_proxy_whose_rest_is_over(
    bound: Proxy | None, asked: tuple[VirtualClock, Asked]
):
    clock, ask = asked
    given = (A,) if bound else (A, B, C)
    pool, net = pool_of(clock.monotonic, *given, **REST), Net(dict.fromkeys(given, 1))

    took = ask(pool, net, bound=bound)

    assert took == 2
    assert len(net.asked) == len(given) + 1


@pytest.mark.parametrize("named", [None, A], ids=["of a session", "its own"])
@pytest.mark.parametrize("rest", ["0s", "10m"])
def test_a_request_with_one_proxy_alone_waits_for_that_until_it_is_dead(
    rest: str, named: Proxy | None, asked: tuple[VirtualClock, Asked]
):
    clock, ask = asked
    rests = {"host_backoff_base": rest, "host_backoff_max": rest}
    pool, net = pool_of(clock.monotonic, A, B, **rests), Net({A: 99})
    bound = None if named else A

    while True:
        began = clock.now
        with pytest.raises(FetchError) as caught:
            ask(pool, net, bound=bound, named=named)
        away, took = caught.value, clock.now - began
        if not isinstance(away, ProxiesAwayError) or away.is_dead:
            break
        assert took == pytest.approx(5, abs=0.1)
        clock.now += away.wait

    assert net.asked == [A] * 3
    # A session gets another one; a request that names its proxy fails by that.
    assert isinstance(away, ProxiesAwayError) is (named is None)
    assert took < 1


def test_an_attempt_keeps_its_proxy_and_asks_hosts_that_are_to_have_none_directly(
    asked: tuple[VirtualClock, Asked],
):
    clock, ask = asked
    pool = ProxyPool(Settings(proxies=[A, B, C]), {"NO_PROXY": "intranet"}, clock=clock.monotonic)
    net = Net({})

    ask(pool, net, PAGE, OTHER, "http://intranet/")

    first, second, third = net.asked
    assert first is not None
    assert (second, third) == (first, None)


def test_a_request_whose_own_proxy_nothing_installed_speaks_to_says_so(
    asked: tuple[VirtualClock, Asked], monkeypatch: pytest.MonkeyPatch
):
    clock, ask = asked
    monkeypatch.setitem(sys.modules, "python_socks.async_.asyncio", None)

    with pytest.raises(SettingsError, match=re.escape("pip install 'crawlcw[socks]'")):
        ask(pool_of(clock.monotonic), Net({}), named=S)
