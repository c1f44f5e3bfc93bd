"""Sections 1 and 2 of the catalogue: single attempts at broken connections and broken HTTP."""

import asyncio

import pytest

from crawlcw.api.request import Request
from crawlcw.fetch.transport import AiohttpDownloader
from tests.hostile.catalogue import LATE, Endpoint
from tests.hostile.server import HostileServer
from tests.hostile.single_pages import of_section, settled

#: Pages that answer correctly at a later attempt.
_LATER = ("/fin-then-ok", "/500-then-ok", "/429-then-ok")


@pytest.mark.thorough
@pytest.mark.representative("/noise")
@pytest.mark.representative("/204")
@pytest.mark.parametrize("endpoint", [*of_section(1), *of_section(2)])
async def test_a_page_ends_as_the_catalogue_says(
    downloader: AiohttpDownloader, hostile: HostileServer, endpoint: Endpoint
) -> None:
    """HOSTILE 1.1-1.11, 1.21, 2.1-2.16, 2.18-2.20: each within the deadlines of an attempt."""
    outcome = await settled(downloader, hostile.url(endpoint.path), endpoint.outcome)

    if endpoint.path not in _LATER:
        assert outcome == endpoint.outcome
    if endpoint.path in LATE:
        while hostile.open_connections:  # until the bytes behind the answer have come
            await asyncio.sleep(0)
    # The next answer belongs to the next request.
    url = hostile.url("/healthy?7")
    healthy = await downloader.fetch(Request(url), url=url)
    assert healthy.body == b"<title>healthy page 7</title><p>healthy page 7"
