"""Single attempts at pages of the hostile server, and their outcomes."""

from dataclasses import replace

import pytest
from _pytest.mark import ParameterSet

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.errors import FetchError, Reason
from crawlcw.fetch.transport import AiohttpDownloader
from crawlcw.model.task import Status
from tests.hostile.catalogue import ENDPOINTS, Outcome, gone
from tests.support.attempts import attempt

#: Deadlines that a test can wait for. An attempt has enough time for a busy machine;
#: endless pages get `IMPATIENT`.
SETTINGS = Settings(timeout="10s", read_timeout="1s", connect_timeout="5s")
IMPATIENT = replace(SETTINGS, timeout="2s")
_WAITS = (Reason.TIMEOUT_READ, Reason.TIMEOUT_TOTAL)
_REPRESENTATIVES = ("/silent", "/drip")


def of_section(section: int) -> list[ParameterSet]:
    """Return the pages whose first row is in the section, as parameters of a test.

    Most pages that wait for a deadline are thorough tests.
    """
    return [
        pytest.param(
            each,
            id=each.path,
            marks=[pytest.mark.thorough]
            if each.outcome.reason in _WAITS and each.path not in _REPRESENTATIVES
            else [],
        )
        for each in ENDPOINTS
        if each.rows[0].startswith(f"{section}.")
    ]


async def outcome_of(
    downloader: AiohttpDownloader, url: str, *, settings: Settings = SETTINGS
) -> tuple[Outcome, Response | None]:
    """Return the outcome of one attempt, as a fetcher decides it, and the response."""
    try:
        response = await attempt(Request(url), downloader=downloader, settings=settings)
    except FetchError as failure:
        error = failure
    else:
        if not 200 <= response.status < 300 or response.status == 206:
            return gone(Reason.HTTP_STATUS), response
        return Outcome(Status.FINISHED, truncated=response.truncated), response
    assert len(error.message) <= 500
    assert error.message.isprintable()
    return gone(error.reason), None


async def settled(downloader: AiohttpDownloader, url: str, expected: Outcome) -> Outcome:
    """Return the outcome of one attempt, with a short deadline if a timeout is expected."""
    slow = expected.reason is Reason.TIMEOUT_TOTAL
    found, response = await outcome_of(downloader, url, settings=IMPATIENT if slow else SETTINGS)
    assert response is None or b"POISON" not in response.body
    return found
