"""The hostile server, and a downloader for it with the settings of the test's module."""

from collections.abc import AsyncIterator

import pytest

from crawlcw.fetch.transport import AiohttpDownloader
from tests.hostile import server as hostile_server
from tests.hostile.server import HostileServer


@pytest.fixture
async def server() -> AsyncIterator[HostileServer]:
    async with hostile_server.running() as running:
        yield running


@pytest.fixture
async def downloader(
    request: pytest.FixtureRequest, server: HostileServer
) -> AsyncIterator[AiohttpDownloader]:
    settings = request.module.SETTINGS
    async with AiohttpDownloader(settings, start_origins=[server.origin]) as opened:
        yield opened
