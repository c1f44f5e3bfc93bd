"""Start of worker processes: others on the machine can read their command lines."""

import json
import sys
from pathlib import Path

import pytest

from tests.support.programs import run_to_end

SPIDER = """
import json
import sys
from pathlib import Path
from crawlcw import Spider


class Shown(Spider):
    name = "shown"

    async def start(self):
        mine = {"line": Path("/proc/self/cmdline").read_text(), "argv": sys.argv}
        Path("shown.json").write_text(json.dumps(mine))
        for request in ():
            yield request

    def parse(self, response):
        pass
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_worker_gets_its_settings_and_no_secret_is_on_its_command_line(tmp_path: Path):
    (tmp_path / "shown.py").write_text(SPIDER)
    options = ["-s", "auth=ann:s3cret", "-sconcurrency=3"]
    command = [sys.executable, "-m", "crawlcw", "run", "shown.py", "--ledger", "sqlite:///x.db"]

    ended = run_to_end([*command, *options], folder=tmp_path, within=60)

    assert ended.returncode == 3, ended.stderr  # no page was finished
    shown = json.loads((tmp_path / "shown.json").read_text())
    assert "s3cret" not in shown["line"]
    assert shown["argv"][-3:] == options
