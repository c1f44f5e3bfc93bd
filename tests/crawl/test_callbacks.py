"""Callbacks of every kind, and the items and requests that they yield."""

import asyncio
import types
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

import attrs
import pydantic
import pytest

from crawlcw.api.request import Request
from crawlcw.api.response import TOO_MANY_LINKS, Response
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider, url_list
from crawlcw.api.user_code import Raised
from crawlcw.crawl.callbacks import SLICE, Produced, Scope, TimeSlices
from crawlcw.errors import FetchError, ParseRefusedError, Reason
from crawlcw.model.task import Task
from crawlcw.model.transitions import Failed
from tests.support.callbacks import run_callback
from tests.support.ledgers import START, make_task

pytestmark = pytest.mark.quick

PAGE = make_task("http://a.example/", depth=2)


class Pages(Spider):
    name = "pages"


def scope(*hosts: str, **settings: Any) -> Scope:
    return Scope.of(hosts or ("a.example",), Settings(**settings))


async def run(
    callback: Callable[..., Any], *arguments: object, **options: Any
) -> Produced | Failed:
    given = {"task": PAGE, "scope": scope(), "spider": Pages()} | options
    return await run_callback(callback, *arguments, **given)


async def ran(
    callback: Callable[..., Any], *, task: Task = PAGE, within: Scope | None = None, **options: Any
) -> Produced:
    """Return the result of a callback that succeeds."""
    result = await run(callback, task=task, scope=within or scope(), **options)
    assert isinstance(result, Produced), result
    return result


async def yielding(*things: object, **options: Any) -> Produced:
    """Return the result of a callback that yields *things*."""
    return await ran(lambda: iter(things), **options)


async def failed(callback: Callable[..., Any]) -> Failed:
    result = await run(callback)
    assert isinstance(result, Failed), result
    return result


def generator() -> Iterator[Any]:
    yield {"n": 1}
    yield Request("http://a.example/1")


async def async_generator() -> AsyncIterator[Any]:
    yield {"n": 1}
    yield Request("http://a.example/1")


async def coroutine() -> list[Any]:
    return [{"n": 1}, Request("http://a.example/1")]


async def coroutine_of_a_generator() -> Iterator[Any]:
    return generator()


async def coroutine_of_an_async_generator() -> AsyncIterator[Any]:
    return async_generator()


@types.coroutine
def coroutine_of_old() -> Generator[Any, Any, list[Any]]:
    yield
    return [{"n": 1}, Request("http://a.example/1")]


def function() -> tuple[Any, ...]:
    return ({"n": 1}, None, Request("http://a.example/1"))


@pytest.mark.parametrize(
    "callback",
    [
        generator,
        async_generator,
        coroutine,
        coroutine_of_a_generator,
        coroutine_of_an_async_generator,
        coroutine_of_old,
        function,
    ],
)
async def test_a_callback_may_be_any_kind_of_function(callback: Callable[..., Any]):
    produced = await ran(callback)

    assert produced.items == [{"n": 1}]
    assert [task.url for task in produced.tasks] == ["http://a.example/1"]


async def test_a_callback_may_return_one_thing():
    assert (await ran(lambda: {"n": 1})).items == [{"n": 1}]
    assert len((await ran(lambda: Request("http://a.example/1"))).tasks) == 1


@dataclass
class Data:
    n: int


@attrs.define
class Attrs:
    n: int


class Model(pydantic.BaseModel):
    n: int


@pytest.mark.parametrize("thing", [{"n": 1}, Data(1), Attrs(1), Model(n=1)])
async def test_an_item_may_be_any_thing_with_named_parts(thing: object):
    assert (await yielding(thing)).items == [{"n": 1}]
    assert (await ran(lambda: thing)).items == [{"n": 1}], "returned by itself"


@pytest.mark.parametrize("thing", ["text", 7, b"x", object(), ["a"], Data])
async def test_what_is_no_item_is_a_failure_that_says_what_to_do(thing: object):
    def parse() -> Iterator[object]:
        yield {"n": 1}
        yield thing

    result = await failed(parse)

    assert result.reason is Reason.PARSE_ERROR
    assert result.message.startswith(f"InvalidItemError: {type(thing).__name__} is not an item: ")
    assert result.message.endswith("use `yield from` for a collection of them") is isinstance(
        thing, list
    )
    lines = (result.traceback or "").splitlines()
    line = parse.__code__.co_firstlineno + 2
    assert lines[1:3] == [f'  File "{__file__}", line {line}, in parse', "    yield thing"]
    assert len(lines) == 4, "frames of crawlcw do not help the author of a spider"


def yields_and_returns() -> Iterator[Any]:
    yield {"n": 1}
    return [{"n": 2}]


async def yields_and_returns_later() -> Iterator[Any]:
    return yields_and_returns()


