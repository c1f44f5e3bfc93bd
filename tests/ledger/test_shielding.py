"""PyMongo's asyncio client under callers that AnyIO cancels again and again."""

import asyncio
import socket

import anyio
import pymongo
import pytest
from pymongo.errors import ServerSelectionTimeoutError

from crawlcw.ledger.mongo.drivers import Shielded, shielded

_AWAY = {"serverSelectionTimeoutMS": 500, "heartbeatFrequencyMS": 500}


@pytest.fixture
def port() -> int:
    """Return an unused port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        number: int = taken.getsockname()[1]
        return number


async def test_callers_that_are_cancelled_leave_a_client_that_can_be_closed(port: int):
    client = shielded(pymongo.AsyncMongoClient("127.0.0.1", port, **_AWAY))
    ended: list[type[BaseException] | None] = []

    async def ask() -> None:
        try:
            await client.x.tasks.find_one({})
        except BaseException as error:
            ended.append(type(error))
            raise

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()

    with anyio.fail_after(20):
        await client.close()
    assert ended == [asyncio.CancelledError] * 5


async def test_an_error_is_the_callers(port: int):
    client = shielded(pymongo.AsyncMongoClient("127.0.0.1", port, **_AWAY))

    with pytest.raises(ServerSelectionTimeoutError):
        await client.x.tasks.find_one({})
    await client.close()


async def test_an_operation_goes_on_without_its_caller(mongodb_uri: str):
    client = shielded(pymongo.AsyncMongoClient(mongodb_uri))
    tasks = client.get_default_database(default="crawlcw").shielding
    await tasks.drop()

    async with anyio.create_task_group() as callers:
        callers.start_soon(tasks.insert_many, [{"_id": number} for number in range(3)])
        await anyio.sleep(0)
        callers.cancel_scope.cancel()

    with anyio.fail_after(20):
        while await tasks.count_documents({}) < 3:
            await anyio.sleep(0.01)
    found = [each["_id"] async for each in tasks.find({}).sort("_id", 1).batch_size(2)]
    assert found == [0, 1, 2]
    await tasks.drop()
    await client.close()


def test_what_is_not_of_the_client_is_left_as_it_is():
    assert shielded(1) == 1
    assert not isinstance(shielded(None), Shielded)
