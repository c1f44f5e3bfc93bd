"""A matrix: SIGKILL of every process at a random moment, for every public feature of a spider.

The moment is an answer of the site, drawn from the answers of a run without a kill, so no
test depends on a clock. The items must be those of that run.
"""

import inspect
import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.blame.code_site import Command, started
from tests.matrix import site, spiders
from tests.matrix.rows import NO_ITEM_DEPENDS, PUBLIC, ROWS, SETTINGS_OF_PAGES, Row
from tests.support import needed
from tests.support.commands import invoke
from tests.support.proxy_servers import ProxyServer, proxies

#: The items of a run as JSON, with their counts.
Items = Counter[str]
ROWS_BY_NAME = {row.name: row for row in ROWS}
#: The row that runs without `--all`: one with more operations besides the pages than most.
USUAL = ("saving",)
_WITHOUT_A_KILL: dict[str, tuple[Items, int]] = {}


class Run:
    """Crawls of one row on one ledger, and their site."""

    def __init__(self, row: Row, ledger: str, folder: Path, workers: int) -> None:
        self._row = row
        self._ledger = ledger
        self._folder = folder
        self._workers = workers
        self._arguments: list[str] = []
        self._base = ""

    @contextmanager
    def served(self) -> Iterator[site.Site]:
        """Serve the site, and the proxies that the row needs, for the block."""
        with ExitStack() as open_:
            served = open_.enter_context(site.served())
            self._base = served.base
            self._arguments = ["-a", f"base={served.base}"]
            if self._row.proxied:
                both = ProxyServer("http", site.BANNED), ProxyServer("http", "127.0.0.3")
                open_.enter_context(proxies(*both))
                named = ",".join(each.url for each in both)
                self._arguments += ["-a", f"proxies={named}", "-s", f"proxies={named}"]
            for setting in self._row.settings:
                self._arguments += ["-s", setting]
            if self._row.again:
                self.to_its_end()
                self.command(self._row.again, "--yes")
                served.version += 1
                served.answered = 0
            yield served

    def crawling(self) -> Command:
        """Return the running command."""
        place = f"{spiders.__file__}:{self._row.spider.__name__}"
        options = ["--ledger", self._ledger, "--processes", str(self._workers), *self._arguments]
        return started(self._folder, place, *options)

    def to_its_end(self) -> None:
        """Crawl until the ledger is drained."""
        with self.crawling() as crawl:
            code, report = crawl.end()
        assert (code, report.get("finish_reason")) == (0, "drained"), crawl.log

    def items(self) -> Items:
        """Return the recorded items, without the address of the site, which differs in each run."""
        lines = self.command("export", "-o", "-").replace(self._base, "").splitlines()
        return Counter(json.dumps(json.loads(line), sort_keys=True) for line in lines)

    def command(self, name: str, *options: str) -> str:
        """Return the output of another command."""
        done = invoke(name, self._row.name, "--ledger", self._ledger, *options)
        assert done.returncode == 0, done.stderr
        return done.stdout


def without_a_kill(row: Row, folder: Path) -> tuple[Items, int]:
    """Return the items of a whole run, and the number of its answers."""
    if row.name not in _WITHOUT_A_KILL:
        folder.mkdir()
        run = Run(row, f"sqlite:///{folder}/ledger.db", folder, workers=1)
        with run.served() as served:
            run.to_its_end()
        _WITHOUT_A_KILL[row.name] = run.items(), served.answered
    return _WITHOUT_A_KILL[row.name]


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in USUAL else pytest.mark.thorough)
        for name in ROWS_BY_NAME
    ],
)
def test_a_crawl_that_was_killed_has_the_items_of_one_that_was_not(
    name: str, workers: int, ledger_url: str, tmp_path: Path
):
    row = ROWS_BY_NAME[name]
    if row.browser:
        needed.chromium()
    expected, answers = without_a_kill(row, tmp_path / "whole")
    moment = random.randint(2, answers - 2)
    print(f"killed after {moment} of {answers} answers")
    folder = tmp_path / "killed"
    folder.mkdir()
    run = Run(row, ledger_url, folder, workers)

    with run.served() as served:
        with run.crawling() as crawl:
            assert served.wait_for(moment), crawl.log
            crawl.kill_all()
        run.to_its_end()

    assert run.items() == expected
    assert len(expected) >= site.PAGES // 2
    assert "Traceback" not in crawl.log


def test_every_public_name_of_a_spider_has_a_row():
    public = {f"{kind.__name__}.{name}" for kind in PUBLIC for name in _public(kind)}
    inherited = {f"SitemapSpider.{name}" for name in _public(PUBLIC[0])}
    shown = frozenset[str]().union(*(row.shows for row in ROWS))

    assert public - inherited - shown - NO_ITEM_DEPENDS.keys() == set()
    assert {f"Settings.{name}" for name in SETTINGS_OF_PAGES} <= shown


def _public(kind: type) -> set[str]:
    """Return the public attributes of a class, and the arguments of its constructor."""
    made_with = inspect.signature(kind).parameters.values()
    arguments = {each.name for each in made_with if each.kind is not each.VAR_KEYWORD}
    return {name for name in (*dir(kind), *arguments) if not name.startswith("_")}
