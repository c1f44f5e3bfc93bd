"""The refusals of Scrapy projects: the line and the way out, before the first request."""

import importlib
from pathlib import Path

import pytest

pytest.importorskip("scrapy")

import scrapy

from crawlcw import SpiderError
from crawlcw.api.request import Request
from crawlcw.cli import loading
from crawlcw.cli.first_run import warn_of
from crawlcw.ledger_opening import open_ledger
from crawlcw.scrapy import project, refusals
from crawlcw.scrapy.import_errors import REMOVED
from tests.scrapy.written import SPIDER, folder, write_project

__all__ = ["folder"]  # a fixture
pytestmark = pytest.mark.quick

BEGINNING = "import scrapy\n\nclass Books(scrapy.Spider):\n    name = 'books'\n\n"


def refusal(folder: Path, *assignments: str) -> str:
    with pytest.raises(SpiderError) as caught:
        project.crawler_of(folder, "books", assignments)
    return str(caught.value)


def of_spider(folder: Path, code: str) -> str:
    """Return the refusal of a spider whose sixth line is *code*."""
    return refusal(write_project(folder, {"spiders/books.py": BEGINNING + code}))


def test_a_project_without_anything_to_refuse_is_not_refused(folder: Path):
    write_project(folder)

    assert project.findings(folder, "books") == []


# Components that crawlcw replaces.


def test_an_own_scheduler_is_refused_with_the_line_of_its_setting(folder: Path):
    write_project(folder, settings='SCHEDULER = "shop.queues.Scheduler"\n')

    assert refusal(folder) == (
        "shop/settings.py, line 3: SCHEDULER = shop.queues.Scheduler: remove it, because the "
        "ledger is the scheduler"
    )


def test_an_own_downloader_of_a_spider_is_refused_with_the_line_in_the_spider(folder: Path):
    settings = '    custom_settings = {\n        "DOWNLOADER": "shop.Downloader",\n    }\n'

    assert of_spider(folder, settings) == (
        "shop/spiders/books.py, line 7: DOWNLOADER = shop.Downloader: remove it, because crawlcw "
        "sends the requests"
    )


def test_a_scheduler_of_the_command_line_is_refused(folder: Path):
    write_project(folder)

    assert refusal(folder, "SCHEDULER=a.b").startswith("-s: SCHEDULER = a.b: remove it")


def test_the_scheduler_of_scrapy_redis_is_replaced(folder: Path):
    write_project(folder, settings='SCHEDULER = "scrapy_redis.scheduler.Scheduler"\n')

    (finding,) = project.findings(folder, "books")

    assert not finding.stops
    assert (finding.path, finding.line) == ("shop/settings.py", 3)
    assert finding.replacement == "it has no effect, because the ledger is the scheduler"


# Code that cannot run.


@pytest.mark.parametrize(
    "code",
    [
        "    def parse(self, response):\n        yield dict(meta={'download_slot': 'a'})\n",
        "    def parse(self, response):\n        response.meta['download_slot'] = 'a'\n",
    ],
)
def test_a_download_slot_is_refused(folder: Path, code: str):
    assert of_spider(folder, code) == (
        'shop/spiders/books.py, line 7: meta["download_slot"]: use DOWNLOAD_SLOTS, because '
        "crawlcw queues requests by host"
    )


def test_a_download_slot_that_is_read_is_no_refusal(folder: Path):
    code = "    def parse(self, response):\n        print(response.meta['download_slot'])\n"
    write_project(folder, {"spiders/books.py": BEGINNING + code})

    project.crawler_of(folder, "books")


def test_inspect_response_is_refused(folder: Path):
    code = (
        "    def parse(self, response):\n"
        "        from scrapy.shell import inspect_response\n"
        "        inspect_response(response, self)\n"
    )

    assert of_spider(folder, code).startswith(
        "shop/spiders/books.py, line 8: inspect_response(): use `crawlcw shell`, because"
    )


