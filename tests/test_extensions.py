"""Extensions of installed packages: the package in examples/plugin, and broken ones."""

import configparser
import gzip
import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from crawlcw import Response, Spider, run_spider
from crawlcw.testing import ReplayDownloader
from tests.support.commands import invoke
from tests.support.pages import ROOT

pytestmark = pytest.mark.quick

EXAMPLE = ROOT / "examples" / "plugin"
Install = Callable[..., None]


class Shop(Spider):
    name = "shop"
    start_urls = ("https://shop.example/",)

    def parse(self, response: Response) -> Any:
        yield {"title": response.css_first("h1").text(), "tags": ["a"]}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Write the metadata that pip would write, and the module of the package."""
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))

    def install(name: str, entry_points: Mapping[str, Mapping[str, str]], source: str = "") -> None:
        (folder / f"{name}.py").write_text(source)
        metadata = folder / f"{name}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        parser = configparser.ConfigParser()
        parser.read_dict(entry_points)
        with (metadata / "entry_points.txt").open("w") as file:
            parser.write(file)

    return install


@pytest.fixture
def example(install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the example without pip."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    source = (EXAMPLE / "crawlcw_example.py").read_text()
    install("crawlcw_example", project["entry-points"], source)
    monkeypatch.setenv("LEDGERS", str(tmp_path))
    monkeypatch.setenv("SIGN_KEY", "secret")


@pytest.fixture
async def ledger(tmp_path: Path) -> str:
    """The URL of a ledger with a crawl of one item."""
    url = f"sqlite:///{tmp_path}/shop.db"
    web = ReplayDownloader({"https://shop.example/": "<h1>A & \x0b B</h1>"})
    await run_spider(Shop(), ledger=url, downloader=web)
    return url


def plugins() -> dict[tuple[str, str], tuple[str, str]]:
    """Return the state and the problem of each extension, except crawlcw's own."""
    rows = [json.loads(line) for line in invoke("plugins", "--json").stdout.splitlines()]
    return {
        (row["kind"], row["name"]): (row["state"], row["problem"])
        for row in rows
        if not row["package"].startswith("crawlcw ")
    }


@pytest.mark.usefixtures("example")
def test_each_kind_of_the_example_is_used_by_its_name(ledger: str, tmp_path: Path) -> None:
    assert plugins() == {
        ("command", "domains"): ("active", ""),
        ("feed", "xml"): ("active", ""),
        ("layer", "sign"): ("idle", ""),
        ("store", "mounted"): ("active", ""),
    }
    file = tmp_path / "shop.xml.gz"
    assert invoke("export", "shop", "--ledger", ledger, "-o", str(file)).returncode == 0
    (item,) = ElementTree.fromstring(gzip.decompress(file.read_bytes()))
    fields = {field.get("name"): field.text for field in item}
    assert fields == {"title": "A & \ufffd B", "tags": '["a"]'}
    printed = invoke("export", "shop", "--ledger", ledger, "-o", "-:xml", "--fields", "tags").stdout
    assert '<item><field name="tags">["a"]</field></item>' in printed
    domains = invoke("domains", "shop", "--ledger", ledger)
    assert (domains.returncode, domains.stdout) == (0, "       1  shop.example\n")
    assert invoke("stats", "shop", "--ledger", "mounted://shop").returncode == 0


@pytest.mark.usefixtures("example")
def test_the_help_names_the_package_of_a_command_and_a_near_name_is_suggested() -> None:
    help_text = invoke("--help").stdout

    assert "Commands of other packages:\n  domains  From crawlcw_example 1.0.\n" in help_text
    mistake = invoke("domain", "shop")
    assert (mistake.returncode, "did you mean domains?" in mistake.stderr) == (2, True)


@pytest.mark.usefixtures("example")
def test_a_layer_is_active_if_the_setting_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRAWLCW_LAYERS", "sign")

    assert plugins()["layer", "sign"] == ("active", "")


