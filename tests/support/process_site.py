"""A site in a process of its own: it prints its port on loopback, and serves until it is killed."""

import asyncio

from aiohttp import web


async def serve(app: web.Application) -> None:
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()
