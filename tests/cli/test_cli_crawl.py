"""`crawlcw crawl`: a site without a spider file, in real processes on a real server."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from tests.cli.test_cli import PATIENCE, command, crawlcw, environment
from tests.support import docs
from tests.support.commands import invoke
from tests.support.docs import Site
from tests.support.plain_site import PlainHandler, PlainSite

PAGES = 60


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def manual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A manual whose pages link to the next ones, and to the first."""
    root = tmp_path_factory.mktemp("manual")
    for number in range(PAGES):
        name = "index.html" if number == 0 else f"page-{number}.html"
        targets = range(1, min(PAGES, number * 3 + 9))
        links = "".join(f'<a href="page-{target}.html">{target}</a> ' for target in targets)
        rows = "".join(f"<tr><td>{row}</td><td>{number}</td></tr>" for row in range(20))
        main = f"<h1>Page {number}</h1><p>The text of page {number}.</p><table>{rows}</table>"
        html = f"<html><title>Page {number}</title><main>{main}</main>{links}</html>"
        (root / name).write_text(html)
    return root


@pytest.fixture(scope="module")
def site(manual: Path) -> Iterator[Site]:
    with docs.served(manual) as served:
        yield served


def name_of(site: Site) -> str:
    return "site-" + site.origin.removeprefix("http://").replace(".", "-").replace(":", "-")


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def hosts_left_out(folder: Path, site: Site) -> dict[str, str]:
    """Return the files by their path below the host's folder, without the port of the site."""
    (host,) = folder.iterdir()
    return {name: text.decode().replace(site.origin, "") for name, text in files(host).items()}


def test_a_site_becomes_files_and_rows_by_one_command(site: Site):
    ended = crawlcw("crawl", site.start, "--markdown", "out", "-o", "pages.jsonl")

    assert ended.returncode == 0, ended.stderr
    assert f"{name_of(site)}: the ledger" in ended.stdout
    rows = [json.loads(line) for line in Path("pages.jsonl").read_text().splitlines()]
    assert {row["file"] for row in rows} == set(files(Path("out")))
    assert len(rows) == PAGES
    row = next(row for row in rows if row["title"] == "Page 7")
    assert row["url"] == f"{site.origin}/page-7.html"
    assert "The text of page 7." in row["markdown"]


def test_other_commands_take_the_name_or_the_url(site: Site):
    crawlcw("crawl", site.start, "--no-lists", "--max-pages", "1", "-q")

    by_name, by_url = (invoke("stats", text, "--json") for text in (name_of(site), site.start))

    assert json.loads(by_name.stdout)["counts"]["finished"] == 1
    assert json.loads(by_url.stdout)["counts"] == json.loads(by_name.stdout)["counts"]


@pytest.mark.thorough
@pytest.mark.representative("2")
@pytest.mark.parametrize("processes", [1, 2])
def test_a_killed_crawl_ends_with_the_files_of_an_unbroken_one(
    manual: Path, site: Site, processes: int
):
    crawlcw("crawl", site.start, "--markdown", "whole", "-q")
    options = (
        "--markdown",
        "out",
        "-q",
        "--processes",
        str(processes),
        "--ledger",
        "sqlite:///k.db",
    )
    with docs.served(manual, answered=PAGES // 2) as gated:
        crawl = subprocess.Popen(
            command("crawl", gated.start, *options), env=environment(), start_new_session=True
        )
        end = time.monotonic() + PATIENCE
        while len(list(Path("out").rglob("*.md"))) < PAGES // 3 and time.monotonic() < end:
            time.sleep(0.01)
        for pid in [*_children_of(crawl.pid), crawl.pid]:
            os.kill(pid, signal.SIGKILL)
        crawl.wait()
        written = len(list(Path("out").rglob("*.md")))
        gated.heal()

        again = crawlcw("crawl", gated.start, *options)

        assert again.returncode == 0, again.stderr
        assert PAGES // 3 <= written < PAGES
        assert hosts_left_out(Path("out"), gated) == hosts_left_out(Path("whole"), site)


def _children_of(pid: int) -> list[int]:
    texts = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(text) for text in texts]


class ChangingSite(PlainHandler):
    pages: ClassVar[dict[str, str]] = {}

    def get(self) -> None:
        self.reply(200 if self.path in self.pages else 404, self.pages.get(self.path, ""))


def test_a_revisit_changes_only_the_files_of_changed_pages():
    ChangingSite.pages = {"/": '<main>first</main><a href="2">2</a>', "/2": "<main>second</main>"}
    with PlainSite(ChangingSite) as site:
        crawlcw("crawl", site.url, "--markdown", "out", "-q")
        (host,) = Path("out").iterdir()
        for path in host.iterdir():
            os.utime(path, (1, 1))
        ChangingSite.pages["/2"] = "<main>changed</main>"
        invoke("recrawl", site.url, "--yes")
        ended = crawlcw("crawl", site.url, "--markdown", "out", "-q")

    assert ended.returncode == 0, ended.stderr
    assert [path.name for path in host.iterdir() if path.stat().st_mtime > 1] == ["2.md"]
    assert "changed" in (host / "2.md").read_text()


def test_a_change_of_the_options_is_told(site: Site):
    crawlcw("crawl", site.start, "--max-pages", "1", "-q")

    ended = crawlcw("crawl", site.start, "--max-pages", "1", "--markdown", "out")

    sentence = f"the crawl {name_of(site)} had other options before (markdown)"
    assert sentence in ended.stderr
    assert f"`crawlcw reset {name_of(site)}` fetches them again" in ended.stderr
    assert sentence not in crawlcw("crawl", site.start, "--markdown", "out").stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("ftp://a.example/",), "not a URL to crawl: "),
        (("http://",), "not a URL to crawl: "),
        (("a.example", "--name", "1"), "--name '1': a name is a letter"),
        (("a.example", "--items", "no.json"), "--items: no.json cannot be read: No such file"),
        (("a.example", "--items", "text.json"), "--items: text.json is not JSON: Expecting"),
        (("a.example", "--items", "spec.json"), "--items: spec.json: A.title: unknown type 'x'"),
        (
            ("a.example", "--markdown", "text.json"),
            "--markdown takes a folder: text.json is",
        ),
        (("a.example", "--whole"), "--whole is about Markdown files"),
    ],
)
def test_wrong_input_is_one_sentence(arguments: tuple[str, ...], sentence: str):
    Path("text.json").write_text("title: h1")
    Path("spec.json").write_text('{"name": "A", "fields": {"title": {"css": "b", "type": "x"}}}')

    ended = invoke("crawl", *arguments, "--processes", "0")

    assert ended.returncode == 2
    assert ended.stderr.startswith(f"crawlcw: {sentence}")
    assert ended.stderr.count("\n") == 1
    assert not Path(".crawlcw").exists()
