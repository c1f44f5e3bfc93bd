"""The contracts of feeds, commands and stores: crawlcw fulfils them, and faulty classes do not."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from pyarrow import parquet as arrow

from crawlcw import ledger_opening
from crawlcw.cli.commands import plugins
from crawlcw.feeds.forms import Csv, Json, JsonLines
from crawlcw.feeds.parquet import Parquet
from crawlcw.testing import CommandContract, FeedContract, LayerContract, StoreContract
from tests.support.mongod import with_database


@pytest.mark.quick
class TestJsonLines(FeedContract):
    def feed(self) -> Any:
        return JsonLines

    def read(self, content: bytes) -> Sequence[dict[str, Any]]:
        return [json.loads(line) for line in content.splitlines()]


@pytest.mark.quick
class TestJson(FeedContract):
    def feed(self) -> Any:
        return Json

    def read(self, content: bytes) -> Sequence[dict[str, Any]]:
        return list(json.loads(content))


@pytest.mark.quick
class TestCsv(FeedContract):
    def feed(self) -> Any:
        return Csv

    def read(self, content: bytes) -> Sequence[dict[str, Any]]:
        return list(csv.DictReader(io.StringIO(content.decode(), newline="")))


@pytest.mark.quick
class TestParquet(FeedContract):
    def feed(self) -> Any:
        return Parquet

    def read(self, content: bytes) -> Sequence[dict[str, Any]]:
        return list(arrow.read_table(io.BytesIO(content)).to_pylist())


@pytest.mark.quick
class TestPlugins(CommandContract):
    def command(self) -> click.Command:
        return plugins.command


class Opening:
    """The built-in stores, as one class."""

    @staticmethod
    async def open(url: str, name: str, **options: Any) -> Any:
        return await ledger_opening.open_ledger(url, name, **options)

    open_existing = staticmethod(ledger_opening.open_for_inspection)
    recorded_names = staticmethod(ledger_opening.recorded_names)
    discard = staticmethod(ledger_opening.discard)


class OfOpening(StoreContract):
    ledger_url = ""

    def store(self) -> Any:
        return Opening

    def url(self) -> str:
        return self.ledger_url


@pytest.mark.quick
class TestSqlite(OfOpening):
    @pytest.fixture(autouse=True)
    def _url(self, tmp_path: Path) -> None:
        self.ledger_url = f"sqlite:///{tmp_path}/contract.db"


class TestMongoDB(OfOpening):
    @pytest.fixture(autouse=True)
    def _url(self, mongodb_uri: str, emptied_database: str) -> None:
        self.ledger_url = with_database(mongodb_uri, emptied_database)


@pytest.mark.thorough
class TestPostgres(OfOpening):
    @pytest.fixture(autouse=True)
    def _url(self, emptied_postgres: str) -> None:
        self.ledger_url = emptied_postgres


class Losing(JsonLines):
    def write(self, item: Any) -> None:
        if item.get("title") != "first":
            super().write(item)


class Closing(JsonLines):
    def finish(self) -> None:
        self._stream.close()


class Changing(JsonLines):
    def write(self, item: Any) -> None:
        item["seen"] = True


@pytest.mark.quick
@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (Losing, "test_the_items_are_read_back"),
        (Closing, "test_the_stream_stays_open"),
        (Changing, "test_every_value_can_be_written"),
        (object, "test_it_has_the_methods_of_a_writer"),
    ],
)
def test_the_contract_turns_red_for_a_feed_that_breaks_it(broken: Any, test: str) -> None:
    class Tested(TestJsonLines):
        def feed(self) -> Any:
            return broken

    with pytest.raises((AssertionError, ValueError)):
        getattr(Tested(), test)()


@pytest.mark.quick
@pytest.mark.parametrize(
    ("facet", "operation", "test"),
    [
        ("outcomes", "commit", "test_a_late_outcome_writes_nothing"),
        ("outcomes", "commit", "test_an_outcome_and_its_items_are_one_write"),
        ("leases", "renew", "test_a_lease_is_renewed_and_released"),
        ("tasks", "add", "test_a_stored_task_is_unchanged"),
    ],
)
def test_the_contract_turns_red_for_a_store_that_writes_nothing(
    tmp_path: Path, facet: str, operation: str, test: str
) -> None:
    class Idle(Opening):
        @staticmethod
        async def open(url: str, name: str, **options: Any) -> Any:
            ledger = await Opening.open(url, name, **options)
            part = getattr(ledger, facet)

            async def rolled_back(*_: Any, **__: Any) -> Any:
                return set() if operation == "renew" else (await empty(part, operation))

            setattr(part, operation, rolled_back)
            return ledger

    class Tested(OfOpening):
        ledger_url = f"sqlite:///{tmp_path}/contract.db"

        def store(self) -> Any:
            return Idle

    with pytest.raises((AssertionError, ValueError)):
        getattr(Tested(), test)()


async def empty(part: Any, operation: str) -> Any:
    """Call an operation with no tasks."""
    return await getattr(type(part), operation)(part, [])


class Caching:
    def __init__(self) -> None:
        self.responses: dict[str, Any] = {}

    async def __call__(self, attempt: Any, request: Any, call_next: Any) -> Any:
        if request.url not in self.responses:
            self.responses[request.url] = await call_next(attempt, request)
        return self.responses[request.url]


@pytest.mark.quick
def test_a_cache_that_mixes_sessions_is_warned_of() -> None:
    class Tested(LayerContract):
        def layer(self) -> Any:
            return Caching()

    with pytest.warns(UserWarning, match="Caching mixes sessions"):
        Tested().test_a_cache_keeps_sessions_apart()
