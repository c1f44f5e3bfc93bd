"""The hostile server, and a downloader that may connect to it."""

from collections.abc import AsyncIterator

import pytest

from crawlcw.fetch.transport import AiohttpDownloader
from tests.hostile import server
from tests.hostile.server import HostileServer
from tests.hostile.single_pages import SETTINGS


@pytest.fixture
async def hostile() -> AsyncIterator[HostileServer]:
    async with server.running() as running:
        yield running


@pytest.fixture
async def downloader(hostile: HostileServer) -> AsyncIterator[AiohttpDownloader]:
    async with AiohttpDownloader(SETTINGS, start_origins=[hostile.origin]) as opened:
        yield opened
