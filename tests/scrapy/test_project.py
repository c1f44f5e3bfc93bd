"""A Scrapy project is loaded as Scrapy's command line loads it, and named on the command line."""

import asyncio
import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

pytest.importorskip("scrapy")

from scrapy.settings import Settings as ScrapySettings

from crawlcw import Limit, SettingsError, SpiderError, UsageError
from crawlcw.api.request import Request
from crawlcw.api.spider import is_name
from crawlcw.cli import loading, scrapy_references
from crawlcw.errors import Reason
from crawlcw.ledger_opening import open_ledger
from crawlcw.scrapy import project
from crawlcw.scrapy.settings import crawlcw_settings, limits_of
from tests.scrapy.written import SPIDER, folder, write_project
from tests.support.commands import invoke
from tests.support.ledgers import claimed_one, failure
from tests.support.programs import environment

__all__ = ["folder"]  # a fixture
pytestmark = pytest.mark.quick


# Names and references.


@pytest.mark.parametrize(
    ("scrapy_name", "name"),
    [
        ("books", "books"),
        ("toscrape-css", "toscrape-css"),
        ("example.com", "example-com"),
        ("7_eleven_us", "s-7_eleven_us"),
        ("bücher", "b-cher"),
        ("x" * 60, "x" * 60),
    ],
)
def test_a_spider_keeps_its_name_in_the_ledger_as_far_as_possible(scrapy_name: str, name: str):
    assert project.name_of(scrapy_name) == name
    assert is_name(name)


def test_long_names_that_differ_at_their_end_stay_different():
    names = {project.name_of("example.com/" + "x" * 60 + end) for end in "ab"}

    assert len(names) == 2
    assert all(map(is_name, names))


@pytest.mark.parametrize("reference", ["shops:books", "./shops:books", "shops/:books"])
def test_a_folder_and_a_name_refer_to_a_spider_of_a_project(folder: Path, reference: str):
    write_project(folder / "shops")

    assert scrapy_references.target_of(reference) == (Path("shops"), "books")
    assert loading.name_of("shops:example.com") == "example-com"


def test_inside_a_project_a_name_refers_to_its_spiders_also_from_a_folder_in_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    write_project(folder)
    monkeypatch.chdir(folder / "shop")

    assert scrapy_references.target_of("books") == (folder, "books")
    assert loading.name_of("example.com") == "example-com"
    assert scrapy_references.target_of("spiders/books.py") is None


def test_inside_a_project_a_crawlcw_spider_in_spiders_comes_first(folder: Path):
    write_project(folder)
    (folder / "spiders").mkdir()
    crawlcw_spider = 'from crawlcw import Spider\n\nclass Books(Spider):\n    name = "books"\n'
    (folder / "spiders/books.py").write_text(crawlcw_spider)
    (folder / "spiders/more.py").write_text(SPIDER)

    assert scrapy_references.target_of("books") is None
    assert loading.find("books").__module__.startswith("crawlcw_spider_")
    assert [entry.path.name for entry in loading.listed()] == ["books.py"]


def test_a_package_with_the_name_of_a_folder_is_a_package(folder: Path):
    (folder / "pages").mkdir()
    (folder / "pages/__init__.py").write_text(
        'from crawlcw import Spider\n\nclass Pages(Spider):\n    name = "pages"\n'
    )

    assert loading.find("pages:Pages").name == "pages"


# Loading.


def test_a_crawler_has_the_settings_of_project_spider_and_command_line(folder: Path):
    spider = SPIDER.replace(
        "    def parse",
        '    custom_settings = {"DOWNLOAD_DELAY": 2, "RETRY_TIMES": 3}\n\n    def parse',
    )
    write_project(folder / "shops", {"spiders/books.py": spider}, settings="DEPTH_LIMIT = 5\n")

    crawler = project.crawler_of(Path("shops"), "books", ["DOWNLOAD_DELAY=7", "ITEM_PIPELINES={}"])

    values = [crawler.settings.getint(name) for name in ("DEPTH_LIMIT", "RETRY_TIMES")]
    assert values == [5, 3]
    assert crawler.settings.getfloat("DOWNLOAD_DELAY") == 7
    assert crawler.spidercls.name == "books"