@pytest.mark.parametrize("callback", [yields_and_returns, yields_and_returns_later])
async def test_what_a_generator_returns_is_not_lost_without_a_word(callback: Callable[..., Any]):
    result = await failed(callback)

    assert result.reason is Reason.PARSE_ERROR
    assert result.message.startswith("SpiderError: a callback that yields must not return a value")
    assert "of type list, or use `yield from`" in result.message


def helper_of_the_user() -> None:
    raise KeyError("title")


def raises() -> None:
    helper_of_the_user()


def raises_in_a_generator() -> Iterator[Any]:
    yield {"n": 1}
    helper_of_the_user()


async def raises_in_an_async_generator() -> AsyncIterator[Any]:
    yield {"n": 1}
    helper_of_the_user()


async def raises_in_a_coroutine() -> None:
    helper_of_the_user()


@pytest.mark.parametrize(
    "callback",
    [raises, raises_in_a_generator, raises_in_an_async_generator, raises_in_a_coroutine],
)
async def test_a_callback_that_raises_is_a_failure_with_the_users_own_traceback(
    callback: Callable[..., Any],
):
    result = await failed(callback)

    assert (result.reason, result.message) == (Reason.PARSE_ERROR, "KeyError: 'title'")
    assert isinstance(result, Raised)
    assert result.where == f"{__file__}:{helper_of_the_user.__code__.co_firstlineno + 1}"
    assert result.traceback is not None
    assert "helper_of_the_user" in result.traceback
    assert callback.__name__ in result.traceback
    assert "crawlcw/crawl/callbacks.py" not in result.traceback


async def test_a_callback_that_awaits_for_too_long_is_told_with_its_line():
    async def parse() -> None:
        await asyncio.Event().wait()

    result = await run(parse, within=0.01)

    assert isinstance(result, Raised)
    assert result.message == "TimeoutError: parse did not end within 0.01 s"
    assert result.where == f"{__file__}:{parse.__code__.co_firstlineno + 1}"


async def test_a_page_that_would_hang_the_parser_is_not_the_spiders_fault():
    def parse() -> None:
        raise ParseRefusedError("more than 2000 tags inside one another")

    result = await failed(parse)

    assert (result.reason, result.traceback) == (Reason.PARSE_KILLED, None)


async def test_a_link_becomes_a_task_one_link_deeper():
    request = Request("http://a.example/1", "parse_book", context={"a": 1}, priority=3)

    (task,) = (await yielding(request)).tasks

    assert (task.depth, task.parent) == (3, PAGE.id)
    assert (task.callback, task.context, task.priority) == ("parse_book", {"a": 1}, 3)
    assert (task.due, task.create_time) == (START, START)


async def test_links_out_of_scope_are_counted_and_not_followed():
    produced = await yielding(
        Request("http://a.example/1"),
        Request("http://www.a.example/2"),
        Request("http://a.example:8080/3"),
        Request("http://b.example/4"),
        Request("http://nota.example/5"),
    )

    assert [task.url[-1] for task in produced.tasks] == ["1", "2", "3"]
    assert produced.dropped.counts == {"refused-scope": 2}


async def test_a_star_allows_every_host():
    produced = await yielding(Request("http://b.example/4"), within=scope("*"))

    assert len(produced.tasks) == 1


@pytest.mark.parametrize(("depth", "followed"), [(0, 1), (1, 1), (2, 0), (3, 0)])
async def test_links_are_followed_down_to_the_depth_allowed(depth: int, followed: int):
    produced = await yielding(
        {"n": 1},
        Request("http://a.example/1"),
        task=make_task("http://a.example/", depth=depth),
        within=scope(max_depth=2),
    )

    assert len(produced.tasks) == followed
    assert produced.dropped.counts == ({} if followed else {"refused-depth": 1})
    assert produced.items == [{"n": 1}], "the page's own items are recorded"


async def test_no_more_links_of_a_page_are_followed_than_allowed():
    """HOSTILE 3.20, 8.4."""
    things = [Request(f"http://a.example/{n}") for n in range(10)]

    produced = await yielding(*things, {"n": 1}, within=scope(max_links_per_page=4))

    assert [task.url[-1] for task in produced.tasks] == ["0", "1", "2", "3"]
    assert produced.dropped.counts == {TOO_MANY_LINKS: 6}
    assert produced.items == [{"n": 1}]


@pytest.mark.parametrize("kind", [iter, list])
async def test_a_list_of_urls_is_read_once_and_written_in_slices(kind: Callable[..., Any]):
    written, called = [], []

    async def write(tasks: list[Task], too_deep: list[Task]) -> None:
        written.append((len(tasks), len(too_deep)))

    @url_list
    async def parse(page: Response) -> Any:
        called.append("parse")
        return kind([page.follow(f"/{n}") for n in range(2 * SLICE + 7)])

    page = Response(PAGE.url, request=Request(PAGE.url), headers={"refresh": "0; url=/elsewhere"})
    produced = await run(parse, page, write=write, scope=scope(max_links_per_page=4))

    assert isinstance(produced, Produced)
    assert called == ["parse"]
    assert (written, len(produced.tasks)) == ([(SLICE, 0)] * 2, 7)
    assert {task.depth for task in produced.tasks} == {PAGE.depth}


