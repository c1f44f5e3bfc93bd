"""Tracked tasks over HTTP: `crawlcw serve` in a process of its own, and its workers."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from tests.support.docs import REPOSITORY

#: Tasks that each worker holds at once; it finishes one after the other.
SHARE = 20
#: The most tasks that one request adds.
_CHUNK = 1_000


async def measured(url: str, tasks: int, *, workers: int) -> tuple[float, float]:
    """Return the tasks added and the tasks done, each per second."""
    keys = [f"order-{n}" for n in range(tasks)]
    async with (
        _serving(url) as address,
        aiohttp.ClientSession(address, connector=aiohttp.TCPConnector(limit=workers)) as client,
    ):
        began = time.monotonic()
        for start in range(0, tasks, _CHUNK):
            some = [{"key": key} for key in keys[start : start + _CHUNK]]
            await _asked(client, "/create_task", {"tasks": some})
        added = time.monotonic()
        done = await asyncio.gather(*(_work(client, f"w{n}") for n in range(workers)))
        ended = time.monotonic()
    assert sum(done) == tasks, done
    return tasks / (added - began), tasks / (ended - added)


async def _work(client: aiohttp.ClientSession, worker: str) -> int:
    """Hold and finish tasks until none is left; return their number."""
    done = 0
    while held := (await _asked(client, "/claim_task", {"worker": worker, "limit": SHARE}))[
        "tasks"
    ]:
        for task in held:
            ending = {"key": task["key"], "fence": task["fence"], "status": "finished"}
            await _asked(client, "/end_task", {"worker": worker, **ending})
        done += len(held)
    return done


async def _asked(client: aiohttp.ClientSession, path: str, body: dict) -> dict:
    async with client.post(path, json=body) as response:
        answer = await response.json()
        assert response.status == 200, answer
        return answer


@asynccontextmanager
async def _serving(url: str) -> AsyncIterator[str]:
    command = [sys.executable, "-m", "crawlcw", "serve", "orders", "--ledger", url, "--port", "0"]
    server = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, cwd=REPOSITORY
    )
    assert server.stdout is not None
    try:
        line = (await server.stdout.readline()).decode()
        # serving orders at http://127.0.0.1:8700 (see ...)
        yield line.partition(" at ")[2].partition(" ")[0]
    finally:
        server.terminate()
        await server.communicate()