def test_the_delay_of_a_spider_is_a_setting_of_its_own(folder: Path):
    spider = SPIDER.replace("    def parse", "    download_delay = 4\n\n    def parse")
    write_project(folder, {"spiders/books.py": spider}, settings="DOWNLOAD_DELAY = 1\n")

    crawler = project.crawler_of(folder, "books")
    faster = project.crawler_of(folder, "books", ["DOWNLOAD_DELAY=2"])

    assert crawlcw_settings(crawler.settings).delay == timedelta(seconds=4)
    assert crawlcw_settings(faster.settings).delay == timedelta(seconds=2)


def test_a_project_is_loaded_in_its_folder_and_leaves_nothing_behind(folder: Path):
    (folder / "shops").mkdir()
    (folder / "shops/delay.txt").write_text("3")
    settings = "import pathlib\nDOWNLOAD_DELAY = int(pathlib.Path('delay.txt').read_text())\n"
    write_project(folder / "shops", settings=settings)

    crawler = project.crawler_of(Path("shops"), "books")

    assert crawler.settings.getint("DOWNLOAD_DELAY") == 3
    assert Path.cwd() == folder
    assert "SCRAPY_SETTINGS_MODULE" not in os.environ


def test_the_variables_of_scrapy_choose_the_settings_module(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    write_project(folder, {"production.py": "from shop.settings import *\nDEPTH_LIMIT = 9\n"})
    monkeypatch.setenv("SCRAPY_SETTINGS_MODULE", "shop.production")

    assert project.crawler_of(folder, "books").settings.getint("DEPTH_LIMIT") == 9


def test_scrapy_gets_no_telnet_console_and_no_jobdir(folder: Path):
    write_project(folder, settings="TELNETCONSOLE_ENABLED = True\nJOBDIR = 'job'\n")

    crawler = project.crawler_of(folder, "books", ["JOBDIR=other"])

    assert not crawler.settings.getbool("TELNETCONSOLE_ENABLED")
    assert crawler.settings.get("JOBDIR") is None


def test_two_spiders_that_would_share_a_ledger_are_refused(folder: Path):
    spiders = [SPIDER.replace('"books"', f'"{name}"') for name in ("a.b", "a-b")]
    write_project(folder, {"spiders/books.py": spiders[0], "spiders/more.py": spiders[1]})

    with pytest.raises(SpiderError, match=r"'a.b' and 'a-b' would have the same name a-b"):
        project.crawler_of(folder, "a.b")


# Settings.


def test_the_defaults_of_scrapy_become_settings():
    settings = crawlcw_settings(ScrapySettings())

    assert (settings.concurrency, settings.per_host_concurrency, settings.max_retry) == (16, 8, 3)
    assert settings.timeout == settings.read_timeout == timedelta(minutes=3)
    assert settings.callback_timeout == timedelta(minutes=10)
    assert (settings.obey_robots, settings.auto_throttle, settings.truncate) == (
        False,
        False,
        False,
    )
    assert settings.user_agent.startswith("Scrapy/")
    assert settings.max_pages_per_host is settings.max_url_length is None


def test_the_settings_of_a_project_become_settings():
    values = {
        "AUTOTHROTTLE_ENABLED": True,
        "CONCURRENT_REQUESTS": 4,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 2,
        "DOWNLOAD_DELAY": 1.5,
        "DOWNLOAD_MAXSIZE": 1000,
        "DOWNLOAD_TIMEOUT": 5,
        "DOWNLOAD_VERIFY_CERTIFICATES": True,
        "RETRY_HTTP_CODES": [503],
        "RETRY_TIMES": 0,
        "ROBOTSTXT_OBEY": True,
        "ROBOTSTXT_USER_AGENT": "books-bot",
        "USER_AGENT": "Mozilla",
    }
    settings = crawlcw_settings(ScrapySettings(values))

    assert (settings.concurrency, settings.per_host_concurrency, settings.max_retry) == (4, 2, 1)
    assert settings.delay == timedelta(seconds=1.5)
    assert settings.timeout == settings.connect_timeout == timedelta(seconds=5)
    assert (settings.max_body, settings.memory_budget) == (1000, 4000)
    assert (settings.obey_robots, settings.auto_throttle, settings.insecure) == (True, True, False)
    assert (settings.user_agent, settings.retry_statuses) == ("books-bot", (503,))


@pytest.mark.parametrize(
    "values",
    [
        {"RETRY_ENABLED": False},
        {"DOWNLOADER_MIDDLEWARES": {"scrapy.downloadermiddlewares.retry.RetryMiddleware": None}},
    ],
)
def test_without_the_retry_middleware_a_request_has_one_attempt(values: dict[str, object]):
    assert crawlcw_settings(ScrapySettings(values)).max_retry == 1


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"CONCURRENT_REQUESTS": "many"}, "Scrapy's CONCURRENT_REQUESTS is 'many': invalid"),
        ({"DOWNLOAD_DELAY": -1}, "Scrapy's DOWNLOAD_DELAY is -1: setting delay: -1.0 is not"),
        ({"DOWNLOAD_TIMEOUT": "x"}, "Scrapy's DOWNLOAD_TIMEOUT is 'x': could not convert"),
        ({"RETRY_HTTP_CODES": "5xx"}, "Scrapy's RETRY_HTTP_CODES is '5xx': invalid literal"),
        ({"DOWNLOAD_MAXSIZE": -5}, "Scrapy's DOWNLOAD_MAXSIZE is -5: setting max_body: -5"),
    ],
)
def test_a_value_that_crawlcw_refuses_has_the_name_of_scrapys_setting(
    values: dict[str, object], sentence: str
):
    with pytest.raises(SettingsError) as caught:
        crawlcw_settings(ScrapySettings(values))

    assert str(caught.value).startswith(sentence)


