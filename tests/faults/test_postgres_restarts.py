"""A PostgreSQL server that crashes and starts again while a crawl works on it."""

import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.scenario import Crew, assert_as_without_faults, fetched_again
from tests.support import docs, needed, postgres
from tests.support.crawl_process import Store, wait_until

pytestmark = pytest.mark.thorough

SEED = 20_261_126
WORKERS = 3
RESTARTS = 8
#: The crawl lasts longer than the restarts, also on a busy machine.
LATENCY = 500


@pytest.fixture
def server() -> Iterator[postgres.Server]:
    needed.module("psycopg", extra="postgres")
    with (
        tempfile.TemporaryDirectory() as folder,
        postgres.server(Path(folder) / "server", fsync=True) as own,
    ):
        yield own


@pytest.mark.timeout(600)
def test_a_crawl_outlives_crashes_of_its_server(
    server: postgres.Server, expected_items_twice: bytes, tmp_path: Path
):
    store = Store(server.database("crawl"))
    chance = random.Random(SEED)
    with (
        docs.served(docs.folder("postgresql"), copies=2, latency=LATENCY) as site,
        Crew(store, site, tmp_path / "crew.log", concurrency=6) as crew,
    ):
        for _ in range(WORKERS):
            crew.start()
        wait_until(site.hits)
        for _ in range(RESTARTS):
            time.sleep(chance.uniform(0.3, 1.5))
            server.stop("immediate")
            # The workers meet a server that is away.
            time.sleep(chance.uniform(0, 0.5))
            server.start()
        under_way = bool(store.held_by())
        site.heal()
        crew.drained(within=300)

        assert under_way
        assert_as_without_faults(store, expected_items_twice)
        print(f"{RESTARTS} restarts, {fetched_again(site)} pages were fetched again")
    assert "Traceback" not in crew.log