@pytest.mark.parametrize("line", ["import nosuchmodule", "raise SystemExit(3)", "Thing = 3"])
def test_a_broken_extension_is_one_sentence_and_breaks_nothing_else(
    install: Install, line: str, ledger: str
) -> None:
    groups = ("commands", "feeds", "layers", "stores")
    install("broken", {f"crawlcw.{group}": {"thing": "broken:Thing"} for group in groups}, line)

    assert {state for state, _ in plugins().values()} == {"broken"}
    assert invoke("plugins").returncode == 0
    for arguments in (
        ("thing",),
        ("export", "shop", "--ledger", ledger, "-o", "x.thing"),
        ("stats", "shop", "--ledger", "thing://x"),
        ("fetch", "https://shop.example/", "-s", "layers=thing"),
    ):
        run = invoke(*arguments)
        assert (run.returncode, run.stderr.count("\n")) == (2, 1), run.stderr
        assert "thing" in run.stderr
        assert "a bug in crawlcw" not in run.stderr
    assert invoke("stats", "shop", "--ledger", ledger).returncode == 0
    assert invoke("--help").returncode == 0


FAILING = """
class Feed:
    def __init__(self, stream, *, columns): {init}
    def write(self, item): {write}
    def finish(self): {finish}
    def close(self): {close}
"""


@pytest.mark.parametrize("method", ["init", "write", "finish", "close"])
def test_a_feed_that_fails_leaves_the_other_files_complete(
    install: Install, ledger: str, tmp_path: Path, method: str
) -> None:
    lines = dict.fromkeys(("init", "write", "finish", "close"), "pass")
    source = FAILING.format(**lines | {method: "raise ValueError('too much')"})
    install("failing", {"crawlcw.feeds": {"thing": "failing:Feed"}}, source)
    files = [tmp_path / f"shop.{name}" for name in ("thing", "jsonl")]

    run = invoke("export", "shop", "--ledger", ledger, *(f"-o{file}" for file in files))

    assert run.returncode == 2
    assert run.stderr == (
        f"crawlcw: cannot write {files[0]}: the feed 'thing' failed: ValueError: too much\n"
    )
    assert [file.exists() for file in files] == [False, True]
    assert json.loads(files[1].read_text())["tags"] == ["a"]
    assert not list(tmp_path.glob("*.part"))


def test_a_command_that_fails_is_named_with_its_package(install: Install) -> None:
    source = "import click\n@click.command('thing')\ndef thing():\n    1 / 0\n"
    install("bad", {"crawlcw.commands": {"thing": "bad:thing"}}, source)

    run = invoke("thing")

    sentence = "the command 'thing' of bad 1.0 failed: ZeroDivisionError: division by zero"
    assert (run.returncode, run.stderr) == (2, f"crawlcw: {sentence}\n")


def test_an_extension_with_a_name_of_crawlcw_or_of_a_first_package_is_hidden(
    install: Install, ledger: str
) -> None:
    source = "import click\nthing = click.Command('thing')\n"
    for name in ("first", "second"):
        entry_points = {"thing": f"{name}:thing", "stats": f"{name}:thing"}
        install(name, {"crawlcw.commands": entry_points, "crawlcw.feeds": {"csv": "x:y"}}, source)

    rows = [json.loads(line) for line in invoke("plugins", "--json").stdout.splitlines()]

    states = [(row["name"], row["state"], row["problem"]) for row in rows]
    things = [state for state in states if state[0] == "thing"]
    winner = next(row["package"] for row in rows if row["name"] == "thing")
    assert things == [("thing", "active", ""), ("thing", "hidden", f"{winner} has the same name")]
    assert states.count(("stats", "hidden", "crawlcw has the same name")) == 2
    assert states.count(("csv", "hidden", "crawlcw has the same name")) == 2
    assert invoke("stats", "shop", "--ledger", ledger).returncode == 0


def test_the_name_of_an_extension_cannot_change_the_terminal(install: Install) -> None:
    install("hostile", {"crawlcw.feeds": {"x\x1b[2J": "hostile:Nothing"}})

    assert "\x1b" not in invoke("plugins").stdout