def test_download_slots_become_limits():
    slots = {"shop.example": {"concurrency": 1, "delay": 2, "randomize_delay": False}}

    limits = limits_of(ScrapySettings({"DOWNLOAD_SLOTS": slots}))

    assert limits == {"shop.example": Limit(concurrency=1, delay=2)}
    with pytest.raises(SettingsError, match="Scrapy's DOWNLOAD_SLOTS: limits"):
        limits_of(ScrapySettings({"DOWNLOAD_SLOTS": {"shop.example/": {}}}))


# Commands.


def test_list_shows_the_spiders_of_the_project_that_the_folder_is_in(folder: Path):
    write_project(folder)

    assert invoke("list").stdout == "books  shop.spiders.books:Books  All books.\n"
    fields = json.loads(invoke("list", "--json").stdout)
    assert fields == {
        "name": "books",
        "reference": "shop.spiders.books:Books",
        "about": "All books.",
    }


def test_list_shows_the_error_of_a_project_beside_other_spiders(folder: Path):
    write_project(folder, {"settings.py": "1 / 0\n"})
    (folder / "spiders").mkdir()
    (folder / "spiders/pages.py").write_text(
        'from crawlcw import Spider\n\nclass Pages(Spider):\n    name = "pages"\n'
    )

    run = invoke("list")

    assert run.returncode == 0
    assert run.stdout == (
        "pages  spiders/pages.py:Pages\n"
        "cannot be loaded: shop/settings.py, line 1: ZeroDivisionError: division by zero\n"
    )


@pytest.mark.parametrize("reference", ["shops", "shops:books"])
def test_check_says_that_a_project_runs_and_how_to_port_it(folder: Path, reference: str):
    write_project(folder / "shops")

    check = invoke("check", reference)

    assert (check.returncode, check.stderr) == (0, "")
    assert check.stdout == (
        f"{reference.rpartition(':')[2]} runs as it is; to port it: `crawlcw check FILE`\n"
    )


def test_check_reports_a_value_that_crawlcw_refuses(folder: Path):
    write_project(folder / "shops", settings="CONCURRENT_REQUESTS = 0\n")

    check = invoke("check", "shops:books", "--json")

    (finding,) = json.loads(check.stdout)["findings"]
    assert check.returncode == 2
    assert finding["message"].startswith("Scrapy's CONCURRENT_REQUESTS is 0: setting concurrency")


def test_check_of_a_file_of_a_project_has_the_hints_to_port_it(folder: Path):
    write_project(folder)

    assert invoke("check", "shop/spiders/books.py").returncode == 2


def test_a_setting_of_scrapy_in_capitals_is_one_of_crawlcw_for_another_spider(folder: Path):
    (folder / "pages.py").write_text(
        'from crawlcw import Spider\n\nclass Pages(Spider):\n    name = "pages"\n'
        '    start_urls = ["http://a.example/"]\n\n    def parse(self, response): ...\n'
    )

    assert invoke("check", "pages.py", "-s", "CONCURRENCY=5").returncode == 0
    run = invoke("check", "pages.py", "-s", "CONCURRENT_REQUESTS=5")
    assert "Scrapy's CONCURRENT_REQUESTS is concurrency= here" in run.stdout


