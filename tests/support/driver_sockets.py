"""Immediate closing of sockets that PyMongo's asyncio client leaves to the garbage collector.

If a client is closed while one of its monitors connects, the monitor's task is cancelled and the
socket stays open. The garbage collector closes it later, with a warning that fails another test.
"""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb
from typing import Any
from unittest import mock

from pymongo import pool_shared

_CONNECT = "_async_create_connection"


@contextmanager
def closed_when_cancelled() -> Iterator[None]:
    """Close the sockets of connects that are cancelled."""
    connect = getattr(pool_shared, _CONNECT)

    async def connected(*arguments: Any) -> socket.socket:
        try:
            made: socket.socket = await connect(*arguments)
        except asyncio.CancelledError as error:
            for frame, _ in walk_tb(error.__traceback__):
                left = frame.f_locals.get("sock")
                if isinstance(left, socket.socket):
                    left.close()
            raise
        return made

    with mock.patch.object(pool_shared, _CONNECT, connected):
        yield
