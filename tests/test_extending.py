"""The packages of the page about extensions, used by the entry points of their pyproject.toml."""

import configparser
import importlib
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from crawlcw import Request, Response, Settings, Spider, run_spider
from crawlcw.testing import ReplayDownloader
from tests.support import pages
from tests.support.commands import invoke

pytestmark = pytest.mark.quick

PAGE = pages.guide("extending")


class Shop(Spider):
    name = "shop"
    start_urls = ("https://shop.example/",)

    def parse(self, response: Response) -> Any:
        yield {"title": response.css_first("h1").text()}


@pytest.fixture(autouse=True)
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the page's modules, and the metadata that pip makes from each pyproject.toml."""
    for name, block in pages.modules(PAGE).items():
        text = block.replace("sqlite:////srv/ledgers/", f"sqlite:///{tmp_path}/")
        (tmp_path / f"{name}.py").write_text(text)
    for block in pages.blocks(PAGE, "toml"):
        project = tomllib.loads(block)["project"]
        name, version = project["name"], project["version"]
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        entry_points = configparser.ConfigParser()
        entry_points.read_dict(project["entry-points"])
        with (folder / "entry_points.txt").open("w") as file:
            entry_points.write(file)
    monkeypatch.syspath_prepend(str(tmp_path))


async def test_the_layer_signs_the_page_of_a_crawl_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Recording(ReplayDownloader):
        async def fetch(self, request: Request, *, url: str) -> Response:
            headers.append({name.lower(): value for name, value in request.headers})
            return await super().fetch(request, url=url)

    headers: list[dict[str, str]] = []
    monkeypatch.setenv("SIGN_KEY", "secret")
    await run_spider(
        Shop(),
        ledger=f"sqlite:///{tmp_path}/shop.db",
        settings=Settings(layers=["sign"], obey_robots=False),
        downloader=Recording({"https://shop.example/": "<h1>Shop</h1>"}),
    )

    assert [len(sent["x-signature"]) for sent in headers] == [64]


def test_a_layer_without_its_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from crawlcw import Spider\n"
        "class Shop(Spider):\n"
        "    name, start_urls = 'shop', ['https://shop.example/']\n"
        "    def parse(self, response): yield {}\n"
    )

    run = invoke("check", f"{tmp_path}/shop.py", "-s", "layers=sign")

    assert run.returncode == 2
    assert "'sign' cannot be loaded: KeyError: 'SIGN_KEY'" in run.stdout


def test_the_layer_passes_the_contract_as_the_page_tests_it() -> None:
    contract = importlib.import_module("test_crawlcw_sign").TestSign()

    for name in dir(contract):
        if name.startswith("test_"):
            getattr(contract, name)()


async def test_the_downloader_answers_from_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("manual").mkdir()
    Path("manual", "index.html").write_text("<title>Manual</title><a href=two.html>two</a>")
    Path("manual", "two.html").write_text("<title>Two</title><a href=gone.html>gone</a>")
    spider = importlib.import_module("crawlcw_files").Manual()

    report = await run_spider(spider, ledger=f"sqlite:///{tmp_path}/manual.db")

    assert (report.items, report.failures) == (2, {"http-status": 1})


async def test_the_store_opens_ledgers_for_the_commands() -> None:
    await run_spider(
        Shop(),
        ledger="mounted://shop",
        downloader=ReplayDownloader({"https://shop.example/": "<h1>Shop</h1>"}),
    )

    commands = ("stats --json", "export -o -", "drop --yes", "stats")
    stats, item, drop, gone = (
        invoke(*command.split(), "shop", "--ledger", "mounted://shop") for command in commands
    )
    assert json.loads(stats.stdout)["counts"]["finished"] == 1
    assert json.loads(item.stdout)["title"] == "Shop"
    assert (drop.returncode, gone.returncode) == (0, 2)


async def test_the_feed_and_the_command_print_the_titles() -> None:
    await run_spider(
        Shop(),
        ledger="mounted://shop",
        downloader=ReplayDownloader({"https://shop.example/": "<h1>Shop</h1>"}),
    )
    ledger = ("--ledger", "mounted://shop")

    feed = invoke("export", "shop", *ledger, "-o", "-:txt")
    titles = invoke("titles", "shop", *ledger)

    assert (feed.stdout, titles.stdout) == ('"Shop"\n', "'Shop'\n")


def test_the_feed_passes_the_contract_as_the_page_tests_it() -> None:
    contract = importlib.import_module("test_crawlcw_lines").TestLines()

    for name in dir(contract):
        if name.startswith("test_"):
            getattr(contract, name)()
