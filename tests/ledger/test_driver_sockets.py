"""Sockets of MongoDB's driver in the tests: a client that is closed leaves none."""

import asyncio
import gc
import socket

import pytest

from crawlcw.ledger.mongo.connection import connected


async def test_a_client_that_is_closed_while_it_connects_leaves_no_socket(
    monkeypatch: pytest.MonkeyPatch,
):
    begun = asyncio.Event()

    async def for_ever(*_: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", for_ever)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"mongodb://127.0.0.1:{listening.getsockname()[1]}/?directConnection=true"
        client, _ = connected(url, "pymongo")
        operation = asyncio.create_task(client.admin.command("ping"))
        await begun.wait()
        operation.cancel()
        await client.close()

    # A socket without an owner warns here, and warnings are errors.
    gc.collect()
