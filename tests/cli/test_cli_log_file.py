"""`crawlcw run --log-file`, a spider's own logger, and the log line of a page."""

import json
from pathlib import Path

import pytest

from crawlcw.cli.exit_codes import USAGE
from tests.cli.test_cli import crawlcw
from tests.support import docs

SPIDER = """\
from crawlcw import Settings, Spider

class Pages(Spider):
    name = "pages"
    settings = Settings(obey_robots=False, max_retry=1)

    def parse(self, response):
        self.logger.warning("at %s \\x1b[2J", response.url, extra={"event": "seen"})
        yield from response.follow_all("a")

    def on_error(self, request, error):
        self.logger.warning("gone: %s", request.url)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pages.py").write_text(SPIDER)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_all_processes_append_whole_lines_to_the_log_file(folder: Path):
    site = folder / "site"
    site.mkdir()
    (site / "index.html").write_text("<a href=a.html>a</a><a href=gone.html>b</a>")
    (site / "a.html").write_text("<p>a page</p>")
    (folder / "crawl.log").write_text("before\n")
    with docs.served(site) as served:
        (folder / "pages.py").write_text(
            SPIDER.replace('"pages"', f'"pages"\n    start_urls = ["{served.start}"]', 1)
        )
        ended = crawlcw(
            *("run", "pages.py", "--processes", "2", "--log-file", "crawl.log"),
            *("--log-level", "debug", "--log-format", "json"),
        )

    assert ended.returncode == 0, ended.stderr
    before, *lines = (folder / "crawl.log").read_text().splitlines()
    assert before == "before", "the file is appended to"
    records = [json.loads(line) for line in lines]
    own = [each for each in records if each["logger"] == "pages"]
    assert len(own) == 3
    assert {each["level"] for each in own} == {"warning"}
    assert "\x1b" not in str(own)
    assert "warning" not in ended.stderr
    assert "seen" not in ended.stderr

    (page,) = [e for e in records if e.get("event") == "finished" and e["url"].endswith("a.html")]
    assert (page["status"], page["bytes"], page["callback"]) == (200, 13, "parse")
    assert isinstance(page["milliseconds"], int)
    assert page["message"].endswith(f"(200, 13 bytes, {page['milliseconds']} ms, parse)")
    (gone,) = [each for each in records if each.get("event") == "given_up"]
    assert (gone["status"], gone["reason"], gone["callback"]) == (404, "http-status", "parse")
    assert "HTTP 404 (404, " in gone["message"]


def test_a_log_file_that_cannot_be_written_is_one_sentence(folder: Path):
    ended = crawlcw("run", "pages.py", "--log-file", "no/such/folder.log")

    assert ended.returncode == USAGE
    assert ended.stderr == (
        "crawlcw: cannot write the log to no/such/folder.log: No such file or directory\n"
    )