def test_the_telnet_console_is_refused(folder: Path):
    extension = (
        "from scrapy.extensions.telnet import TelnetConsole\n\n"
        "class Console(TelnetConsole):\n    pass\n"
    )
    write_project(
        folder, {"console.py": extension}, settings='EXTENSIONS = {"shop.console.Console": 1}\n'
    )

    assert refusal(folder).startswith("shop/console.py, line 1: the Telnet console: use `crawlcw d")


def test_the_code_of_other_spiders_of_the_project_does_not_count(folder: Path):
    other = SPIDER.replace("books", "others").replace("Books", "Others")
    other += "        response.meta['download_slot'] = 'a'\n"
    write_project(folder, {"spiders/others.py": other, "spiders/both.py": SPIDER + other})
    (folder / "shop/spiders/books.py").unlink()
    (folder / "shop/spiders/others.py").unlink()

    project.crawler_of(folder, "books")
    with pytest.raises(SpiderError, match="download_slot"):
        project.crawler_of(folder, "others")


def test_check_lists_all_that_cannot_run_in_order(folder: Path):
    code = (
        "    def parse(self, response):\n"
        "        inspect_response(response)\n"
        "        response.meta['download_slot'] = 'a'\n"
    )
    settings = 'SCHEDULER = "a.Scheduler"\n'
    write_project(folder / "shops", {"spiders/books.py": BEGINNING + code}, settings=settings)

    findings = project.findings(Path("shops"), "")

    assert [(finding.path, finding.line) for finding in findings] == [
        ("shops/shop/settings.py", 3),
        ("shops/shop/spiders/books.py", 7),
        ("shops/shop/spiders/books.py", 8),
    ]
    assert all(finding.stops for finding in findings)


# Imports that fail.


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (
            "from scrapy.contrib.spiders import Rule",
            "scrapy.contrib is gone since Scrapy 1.6",
        ),
        ("from scrapy import log", "scrapy.log is gone since Scrapy 1.7"),
        ("import scrapy\nscrapy.log", "scrapy.log is gone since Scrapy 1.7"),
        ("import urllib2", "this is Python 2 (ModuleNotFoundError: No module named 'urllib2')"),
        ("print 'books'", "this is Python 2 (SyntaxError: Missing parentheses in call to 'print'."),
        ("try: pass\nexcept A, e: pass", "this is Python 2 (SyntaxError: multiple exception types"),
        ("unicode('a')", "this is Python 2 (NameError: name 'unicode' is not defined)"),
        ("x = (", "SyntaxError: '(' was never closed"),
        ("import no_such_module", "there is no module 'no_such_module': install the package"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(0)", "it exits while loading (SystemExit)"),
    ],
)
@pytest.mark.parametrize("name", ["spiders/books.py", "settings.py", "pipelines.py"])
def test_an_error_of_the_project_names_its_line_and_the_way_out(
    folder: Path, code: str, sentence: str, name: str
):
    settings = 'ITEM_PIPELINES = {"shop.pipelines.Pipeline": 1}\n'
    write_project(folder, {name: f"\n{code}\n"}, settings=settings)

    line = 1 + len(code.split("\n"))

    assert refusal(folder).startswith(f"shop/{name}, line {line}: {sentence}")


def test_a_missing_module_names_the_requirements_of_the_project(folder: Path):
    write_project(folder, {"spiders/books.py": "import no_such_module\n"})
    (folder / "requirements.txt").write_text("no-such-module\n")

    assert refusal(folder).endswith("`pip install -r requirements.txt` installs its packages")


