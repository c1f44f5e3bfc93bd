"""Responses to the dashboard's page: numbers, search, one task, actions, and the stream."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest

from crawlcw.api.request import Request
from crawlcw.crawl.control import Control
from crawlcw.errors import Reason
from crawlcw.ledger.protocol import Counters, Ledger, Worker
from crawlcw.ledger_opening import open_ledger
from crawlcw.model.rates import Point, Vitals
from crawlcw.model.task import PRIVATE_KEY, Status
from crawlcw.tracking import Tracker
from tests.support.dashboards import Page, dashboard
from tests.support.ledgers import claimed, failure, make_task, success

STEER = "/api/crawls/books/steer"
BAD = "http://example.com/bad"
HOSTILE = 'http://example.com/?"><script>alert(1)</script>'


@asynccontextmanager
async def books(url: str) -> AsyncIterator[tuple[Ledger, Page]]:
    """Open a ledger with a finished, a failed and a waiting page, and its dashboard."""
    ledger = await open_ledger(url, "books")
    try:
        now = ledger.now()
        found = {"due": now, "update_time": now, "create_time": now}
        start = make_task("http://example.com/", **found)
        await ledger.tasks.add([start, make_task(BAD, **found)])
        leases = {lease.task.url: lease for lease in await claimed(ledger)}
        await ledger.outcomes.commit(
            [
                success(ledger, leases[start.url], {"title": "<b>x</b>"}, url=start.url),
                failure(ledger, leases[BAD], Reason.CONNECT, message="refused"),
            ]
        )
        link = make_task("http://example.com/link", parent=start.id, depth=1, **found)
        await ledger.tasks.add([replace(link, url=HOSTILE, due=now + timedelta(days=1))])
        async with dashboard(url) as page:
            await page.start()
            yield ledger, page
    finally:
        await ledger.close()


async def search(page: Page, **query: Any) -> list[str]:
    status, found = await page.get(f"/api/crawls/books/tasks?{urlencode(query)}")
    assert status == 200, found
    return [task["url"] for task in found["tasks"]]


async def event(
    page: Page, name: str = "books", *, until: Callable[[Any], bool] = lambda now: True
) -> Any:
    """Return the first event of the live stream with counts that fulfils *until*."""
    live = page.http.get(f"{page.address}/api/crawls/{name}/live")
    async with live as response, asyncio.timeout(60):
        assert response.content_type == "text/event-stream"
        async for line in response.content:
            if not line.startswith(b"data: "):
                continue
            now = json.loads(line[6:])
            if now["counted_at"] is not None and until(now):
                return now
    raise AssertionError("the stream has ended")


async def join_worker(ledger: Ledger, counters: Counters, vitals: Vitals) -> None:
    """Let a worker join the crawl, and report these numbers."""
    now = ledger.now()
    await ledger.workers.join(
        Worker(name="w", machine="m", pid=1, birth="1", started=now, heartbeat=now)
    )
    await ledger.workers.beat("w", counters, vitals=vitals)


async def test_the_page_is_told_what_the_ledger_holds(ledger_url: str):
    async with books(ledger_url), Tracker.open(ledger_url, "orders") as orders:
        await orders.add("one")
        empty = await open_ledger(ledger_url, "unused")
        await empty.close()

        async with dashboard(ledger_url) as every, dashboard(ledger_url, "orders") as one:
            assert (await every.start())["crawls"] == ["books", "orders"]
            assert (await one.start())["crawls"] == ["orders"]
            assert (await one.get("/api/crawls/books/tasks"))[0] == 404
            assert (await every.get("/api/crawls/unused/live"))[0] == 404


async def test_the_start_page_lists_each_crawl_with_its_numbers(ledger_url: str):
    async with books(ledger_url) as (ledger, _), Tracker.open(ledger_url, "orders") as orders:
        await orders.add("one")
        await join_worker(ledger, Counters(items=1), Vitals(rate=2.5))
        async with dashboard(ledger_url) as every, dashboard(ledger_url, "orders") as one:
            await event(every)
            await event(every, "orders")
            status, answer = await every.get("/api/crawls")
            _, only = await one.get("/api/crawls")

    assert status == 200
    book, order = answer["crawls"]
    assert (book["name"], book["kind"], book["workers"], book["rate"]) == (
        "books",
        "spider",
        1,
        2.5,
    )
    assert (book["counts"]["finished"], book["backlog"], book["total"]) == (1, 2, 3)
    assert (order["name"], order["kind"], order["workers"]) == ("orders", "use_case", 0)
    assert [crawl["name"] for crawl in only["crawls"]] == ["orders"]


async def test_a_crawl_that_cannot_be_read_does_not_hide_the_others(tmp_path):
    url = f"sqlite:///{tmp_path}/ledger.db"
    async with books(url), Tracker.open(url, "orders") as orders:
        await orders.add("one")
        with closing(sqlite3.connect(tmp_path / "ledger.db")) as db, db:
            change = 'UPDATE "crawlcw.schema" SET version = 1 WHERE spider = ?'
            db.execute(change, ("orders",))
        async with dashboard(url) as every:
            _, answer = await every.get("/api/crawls")

    book, order = answer["crawls"]
    assert book["name"] == "books"
    assert "error" not in book
    assert order.keys() == {"name", "error"}
    assert "orders" in order["error"]


async def test_the_stream_says_how_the_crawl_is(ledger_url: str):
    async with books(ledger_url) as (_, page):
        now = await event(page)

        assert now["kind"] == "spider"
        assert now["counts"] == {
            "todo": 1,
            "failed": 1,
            "processing": 0,
            "finished": 1,
            "ignored": 0,
        }
        assert now["reasons"] == [{"reason": "connect", "tasks": 1, "failure": True}]
        assert [(each["url"], each["error"]) for each in now["failures"]] == [
            ("http://example.com/bad", "refused")
        ]
        assert (now["workers"], now["paused"]) == ([], None)


async def test_an_unwanted_page_is_no_failure(ledger_url: str):
    async with books(ledger_url) as (_, page):
        await page.post(
            "/api/crawls/books/act", {"action": "ignore", "selection": {"status": ["todo"]}}
        )

        now = await event(page, until=lambda now: now["counts"]["ignored"] == 1)

        assert {each["reason"]: each["failure"] for each in now["reasons"]} == {
            "connect": True,
            "withdrawn": False,
        }
        assert [each["reason"] for each in now["failures"]] == ["connect"]


async def test_tasks_are_found_by_what_is_asked(ledger_url: str):
    async with books(ledger_url) as (_, page):
        assert await search(page, text="script>al") == [HOSTILE]
        assert await search(page, prefix="http://example.com/b") == ["http://example.com/bad"]
        assert await search(page, status="finished,failed", host="example.com", limit=9) == (
            await search(page, changed_before="2999-01-01T00:00:00Z", status="failed,finished")
        )
        assert await search(page, reason="connect") == ["http://example.com/bad"]
        assert await search(page, changed_since="2999-01-01T00:00:00Z") == []
        assert await search(page, text="nowhere") == []


async def test_a_task_with_a_fingerprint_is_found_by_its_complete_url(ledger_url: str):
    request = Request("http://example.com/product?id=1", fingerprint=b"1")
    async with books(ledger_url) as (ledger, page):
        await ledger.tasks.add([request.task(now=ledger.now())])

        assert await search(page, text="HTTP://EXAMPLE.COM/product?id=1") == [request.url]
        assert await search(page, prefix="http://EXAMPLE.com/product?id=1") == [request.url]
        assert await search(page, text="HTTP://EXAMPLE.COM/product?id=2") == []


async def test_private_values_of_a_context_are_not_shown(ledger_url: str):
    context = {"page": 1, PRIVATE_KEY: {"cookies": {"session": "s3cret"}}}
    task = make_task("http://example.com/login", context=context, headers=(("A", "s3cret"),))
    async with books(ledger_url) as (ledger, page):
        await ledger.tasks.add([task])

        status, details = await page.get(f"/api/crawls/books/tasks/{task.id.hex()}")

        assert (status, details["context"]) == (200, '{"page":1}')
        assert "s3cret" not in json.dumps(details)


async def test_a_search_goes_on_page_by_page(ledger_url: str):
    async with books(ledger_url) as (_, page):
        urls, cursor = [], {}
        while cursor is not None:
            query = urlencode({"limit": 1, **cursor})
            _, found = await page.get(f"/api/crawls/books/tasks?{query}")
            urls += [task["url"] for task in found["tasks"]]
            cursor = {"cursor": found["next_cursor"]} if found["next_cursor"] else None

        assert sorted(urls) == sorted(await search(page))
        assert len(urls) == 3


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=x", "status=gone", "reason=why", "changed_since=now", "cursor=x",
     "text=%00", "a=1", "limit=1&limit=2"],
)  # fmt: skip
async def test_a_search_that_makes_no_sense_is_refused(tmp_path, query: str):
    async with books(f"sqlite:///{tmp_path}/ledger.db") as (_, page):
        status, answer = await page.get(f"/api/crawls/books/tasks?{query}")

        assert status == 422
        assert query.partition("=")[0] in answer["error"]


async def test_one_task_s_story_is_told(ledger_url: str):
    async with books(ledger_url) as (_, page):
        _, found = await page.get("/api/crawls/books/tasks")
        ids = {task["url"]: task["id"] for task in found["tasks"]}

        async def story(url: str) -> Any:
            status, task = await page.get(f"/api/crawls/books/tasks/{ids[url]}")
            assert status == 200
            return task

        link, bad = await story(HOSTILE), await story("http://example.com/bad")
        start = await story("http://example.com/")
        assert link["linked_from"] == [{"id": start["id"], "url": "http://example.com/"}]
        assert (link["depth"], link["callback"], link["method"]) == (1, "parse", "GET")
        assert [(e["attempt"], e["kind"], e["message"]) for e in bad["errors"]] == [
            (1, "connect", "refused")
        ]
        assert start["items"] == ['{"title":"<b>x</b>"}']
        assert start["response"]["status"] == 200
        assert (await page.get(f"/api/crawls/books/tasks/{'0' * 32}"))[0] == 404


async def test_items_are_listed_page_by_page_with_their_tasks(ledger_url: str):
    async with books(ledger_url) as (ledger, page):
        urls = [f"http://example.com/shelf/{n}" for n in range(4)]
        now = ledger.now()
        moment = {"due": now, "update_time": now, "create_time": now}
        await ledger.tasks.add([make_task(url, **moment) for url in urls])
        items = {urls[0]: [], urls[1]: [{"n": n} for n in range(120)]}
        for lease in await claimed(ledger):
            if lease.task.url in urls:
                found = items.get(lease.task.url, [{"title": "one"}])
                await ledger.outcomes.commit([success(ledger, lease, *found)])

        listed, pages, cursor = {}, 0, {}
        while cursor is not None:
            query = urlencode({"limit": 2, **cursor})
            status, answer = await page.get(f"/api/crawls/books/items?{query}")
            assert status == 200
            listed |= {task["url"]: task for task in answer["tasks"]}
            cursor = {"cursor": answer["next_cursor"]} if answer["next_cursor"] else None
            pages += 1

        assert pages >= 2
        assert {url: task["item_count"] for url, task in listed.items()} == {
            "http://example.com/": 1,
            urls[1]: 120,
            urls[2]: 1,
            urls[3]: 1,
        }
        assert listed["http://example.com/"]["items"] == ['{"title":"<b>x</b>"}']
        assert listed[urls[1]]["items"] == [f'{{"n":{n}}}' for n in range(50)]
        _, story = await page.get(f"/api/crawls/books/tasks/{listed[urls[2]]['id']}")
        assert story["url"] == urls[2]


async def test_a_page_of_items_ends_early_if_its_tasks_have_many(tmp_path):
    async with books(f"sqlite:///{tmp_path}/ledger.db") as (ledger, page):
        now = ledger.now()
        moment = {"due": now, "update_time": now, "create_time": now}
        urls = {f"http://example.com/shelf/{n}" for n in range(5)}
        await ledger.tasks.add([make_task(url, **moment) for url in urls])
        for lease in await claimed(ledger):
            if lease.task.url in urls:
                items = [{"n": n} for n in range(60)]
                await ledger.outcomes.commit([success(ledger, lease, *items)])

        numbers, listed, cursor = [], [], {}
        while cursor is not None:
            _, answer = await page.get(f"/api/crawls/books/items?{urlencode(cursor)}")
            numbers.append(sum(len(task["items"]) for task in answer["tasks"]))
            listed += [task["url"] for task in answer["tasks"]]
            cursor = {"cursor": answer["next_cursor"]} if answer["next_cursor"] else None

        assert numbers == [100, 100, 51]
        assert sorted(listed) == sorted([*urls, "http://example.com/"])


async def test_what_a_request_carries_in_secret_is_not_shown(ledger_url: str):
    async with books(ledger_url) as (ledger, page):
        secret = {"headers": (("Authorization", "Bearer s3cret"),), "body": b"password=s3cret"}
        task = make_task("http://example.com/login", method="POST", **secret)
        await ledger.tasks.add([task])

        status, found = await page.get(f"/api/crawls/books/tasks/{task.id.hex()}")

        assert (status, found["body_bytes"]) == (200, 15)
        assert "s3cret" not in json.dumps(found)


async def test_tasks_are_retried_ignored_and_reset(ledger_url: str):
    async with books(ledger_url) as (ledger, page):
        _, found = await page.get("/api/crawls/books/tasks")
        ids = {task["url"]: task["id"] for task in found["tasks"]}
        bad, start = ids["http://example.com/bad"], ids["http://example.com/"]

        async def act(action: str, **which: Any) -> int:
            body = {"action": action, **which}
            status, would = await page.post("/api/crawls/books/act", {**body, "dry_run": True})
            assert status == 200, would
            status, done = await page.post("/api/crawls/books/act", body)
            assert (status, done) == (200, would)
            changed: int = done["changed"]
            return changed

        async def state(identity: str) -> tuple[Status, Reason | None]:
            record = await ledger.tasks.get(bytes.fromhex(identity))
            return record.task.status, record.task.reason

        assert await act("retry", tasks=[bad, start]) == 1
        assert await state(bad) == (Status.TODO, None)
        assert await act("ignore", tasks=[bad]) == 1
        assert await state(bad) == (Status.IGNORED, Reason.WITHDRAWN)
        assert await act("reset", selection={"status": ["ignored", "finished"]}) == 2
        assert await state(bad) == await state(start) == (Status.TODO, None)
        assert await act("ignore", selection={"prefix": "http://example.com/b"}) == 1
        assert await act("retry", selection={"reason": "connect"}) == 0
        await event(page, until=lambda now: now["counts"]["ignored"] == 1)


@pytest.mark.parametrize(
    "body",
    [
        {"action": "retry"},
        {"action": "retry", "tasks": []},
        {"action": "retry", "tasks": ["xx"]},
        {"action": "retry", "tasks": ["0" * 32], "selection": {}},
        {"action": "purge", "selection": {}},
        {"action": "retry", "selection": {"text": "x"}},
    ],
    ids=str,
)
async def test_an_action_that_makes_no_sense_changes_nothing(tmp_path, body: dict[str, Any]):
    async with books(f"sqlite:///{tmp_path}/ledger.db") as (_, page):
        status, answer = await page.post("/api/crawls/books/act", body)

        assert status == 422
        assert answer["error"]


async def test_a_crawl_is_paused_and_resumed(ledger_url: str):
    async with books(ledger_url) as (ledger, page):
        status, answer = await page.post("/api/crawls/books/steer", {"order": "pause"})
        assert status == 200
        assert (await ledger.notes.control())["paused"] == answer["paused"]
        assert answer["paused"] is not None
        await event(page, until=lambda now: now["paused"] == answer["paused"])

        await page.post("/api/crawls/books/steer", {"order": "resume"})
        await event(page, until=lambda now: now["paused"] is None)


async def test_settings_are_set_and_shown_and_undone(ledger_url: str):
    async with books(ledger_url) as (ledger, page):
        settings = {"delay": "2s", "concurrency": "4"}
        status, answer = await page.post(STEER, {"order": "set", "settings": settings})
        assert (status, answer) == (200, {"paused": None, "set": settings})
        assert Control.of(await ledger.notes.control()).settings == settings
        await event(page, until=lambda now: now["settings"] == settings)

        await page.post(STEER, {"order": "set", "settings": {"delay": None}})
        await event(page, until=lambda now: now["settings"] == {"concurrency": "4"})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"order": "set", "settings": {"delay": "soon"}}, "delay"),
        ({"order": "set", "settings": {"concurrency": "0"}}, "concurrency"),
        ({"order": "set", "settings": {"user_agent": "x"}}, "user_agent"),
        ({"order": "set", "settings": {"nothing": "1"}}, "is not a setting"),
        ({"order": "set", "settings": {"delay": 2}}, "settings.delay"),
        ({"order": "stop", "settings": {"delay": "2s"}}, "only the order `set`"),
        ({"order": "purge"}, "order"),
    ],
    ids=str,
)
async def test_an_order_that_crawls_cannot_follow_is_refused(
    tmp_path, body: dict[str, Any], message: str
):
    async with books(f"sqlite:///{tmp_path}/ledger.db") as (ledger, page):
        status, answer = await page.post(STEER, body)

        assert status == 422
        assert message in answer["error"]
        assert await ledger.notes.control() == {}


async def test_a_stop_ends_the_crawls_that_have_begun(ledger_url: str):
    async with books(ledger_url) as (ledger, page):
        started = ledger.now()
        status, _ = await page.post(STEER, {"order": "stop"})
        control = Control.of(await ledger.notes.control())

        assert status == 200
        assert control.stops(started)
        assert not control.stops(ledger.now() + timedelta(seconds=1))


async def test_a_second_pause_keeps_the_time_of_the_first(ledger_url: str):
    async with books(ledger_url) as (_, page):
        _, first = await page.post(STEER, {"order": "pause"})
        _, second = await page.post(STEER, {"order": "pause"})

        assert first["paused"] is not None
        assert second == first


async def test_a_use_case_is_shown_with_its_results_and_claims(ledger_url: str):
    async with Tracker.open(ledger_url, "orders") as tracker:
        await tracker.add("one", {"n": 1})
        async with dashboard(ledger_url) as page:
            await page.start()
            now = await event(page, "orders")
            (row,) = (await page.get("/api/crawls/orders/tasks?text=one"))[1]["tasks"]
            _, story = await page.get(f"/api/crawls/orders/tasks/{row['id']}")

            assert (now["kind"], now["counts"]["todo"]) == ("use_case", 1)
            assert (story["tracked"], story["data"], story["results"]) == (True, '{"n":1}', {})
            for order in ("pause", "resume", "set", "stop"):
                status, answer = await page.post("/api/crawls/orders/steer", {"order": order})
                assert (status, answer["error"]) == (422, f"a use case has no crawl to {order}")


async def test_a_chart_has_what_the_workers_have_left_in_the_ledger(ledger_url: str):
    async with books(ledger_url) as (ledger, page):
        now = ledger.now()
        for age, finished in ((180, 0), (120, 60), (60, 180)):
            time = now - timedelta(seconds=age)
            vitals = Vitals(finished=finished, processing=7, memory=1 << 20)
            point = Point(
                worker="w", started=now - timedelta(seconds=180), time=time, vitals=vitals
            )
            await ledger.rates.record(point)

        status, found = await page.get("/api/crawls/books/history?span=hour")

        assert status == 200
        assert max(found["processing"]) == 7
        # The steps begin with the worker and stop at its last point.
        assert found["time"][0] == pytest.approx((now - timedelta(seconds=180)).timestamp())
        assert found["end"] == pytest.approx((now - timedelta(seconds=60)).timestamp())
        assert found["finished"] == [1, 2]
        for span, step in (("day", 600), ("week", 3600)):
            _, found = await page.get(f"/api/crawls/books/history?span={span}")
            assert found["step"] == step
            assert len({len(column) for column in found.values() if isinstance(column, list)}) == 1


async def test_the_dashboard_ends_though_pages_are_open(tmp_path):
    async with asyncio.timeout(60):
        async with books(f"sqlite:///{tmp_path}/ledger.db") as (_, page):
            live = await page.http.get(f"{page.address}/api/crawls/books/live")
            await live.content.readline()
        assert live.status == 200
        live.close()


async def test_a_ledger_that_is_away_is_said_to_be(tmp_path):
    async with books(f"sqlite:///{tmp_path}/ledger.db") as (_, page), asyncio.timeout(60):
        live = await page.http.get(f"{page.address}/api/crawls/books/live")
        await live.content.readline()
        for end in ("", "-wal", "-shm"):
            (tmp_path / f"ledger.db{end}").rename(tmp_path / f"away{end}")

        async for line in live.content:
            if line == b"event: away\n":
                break
        assert b"is unavailable" in await live.content.readline()
        for end in ("", "-wal", "-shm"):
            (tmp_path / f"away{end}").rename(tmp_path / f"ledger.db{end}")
        async for line in live.content:
            if line == b"event: overview\n":
                break
        live.close()


async def metrics(page: Page, **headers: str) -> str:
    async with page.http.get(f"{page.address}/metrics", headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.text()


async def test_prometheus_is_told_what_the_page_shows_of_every_crawl(ledger_url: str):
    async with books(ledger_url) as (ledger, _), Tracker.open(ledger_url, "orders") as orders:
        await orders.add("one")
        await join_worker(ledger, Counters(), Vitals(rate=2.5, processing=7))
        await ledger.notes.set_control({"paused": "2026-01-01T00:00:00Z"})
        async with dashboard(ledger_url) as every:
            # By then, its tasks are counted.
            for name in ("books", "orders"):
                await event(every, name)
            text = await metrics(every)

    told = {
        'crawlcw_ledger_tasks{name="books",status="failed"} 1.0',
        'crawlcw_ledger_tasks{name="orders",status="todo"} 1.0',
        'crawlcw_ledger_workers{name="books"} 1.0',
        'crawlcw_ledger_tasks_per_second{name="books"} 2.5',
        'crawlcw_ledger_tasks_processing{name="books"} 7.0',
        'crawlcw_ledger_paused{name="books"} 1.0',
        'crawlcw_ledger_paused{name="orders"} 0.0',
        'crawlcw_ledger_read{name="books"} 1.0',
    }
    assert told <= set(text.splitlines())
    # Labels contain no crawled text.
    assert "example.com" not in text
