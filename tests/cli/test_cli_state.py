"""A spider's state in the commands: shown and deleted."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import invoke
from tests.support.counting_site import served

SPIDER = """
from crawlcw import Settings, Spider

class Counted(Spider):
    name = "counted"
    start_urls = ["{start}"]
    settings = Settings(obey_robots=False, keep_bodies=True)

    def parse(self, response):
        self.state.add("pages")
        self.state["odd \\x1b[31m"] = [response.status]
        yield {{"n": self.state["pages"]}}
"""


def test_a_state_is_shown_and_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    ledger = f"--ledger=sqlite:///{tmp_path}/ledger.db"
    file = tmp_path / "counted.py"
    with served(1) as tree:
        file.write_text(SPIDER.format(start=tree.start))
        tried = invoke("parse", str(file), tree.start)
        as_json = invoke("parse", str(file), tree.start, "--json")
        command = [sys.executable, "-m", "crawlcw", "run", str(file), "-q", ledger]
        subprocess.run(command, check=True)
    again = invoke("parse", str(file), "--stored", ledger)
    shown = invoke("state", "counted", ledger)
    one = invoke("state", "counted", "pages", "--json", ledger)
    alone = invoke("reset", "counted", "--state", "--all", "--yes", ledger)
    forgotten = invoke("reset", "counted", "--state", "--yes", ledger)
    nothing = invoke("reset", "counted", "--state", "--yes", ledger)
    empty = invoke("state", "counted", ledger)

    assert tried.stdout.splitlines()[1:] == ["state: odd \\x1b[31m = [200]", "state: pages = 1"]
    assert json.loads(as_json.stdout)["state"] == {"odd \x1b[31m": [200], "pages": 1}
    assert "state: pages = 2" in again.stdout
    assert shown.stdout == "odd \\x1b[31m = [200]\npages = 1\n"
    assert one.stdout == '{"pages":1}\n'
    assert (alone.returncode, "--state does not select tasks" in alone.stderr) == (2, True)
    assert (forgotten.stdout, nothing.stdout) == (
        "the state is forgotten\n",
        "there was no state\n",
    )
    assert (empty.returncode, empty.stdout) == (0, "")
