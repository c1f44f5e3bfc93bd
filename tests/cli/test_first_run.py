"""The warning at a spider's first run: state between callbacks that a crash would lose."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_cli import crawlcw
from tests.support import docs

SPIDER = """\
from crawlcw import Spider

class Counting(Spider):
    name = "counting"
    start_urls = ["{home}index.html"]

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.n, self.seen = 0, None
        self.seen = set()

    def parse(self, response):
        self.n += 1
        self.seen.add(response.url)
        yield {{"n": self.n, "seen": len(self.seen)}}
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("site")
    (folder / "index.html").write_text("<h1>Hi</h1>")
    with docs.served(folder) as site:
        yield site.start.removesuffix("index.html")


@pytest.mark.parametrize("processes", [pytest.param("0", marks=pytest.mark.thorough), "2"])
def test_the_first_run_alone_warns_in_one_line_of_state_that_a_crash_loses(
    home: str, tmp_path: Path, processes: str
):
    (tmp_path / "spiders").mkdir()
    (tmp_path / "spiders" / "counting.py").write_text(SPIDER.format(home=home))
    run = ("run", "counting", "-q", "--processes", processes)

    first, second = (crawlcw(*run, folder=tmp_path) for _ in range(2))

    assert first.returncode == second.returncode == 0
    said = first.stderr.removesuffix("\n").partition(" WARNING ")[2]
    assert said == (
        "spiders/counting.py:13: parse() changes self.n, and a crash loses the change: keep "
        "it in self.state; 1 more by `crawlcw check spiders/counting.py`"
    )
    assert second.stderr == ""


@pytest.mark.parametrize("processes", ["0", pytest.param("2", marks=pytest.mark.thorough)])
def test_scrapys_names_are_named_once_and_stop_nothing(home: str, tmp_path: Path, processes: str):
    names = "allowed_domains = ['a.example']\n    custom_settings = {'DOWNLOAD_DELAY': 9}\n"
    source = SPIDER.format(home=home).replace("    name =", f"    {names}    name =")
    (tmp_path / "counting.py").write_text(source)

    run = crawlcw("run", "counting.py", "--processes", processes, folder=tmp_path)

    assert run.returncode == 0
    warnings = [line.partition(" WARNING ")[2] for line in run.stderr.splitlines()]
    (warning,) = [said for said in warnings if "Scrapy" in said]
    assert warning == (
        "the spider counting has allowed_domains, custom_settings: only Scrapy reads that, and "
        "`crawlcw check counting.py` shows the code to write instead"
    )


def test_a_spider_without_such_state_is_not_warned_of(home: str, tmp_path: Path):
    (tmp_path / "spiders").mkdir()
    source = SPIDER.format(home=home).replace("        self.n += 1\n", "")
    source = source.replace("        self.seen.add(response.url)\n", "")
    (tmp_path / "spiders" / "counting.py").write_text(source)

    run = crawlcw("run", "counting", "-q", "--processes", "0", folder=tmp_path)

    assert (run.returncode, run.stderr) == (0, "")
