"""A spider that changes the working directory, as a Scrapy project may need."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from crawlcw.ledger_opening import open_ledger
from tests.support.programs import environment

SPIDER = """\
import os
from crawlcw import Response, Spider

class Pages(Spider):
    name = "pages"
    start_urls = ["http://127.0.0.1:9/"]

    async def opened(self):
        os.chdir("elsewhere")

    def before_request(self, request):
        return Response(request.url, request=request, body=b"<p>page</p>")

    def parse(self, response):
        yield {"folder": os.path.basename(os.getcwd())}
"""


@pytest.mark.parametrize("processes", ["0", "2"])
def test_the_files_of_a_spider_that_changes_the_folder_stay_in_the_folder_of_the_user(
    processes: str, tmp_path: Path
):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "pages.py").write_text(SPIDER)
    options = ["--processes", processes, "--ledger", "sqlite:///data/ledger.db"]
    outputs = ["-o", "items.jsonl", "--log-file", "run.log", "-s", "obey_robots=false"]

    run = subprocess.run(
        [sys.executable, "-m", "crawlcw", "run", "pages.py", *options, *outputs],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    assert run.returncode == 0, run.stderr
    assert json.loads((tmp_path / "items.jsonl").read_text()) == {"folder": "elsewhere"}
    assert (tmp_path / "data/ledger.db").exists()
    assert (tmp_path / "run.log").exists()
    assert list((tmp_path / "elsewhere").iterdir()) == []


async def test_a_ledger_with_a_relative_path_stays_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    ledger = await open_ledger("sqlite:///ledger.db", "pages")
    monkeypatch.chdir(tmp_path / "elsewhere")

    assert (await ledger.queries.counts()).total == 0
    await ledger.close()
    assert list((tmp_path / "elsewhere").iterdir()) == []