def test_a_component_that_does_not_exist_is_refused(folder: Path):
    settings = 'DOWNLOADER_MIDDLEWARES = {"shop.settings.Proxies": 1, "no.such": None}\n'
    write_project(folder, settings=settings)

    assert refusal(folder).endswith("doesn't define any object named 'Proxies'")


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, version in REMOVED.items()
        if tuple(map(int, version.split("."))) <= scrapy.version_info
    ],
)
def test_a_name_that_is_listed_as_removed_is_not_in_this_scrapy(name: str):
    module, _, attribute = name.rpartition(".")

    with pytest.raises(ImportError):
        importlib.import_module(name)
    with pytest.raises((ImportError, AttributeError)):
        getattr(importlib.import_module(module), attribute)


# Values and files that a resume does not complete.

STATEFUL = """\
import scrapy

class Books(scrapy.Spider):
    name = "books"

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.seen = set()
        self.pages = 0

    def parse(self, response):
        self.pages += 1
        self.seen.add(response.url)
        self.state["pages"] = self.pages
        yield from self.links(response)

    def links(self, response):
        if response.url not in self.seen:
            yield {}
"""
DUPLICATES = """\
class Duplicates:
    def open_spider(self):
        self.ids = set()

    def process_item(self, item):
        if item["id"] in self.ids:
            raise ValueError
        self.ids.add(item["id"])
        return item
"""
WRITER = """\
class Writer:
    def open_spider(self):
        self.stream = open("items.jsonl", "w")
        self.source = open("source.txt")

    def process_item(self, item):
        self.stream.write(str(item))
        return item
"""


def test_the_attributes_that_pages_change_are_named(folder: Path):
    settings = 'ITEM_PIPELINES = {"shop.pipelines.Duplicates": 1}\n'
    files = {"spiders/books.py": STATEFUL, "pipelines.py": DUPLICATES}
    write_project(folder, files, settings=settings)

    assert refusals.memory_state(project.crawler_of(folder, "books"), folder) == [
        "Books.pages (shop/spiders/books.py, line 12)",
        "Books.seen (shop/spiders/books.py, line 13)",
        "Duplicates.ids (shop/pipelines.py, line 8)",
    ]


def test_a_pipeline_that_writes_a_file_is_named_but_not_refused(folder: Path):
    write_project(
        folder, {"pipelines.py": WRITER}, settings='ITEM_PIPELINES = {"shop.pipelines.Writer": 1}\n'
    )

    crawler = project.crawler_of(folder, "books")
    (finding,) = project.findings(folder, "books")

    assert (finding.path, finding.line, finding.stops) == ("shop/pipelines.py", 3, False)
    assert finding.message == (
        "Writer writes its own file, which lacks items after a resume and with several processes "
        "-> `crawlcw export` writes all items"
    )
    assert [found.line for found in refusals.own_files(crawler, folder)] == [3]


@pytest.mark.parametrize(
    ("is_resumed", "processes", "events"),
    [
        (False, 1, []),
        (False, 2, ["own_file"]),
        (True, 1, ["memory_lost", "own_file"]),
    ],
)
async def test_a_resume_warns_of_lost_attributes_and_several_processes_of_files(
    folder: Path,
    is_resumed: bool,
    processes: int,
    events: list[str],
    caplog: pytest.LogCaptureFixture,
):
    files = {"spiders/books.py": STATEFUL, "pipelines.py": WRITER}
    settings = 'ITEM_PIPELINES = {"shop.pipelines.Writer": 1}\n'
    write_project(folder / "shops", files, settings=settings)
    spider = loading.make(loading.find("shops:books"), [])
    ledger = await open_ledger("sqlite:///:memory:", spider.name)
    if is_resumed:
        await ledger.tasks.add([Request("https://shop.example/").task(now=ledger.now())])

    await warn_of(spider, ledger, processes=processes)
    await ledger.close()

    records = [record for record in caplog.records if record.name == "crawlcw.cli.first_run"]
    assert [vars(record)["event"] for record in records] == events
    if is_resumed:
        assert records[0].getMessage() == (
            "the project keeps values in memory, which this run begins without: "
            "Books.pages (shop/spiders/books.py, line 12), Books.seen (shop/spiders/books.py, "
            "line 13)"
        )
