"""A site in a process of its own: it prints its port on loopback, and serves until it is killed."""

import asyncio

from aiohttp import web

from tests.support import loopback


async def serve(app: web.Application) -> None:
    async with loopback.served(app) as address:
        print(address.rpartition(":")[2], flush=True)
        await asyncio.Event().wait()