@pytest.mark.parametrize("command", ["stats", "tasks", "export -o x.jsonl", "doctor", "state"])
def test_commands_that_read_a_ledger_do_not_import_the_project(folder: Path, command: str):
    write_project(folder / "shops", settings="raise SystemExit\n")
    name, *options = command.split()

    run = invoke(name, "shops:example.com", *options)

    assert run.returncode == 2
    assert "there is no ledger at .crawlcw/ledger.db" in run.stderr


@pytest.mark.parametrize(("inside", "reference"), [("", "shops:books"), ("shops", "books")])
def test_retry_failed_names_the_command_that_crawls_the_project(
    folder: Path, monkeypatch: pytest.MonkeyPatch, inside: str, reference: str
):
    write_project(folder / "shops")
    monkeypatch.chdir(folder / inside)

    async def give_up_page() -> None:
        ledger = await open_ledger("sqlite:///.crawlcw/ledger.db", "books")
        await ledger.tasks.add([Request("https://shop.example/").task(now=ledger.now())])
        lease = await claimed_one(ledger)
        await ledger.outcomes.commit([failure(ledger, lease, Reason.TLS)])
        await ledger.close()

    asyncio.run(give_up_page())

    run = invoke("retry-failed", reference)

    assert run.stdout == f"1 task will be tried again by `crawlcw run {reference}`\n"


@pytest.mark.parametrize("command", ["parse {} http://a.example/", "fetch --spider {} http://a/"])
def test_commands_for_one_page_name_the_command_of_scrapy(folder: Path, command: str):
    write_project(folder / "shops")

    run = invoke(*command.format("shops:books").split())

    assert run.returncode == 2
    assert run.stderr == (
        "crawlcw: books is a spider of a Scrapy project, which needs a crawl: run `scrapy parse "
        "URL --spider books` in shops to try a page\n"
    )


def test_a_folder_alone_says_how_to_name_a_spider(folder: Path):
    write_project(folder / "shops")

    with pytest.raises(SpiderError, match="shops is a Scrapy project: name a spider of it, such"):
        loading.find("shops")


@pytest.mark.parametrize("reference", ["shop/spiders/books.py", "shop/spiders/books.py:Books"])
def test_the_file_of_a_scrapy_spider_says_how_to_run_and_how_to_port_it(
    folder: Path, reference: str
):
    write_project(folder)

    with pytest.raises(SpiderError) as caught:
        loading.find(reference)

    assert str(caught.value) == (
        "shop/spiders/books.py has a spider of Scrapy: `crawlcw run FOLDER:books` runs it as it "
        "is, where FOLDER has scrapy.cfg, and `crawlcw check shop/spiders/books.py` helps to port "
        "it"
    )


def test_a_start_without_a_project_loads_neither_scrapy_nor_the_room(folder: Path):
    (folder / "pages.py").write_text(
        'from crawlcw import Spider\n\nclass Pages(Spider):\n    name = "pages"\n'
    )
    code = (
        "import sys; from crawlcw.cli import loading; loading.find('pages.py');"
        "import crawlcw.assembly, crawlcw.cli.commands.run, crawlcw.cli.processes.supervisor;"
        "print([name for name in sys.modules if name.partition('.')[0] in ('scrapy', 'twisted')"
        " or name.startswith('crawlcw.scrapy')])"
    )

    run = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )

    assert run.stdout == "[]\n"


def test_a_name_needs_neither_scrapy_nor_the_project(folder: Path):
    write_project(folder / "shops")
    code = (
        "import sys; from crawlcw.cli import loading; print(loading.name_of('shops:example.com'));"
        "print('scrapy' in sys.modules, 'shop' in sys.modules)"
    )

    run = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )

    assert run.stdout == "example-com\nFalse False\n"


def test_without_scrapy_one_sentence_names_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch):
    write_project(folder)
    monkeypatch.setitem(sys.modules, "scrapy", None)

    with pytest.raises(UsageError, match=r"needs Scrapy: install it with `pip install 'crawlcw\[s"):
        project.crawler_of(folder, "books")
