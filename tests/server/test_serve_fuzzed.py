"""The server against its own OpenAPI document: valid and invalid requests."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode

from crawlcw.server.operations import OPERATIONS
from crawlcw.server.requests import MAX_WAIT_S
from tests.support.servers import TOKEN, served

_HEADERS = {"Authorization": f"Bearer {TOKEN}"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("mode", "answered"),
    [(GenerationMode.POSITIVE, {200, 404, 409}), (GenerationMode.NEGATIVE, {401, 422})],
)
async def test_every_answer_is_as_the_document_says(
    tmp_path: Path, mode: GenerationMode, answered: set[int]
):
    async with served(f"sqlite:///{tmp_path}/ledger.db", token=TOKEN) as (client, _):
        seen = await asyncio.to_thread(fuzz, client.address, mode)

    assert seen.keys() >= {f"{each.method} {each.path}" for each in OPERATIONS}
    assert set().union(*seen.values()) >= answered


def fuzz(address: str, mode: GenerationMode) -> dict[str, set[int]]:
    """Return the statuses of the answers of each operation."""
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json", headers=_HEADERS)
    seen: dict[str, set[int]] = {}
    for result in schema.get_all_operations():
        operation = result.ok()
        statuses = seen.setdefault(operation.label, set())
        check(operation.as_strategy(generation_mode=mode), statuses)
    return seen


def check(cases: Any, statuses: set[int]) -> None:
    @settings(
        max_examples=25,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def is_as_declared(case: Any) -> None:
        if isinstance(case.body, dict) and _is_a_wait(case.body.get("wait")):
            case.body["wait"] = 0.001
        response = case.call(headers=_HEADERS)
        statuses.add(response.status_code)
        case.validate_response(response, headers=_HEADERS)

    is_as_declared()


def _is_a_wait(given: Any) -> bool:
    return isinstance(given, int | float) and 0 < given <= MAX_WAIT_S and given is not True
