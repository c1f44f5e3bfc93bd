"""`sqlite:///:memory:`: a temporary ledger, which ends when the crawl or program closes it."""

import asyncio
import os
import sys
import tempfile
from pathlib import Path

import pytest

from crawlcw import open_ledger
from crawlcw.demo.bookshop import Bookshop
from tests.support.docs import REPOSITORY
from tests.support.ledgers import make_tasks

URL = "sqlite:///:memory:"


async def test_a_program_has_one_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first, second = await open_ledger(URL, "books"), await open_ledger(URL, "books")
    await first.tasks.add(make_tasks(2))

    assert (await first.queries.counts()).total == 2
    assert (await second.queries.counts()).total == 0

    await first.close()
    await second.close()
    assert list(tmp_path.iterdir()) == []


async def test_the_workers_of_a_crawl_share_it_and_nothing_of_it_is_left(tmp_path: Path):
    passing = tmp_path / "tmp"
    passing.mkdir()
    async with Bookshop() as shop:
        run = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "crawlcw", "run", "crawlcw.demo.spider:BookshopSpider"),
            *("-a", f"start_url={shop.url}", "--ledger", URL, "--processes", "2"),
            *("--max-pages", "30", "-o", "books.jsonl"),
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(passing)},
            stderr=asyncio.subprocess.PIPE,
        )
        _, log = await run.communicate()

    assert run.returncode == 0, log
    assert (tmp_path / "books.jsonl").read_text().count("\n") > 10
    assert list(passing.iterdir()) == []
    assert not (tmp_path / ".crawlcw").exists()
    assert b"ignored" not in log, "the variable is not reported as an unknown setting"
