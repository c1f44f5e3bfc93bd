"""Servers that are closed while a client connects."""

import asyncio

#: asyncio needs one turn each for the transport, the protocol's call, and the handler's task.
_TURNS = 3


async def closed(server: asyncio.Server) -> None:
    """Stop accepting, pass accepted connections to their handlers, and close the server.

    In Python 3.11, a socket that was accepted just before `close` is left to the garbage
    collector, whose warning then fails another test.
    """
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening.fileno())
    for _ in range(_TURNS):
        await asyncio.sleep(0)
    server.close()
