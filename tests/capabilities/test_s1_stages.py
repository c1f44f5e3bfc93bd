"""S1: a task passes stages, and carries their data."""

import random
import string
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crawlcw.assembly import run_spider
from crawlcw.testing import ReplayDownloader
from crawlcw.tracking import NewTask, Tracker
from tests.capabilities.use_cases import UseCases, due_keys, finish, task_of
from tests.support.ledgers import FakeClock

ALPHABET = string.ascii_letters + "$.%\0é\N{SNOWMAN} \n'\""


def anything(chance: random.Random, depth: int = 0) -> Any:
    """Return a random nested value that every ledger can hold."""
    text = "".join(chance.choices(ALPHABET, k=chance.randrange(6)))
    scalars = [
        None,
        chance.random() < 0.5,
        chance.randrange(-(1 << 63), 1 << 63),
        chance.random(),
        text,
        chance.randbytes(4),
        datetime(2026, 1, 1, tzinfo=UTC) + timedelta(milliseconds=chance.randrange(1 << 40)),
    ]
    if depth == 4 or chance.random() < 0.4:
        return chance.choice(scalars)
    if chance.random() < 0.5:
        return [anything(chance, depth + 1) for _ in range(chance.randrange(4))]
    return mapping(chance, depth + 1)


def mapping(chance: random.Random, depth: int = 0) -> dict[str, Any]:
    return {
        "".join(chance.choices(ALPHABET, k=chance.randrange(6))): anything(chance, depth)
        for _ in range(chance.randrange(1, 6))
    }


@pytest.mark.seed("1.1")
async def test_after_a_crash_between_stages_a_task_goes_on_with_the_stage_it_was_in(
    tracker: Tracker, other: Tracker, clock: FakeClock
):
    await tracker.add("video-1", stage="download")
    async with tracker.start("video-1") as execution:
        execution.result = "file"
        await execution.advance("encode", context={"size": 3})
    await tracker.session.claim([await task_of(tracker, "video-1")])
    clock.advance(seconds=60)  # the worker of the stage "encode" has crashed
    async with other.start("video-1") as execution:
        seen = (execution.stage, execution.context, execution.results, execution.attempt)

    assert seen == ("encode", {"size": 3}, {"download": "file"}, 1)
    trace = (await tracker.get("video-1")).trace
    assert [(each.stage, each.event) for each in trace] == [
        ("download", "advance"),
        ("encode", "finish"),
    ]


@pytest.mark.seed("1.2")
async def test_whatever_is_passed_along_arrives_as_it_was(tracker: Tracker):
    chance = random.Random(12)
    contexts = [mapping(chance) for _ in range(25)]
    await tracker.add_many(
        NewTask(f"task-{n}", context=context) for n, context in enumerate(contexts)
    )
    received, passed_on = [], []
    for n in range(len(contexts)):
        async with tracker.start(f"task-{n}") as execution:
            received.append(execution.context)
            await execution.advance("next", context=execution.context)
        passed_on.append((await tracker.get(f"task-{n}")).context)

    assert received == passed_on == contexts


@pytest.mark.seed("1.3")
@pytest.mark.parametrize(
    "content",
    [{"json": {"a": [1, 2.5, None]}}, {"url": "http://a/?q=%24set#x"}, {"text": "ü" * 5000}],
    ids=["json", "url", "text"],
)
async def test_content_of_any_kind_is_kept(tracker: Tracker, content: dict[str, Any]):
    await tracker.add("task-1", content)

    assert (await tracker.get("task-1")).data == content


@pytest.mark.seed("1.4")
async def test_of_large_content_the_document_has_a_pointer_only(
    use_cases: UseCases, tracker: Tracker
):
    video = random.Random(4).randbytes(20_000_000)
    await tracker.add("video-1", {"video": video, "name": "film"})
    (document,) = use_cases.documents(tracker.name)
    async with tracker.start("video-1") as execution:
        read = execution.data["video"]
        execution.data["video"] = None

    assert len(repr(document)) < 64 * 1024
    assert read == video
    assert (await tracker.get("video-1")).data == {"video": None, "name": "film"}


@pytest.mark.seed("1.5")
async def test_a_long_chain_takes_turns_with_short_tasks(tracker: Tracker, clock: FakeClock):
    await tracker.add("long", stage="s0")
    await tracker.add_many([f"short-{n}" for n in range(3)])
    done = []
    while page := await tracker.ledger.tasks.page(limit=1):
        clock.advance(seconds=1)
        async with tracker.start(page[0].url) as execution:
            done.append(f"{execution.key} {execution.stage}")
            if execution.key == "long" and execution.stage != "s2":
                await execution.advance(f"s{int(execution.stage[1]) + 1}")

    assert sorted(done[:4]) == ["long s0", "short-0 todo", "short-1 todo", "short-2 todo"]
    assert done[4:] == ["long s1", "long s2"]


SPIDER = """
from crawlcw import Spider

class Books(Spider):
    name = "books"
    start_urls = ["http://a.example/"]

    def parse(self, response):
        yield from response.follow_all("a", self.parse_book)

    def parse_book(self, response):
        yield {"title": response.css_first("h1").text()}
"""


PAGES = {
    "http://a.example/robots.txt": "",
    "http://a.example/": '<a href="/1">1</a><a href="/2">2</a>',
    "http://a.example/1": "<h1>One</h1>",
    "http://a.example/2": "<h1>Two</h1>",
}


@pytest.mark.seed("1.6")
async def test_a_spider_of_fifteen_lines_crawls(use_cases: UseCases):
    declared: dict[str, Any] = {}
    exec(SPIDER, declared)
    report = await run_spider(
        declared["Books"](), ledger=use_cases.url, downloader=ReplayDownloader(PAGES)
    )

    assert len(SPIDER.strip().splitlines()) <= 15
    assert (report.finish_reason, report.pages, report.items) == ("drained", 3, 2)


@pytest.mark.seed("1.22")
async def test_tasks_come_by_priority_and_then_by_the_time_at_which_they_were_due(
    tracker: Tracker, clock: FakeClock
):
    await tracker.add("late", delay=timedelta(seconds=3))
    await tracker.add("early", delay=timedelta(seconds=1))
    await tracker.add("now")
    await tracker.add("urgent", delay=timedelta(seconds=2), priority=5)
    orders = []
    for _ in range(4):
        orders.append(await due_keys(tracker))
        clock.advance(seconds=1)

    assert orders == [
        ["now"],
        ["now", "early"],
        ["urgent", "now", "early"],
        ["urgent", "now", "early", "late"],
    ]
    await finish(tracker, "urgent")