def endless() -> Iterator[Any]:
    while True:
        yield {"n": 1}


async def endless_async() -> AsyncIterator[Any]:
    while True:
        yield {"n": 1}


@pytest.mark.parametrize("callback", [endless, endless_async])
async def test_what_yields_for_long_waits_for_its_turn_and_ends_in_time(
    callback: Callable[..., Any],
):
    """HOSTILE 8.2: neither thousands of links nor an endless callback block the event loop."""
    ticks = 0
    calls = 0

    class Counted(TimeSlices):
        async def take(self) -> None:
            nonlocal calls
            calls += 1
            await asyncio.sleep(0)

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    beside = asyncio.create_task(tick())
    result = await run(callback, within=1.2, turns=Counted())
    beside.cancel()

    assert isinstance(result, Failed)
    assert result.message == "TimeoutError: parse did not end within 1.2 s"
    if callback is endless:
        lines = (result.traceback or "").splitlines()
        assert lines[1:-1] == [
            f'  File "{__file__}", line {endless.__code__.co_firstlineno + 2}, in endless',
            '    yield {"n": 1}',
        ]
    # Two calls show that it waits between steps, however slow the machine is.
    assert calls >= 2, "one call before the callback begins, one after"
    assert ticks >= 1


async def test_links_that_are_none_to_fetch_are_counted_by_reason():
    produced = await yielding(
        Request("mailto:me@a.example"),
        Request("http://["),
        Request.refused("", FetchError(Reason.URL_INVALID, "no link")),
        Request("http://a.example/" + "x" * 3000),
        Request("http://a.example/good"),
    )

    assert [task.url for task in produced.tasks] == ["http://a.example/good"]
    assert produced.dropped.counts == {"refused-scheme": 1, "url-invalid": 2, "url-too-long": 1}
    assert produced.dropped.examples == {
        "refused-scheme": ["mailto:me@a.example"],
        "url-invalid": ["http://[", "no link"],
        "url-too-long": ["http://a.example/" + "x" * 182 + "…"],
    }


TRAPS = {
    "http://a.example/" + "x" * 2000: "url-too-long",
    "http://a.example/" + "/".join(map(str, range(21))): "trap-path-segments",
    "http://a.example/a/b/a/b/a/b/a/b": "trap-repeated-segment",
    "http://a.example/?" + "&".join(f"facet{n}=on" for n in range(40)): "trap-query-parameters",
}


@pytest.mark.parametrize("dont_filter", [False, True])
async def test_links_that_look_like_traps_are_counted_by_reason(dont_filter: bool):
    """HOSTILE 4.16."""
    links = [Request(url, dont_filter=dont_filter) for url in TRAPS]

    produced = await yielding(*links, links[2], Request("http://a.example/good"))

    assert [task.url for task in produced.tasks] == ["http://a.example/good"]
    assert produced.dropped.counts == dict.fromkeys(TRAPS.values(), 1) | {
        "trap-repeated-segment": 2
    }


@pytest.mark.parametrize(
    ("url", "reason"), [*TRAPS.items(), ("http://b.example/", "refused-scope")]
)
def test_a_redirect_into_a_trap_or_out_of_scope_is_refused(url: str, reason: str):
    with pytest.raises(FetchError) as caught:
        scope().admit_url(url)

    assert caught.value.reason == reason


async def test_links_that_the_ledger_has_are_left_out():
    seen = {make_task("http://a.example/1").id}

    produced = await yielding(
        Request("http://a.example/1"), Request("http://a.example/2"), seen=seen
    )
    changed = await yielding(Request("http://a.example/1", changed=START), seen=seen)

    assert [task.url[-1] for task in produced.tasks] == ["2"]
    assert not produced.dropped.counts
    assert len(changed.tasks) == 1, "the ledger decides whether its copy is older"


async def test_unfiltered_links_are_tasks_of_their_own_and_the_same_when_parsed_again():
    def parse() -> Iterator[Any]:
        yield Request("http://a.example/1")
        yield Request("http://a.example/1", dont_filter=True)
        yield Request("http://a.example/1", dont_filter=True)

    first, again = await ran(parse), await ran(parse)
    elsewhere = await ran(parse, task=make_task("http://a.example/other"))

    ids = [task.id for task in first.tasks]
    assert len(set(ids)) == 3
    assert [task.id for task in again.tasks] == ids
    assert len({task.id for task in elsewhere.tasks} & set(ids)) == 1, "that of the filtered one"
