"""Servers that are closed while a client connects."""

import asyncio

#: asyncio makes a transport, tells the protocol of it, and begins the handler's task: a turn each.
_TURNS = 3


async def closed(server: asyncio.Server) -> None:
    """Stop accepting, pass accepted connections to their handlers, and close the server.

    In Python 3.11 the socket of a connection that was accepted just before `close` is left to the
    garbage collector, whose warning then ends some other test.
    """
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening.fileno())
    for _ in range(_TURNS):
        await asyncio.sleep(0)
    server.close()
