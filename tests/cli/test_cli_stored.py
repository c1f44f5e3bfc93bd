"""Stored pages, parsed again by the command without their site."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_cli import PATIENCE, command, crawlcw, environment
from tests.support import docs
from tests.support.commands import invoke
from tests.support.examples import output_of

PAGES = 12
#: A crawl without worker processes.
RUN = ("run", "pages", "--quiet", "--processes", "0")
SPIDER = """\
from crawlcw import Settings, Spider

class Pages(Spider):
    name = "pages"
    start_urls = [{start!r}]
    settings = Settings(keep_bodies=True, delay="0s", auto_throttle=False)

    def parse(self, response):
        {first}
        yield {{"title": response.css_first("h1").text(){more}}}
        yield from response.follow_all({links!r}, self.parse)
"""


def spider(
    start: str, *, more: str = "", links: str = "a", first: str = "", name: str = "pages.py"
) -> None:
    text = SPIDER.format(start=start, more=more, links=links, first=first)
    Path("spiders").mkdir(exist_ok=True)
    Path("spiders", name).write_text(text)


def site(folder: Path, pages: int) -> None:
    """Make a site whose first page links to all others, and by an image map to a hidden one."""
    links = "".join(f"<a href={n}.html>{n}</a>" for n in range(1, pages))
    hidden = "<area href=hidden.html>"
    (folder / "index.html").write_text(f"<h1>home</h1>{links}{hidden}")
    for number in range(1, pages):
        (folder / f"{number}.html").write_text(f"<h1>page {number}</h1><i>{number * 7}</i>")


@pytest.fixture(scope="module")
def crawled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with the crawl of a closed site, and the URL of the site."""
    folder = tmp_path_factory.mktemp("crawled")
    pages = tmp_path_factory.mktemp("site")
    site(pages, PAGES)
    before = Path.cwd()
    os.chdir(folder)
    try:
        with docs.served(pages) as served:
            start = f"{served.origin}/index.html"
            spider(start)
            run = invoke(*RUN)
        assert run.returncode == 0, run.stderr
    finally:
        os.chdir(before)
    return folder, start


@pytest.fixture
def start(crawled: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Change to a copy of that folder; return the start URL."""
    folder, start = crawled
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return start


def warc_files() -> list[Path]:
    return sorted(Path(".crawlcw/warc/pages").iterdir())


def items() -> list[dict[str, Any]]:
    return [json.loads(line) for line in invoke("export", "pages", "-o", "-").stdout.splitlines()]


def counts() -> dict[str, int]:
    found: dict[str, int] = json.loads(invoke("stats", "pages", "--json").stdout)["counts"]
    return found


def checked(path: Path) -> "subprocess.CompletedProcess[str]":
    """Return the result of warcio's own command, which verifies all digests."""
    code = "import sys; from warcio.cli import main; main(sys.argv[1:])"
    check = [sys.executable, "-c", code, "check", "-v", str(path)]
    return subprocess.run(check, capture_output=True, text=True, check=False, timeout=PATIENCE)


def test_the_files_are_sound_to_warcio(start: str):
    (path,) = warc_files()
    run = checked(path)

    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("digest pass") == 1 + 2 * PAGES  # and the record about the file
    with path.open("r+b") as stream:
        stream.seek(-200, os.SEEK_END)
        (byte,) = stream.read(1)
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte ^ 0xFF]))
    assert checked(path).returncode != 0


def test_stored_pages_are_shown_to_a_changed_spider_and_nothing_is_recorded(start: str):
    spider(start, more=', "seven": int(i.text()) if (i := response.css_first("i")) else 0')

    run = invoke("parse", "pages", "--stored")

    assert run.returncode == 0, run.stderr
    shown = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    assert sorted(item["seven"] for item in shown) == [7 * n for n in range(PAGES)]
    requests = [line.split() for line in run.stdout.splitlines() if not line.startswith("{")]
    assert len(requests) == PAGES - 1
    assert requests[0][:2] == ["parse", "GET"]
    assert run.stderr == f"{PAGES} pages parsed: {PAGES} items, {PAGES - 1} requests\n"
    assert all(set(item) == {"title"} for item in items())


def test_one_stored_page_by_its_url_and_another_callback(start: str):
    spider(start)
    with Path("spiders/pages.py").open("a") as stream:
        stream.write("\n    def parse_i(self, response):\n")
        stream.write('        yield {"i": response.css_first("i").text()}\n')
    url = start.replace("index", "3")

    run = invoke("parse", "pages", "--stored", url, "--callback", "parse_i", "--json")

    found = json.loads(run.stdout)
    assert (run.returncode, found["url"], found["items"]) == (0, url, [{"i": "21"}])


def test_saved_items_take_the_place_of_the_old_ones_and_new_links_wait(start: str):
    spider(start, more=', "new": True', links="a, area")

    run = invoke("parse", "pages", "--stored", "--save", "--yes")

    assert run.returncode == 0, run.stderr
    assert run.stdout == (
        f"{PAGES} pages recorded again, with {PAGES} items\n"
        "1 new link waits for `crawlcw run pages`\n"
    )
    assert len(items()) == PAGES
    assert all(item["new"] for item in items())
    assert (counts()["finished"], counts()["todo"]) == (PAGES, 1)
    waiting = json.loads(invoke("show", "pages", start.replace("index", "hidden"), "--json").stdout)
    assert (waiting["status"], waiting["depth"], waiting["linked_from"]) == ("todo", 1, [start])
    assert invoke("doctor", "pages").returncode == 0
    # A second run changes nothing.
    again = invoke("parse", "pages", "--stored", "--save", "--yes")
    assert again.stdout == f"{PAGES} pages recorded again, with {PAGES} items\n"
    assert len(items()) == PAGES


def test_a_callback_that_raises_costs_its_page_nothing(start: str):
    spider(start, first='assert "page 3" not in response.text, "no 3"', more=', "new": 1')

    run = invoke("parse", "pages", "--stored", "--save", "--yes")

    assert run.returncode == 3
    assert "3.html: parse failed: AssertionError: no 3" in run.stderr
    assert "crawlcw: 1 page failed\n" in run.stderr
    assert run.stdout == f"{PAGES - 1} pages recorded again, with {PAGES - 1} items\n"
    assert sorted(item["title"] for item in items() if "new" not in item) == ["page 3"]


def test_a_page_whose_callback_had_raised_is_brought_back(tmp_path: Path, monkeypatch: Any):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site").mkdir()
    site(tmp_path / "site", 3)
    with docs.served(tmp_path / "site") as served:
        start = f"{served.origin}/index.html"
        spider(start, first='assert "page 2" not in response.text')
        invoke(*RUN)
    spider(start)

    run = invoke("parse", "pages", "--stored", "--save", start.replace("index", "2"))

    assert run.returncode == 0, run.stderr
    assert run.stdout == "1 page recorded again, with 1 item\n"
    assert len(items()) == 3
    assert counts()["ignored"] == 0


def test_a_file_that_was_moved_away_is_named_and_found_again(start: str):
    (path,) = warc_files()
    Path("elsewhere/pages").mkdir(parents=True)
    path.rename(Path("elsewhere/pages", path.name))

    run = invoke("parse", "pages", "--stored", "--save", "--yes")

    assert run.returncode == 3
    assert run.stderr == (
        f"crawlcw: {PAGES} pages could not be read: {path.name} is not in .crawlcw/warc/pages "
        "(-s bodies_dir=... names another folder)\n"
    )
    assert run.stdout == "0 pages recorded again, with 0 items\n"
    assert len(items()) == PAGES
    moved = invoke("parse", "pages", "--stored", "-s", "bodies_dir=elsewhere")
    assert moved.returncode == 0


def test_damaged_records_are_counted(start: str):
    (path,) = warc_files()
    shown = invoke("show", "pages", start.replace("index", "5"), "--json").stdout
    place = json.loads(shown)["stored"]
    with path.open("r+b") as stream:
        stream.seek(place["offset"] + place["length"] // 2)
        stream.write(b"\x00\xff\x00")

    run = invoke("parse", "pages", "--stored")

    assert run.returncode == 3
    assert "5.html: its record is damaged: it cannot be decompressed" in run.stderr
    assert "crawlcw: 1 page could not be read\n" in run.stderr
    assert f"{PAGES - 1} pages parsed" in run.stderr


def test_what_is_not_stored_is_said_in_one_sentence(start: str, tmp_path: Path):
    gone = invoke("parse", "pages", "--stored", start.replace("index", "99"))
    assert (gone.returncode, gone.stdout) == (2, "")
    assert "pages has no page" in gone.stderr
    with docs.served(tmp_path) as served:
        spider(f"{served.origin}/index.html", name="others.py")
        text = Path("spiders/others.py").read_text().replace('"pages"', '"others"')
        Path("spiders/others.py").write_text(text)
        (tmp_path / "index.html").write_text("<h1>h</h1>")
        invoke("run", "others", *RUN[2:], "-s", "keep_bodies=false")

    nothing = invoke("parse", "others", "--stored")

    assert nothing.returncode == 2
    assert nothing.stderr.count("\n") == 1
    assert "no page of others is stored: `crawlcw run others -s keep_bodies=true`" in nothing.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--save", "http://a.example/"], "add --stored"),
        ([], "parse takes one URL"),
        (["http://a.example/", "http://b.example/"], "parse takes one URL"),
        (["--stored", "--context", "{}"], "--context is for a fetched page"),
        (["--stored", "--save", "--json"], "leave --json out"),
        (["--stored", "--callback", "parse_non"], "no callback 'parse_non'"),
        (["--stored", "--save"], "add --yes"),
        (["--stored", "mailto:x"], "not a URL: 'mailto:x' is neither http nor https"),
    ],
)
def test_a_wish_that_contradicts_itself_is_refused(start: str, arguments: list[str], said: str):
    run = invoke("parse", "pages", *arguments)

    assert run.returncode == 2
    assert said in run.stderr
    assert "Traceback" not in run.stderr


def test_show_names_the_record(start: str):
    (path,) = warc_files()

    run = invoke("show", "pages", start)

    assert f"  its body is in {path.name}, " in run.stdout


def test_kept_pages_stay_when_their_ledger_goes(start: str):
    (path,) = warc_files()
    size = path.stat().st_size
    said = f"the pages that it kept stay in .crawlcw/warc/pages: 1 file, {size:,} bytes"
    here = "sqlite:///.crawlcw/ledger.db"

    copied = invoke("copy", "pages", "--from", here, "--to", "sqlite:///b.db")
    dropped = invoke("drop", "pages", "--yes")
    parsed = invoke("parse", "pages", "--stored", "--ledger", "sqlite:///b.db")
    fresh = invoke(
        *(*RUN, "--fresh", "--yes", "--ledger", "sqlite:///b.db"),
        *("-s", "max_retry=1", "-s", "host_max_failures=1"),
    )

    assert f"{said}; both ledgers refer to them" in copied.stderr
    assert dropped.stderr == f"{said}\n"
    assert parsed.returncode == 0
    assert said in fresh.stderr
    assert path.exists()


def test_without_warcio_one_sentence_says_what_to_install(start: str, monkeypatch: Any):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    run = invoke("parse", "pages", "--stored")

    assert run.returncode == 2
    assert run.stderr == "crawlcw: keep_bodies needs warcio: `pip install 'crawlcw[warc]'`\n"


@pytest.mark.thorough
def test_the_example_runs(tmp_path: Path):
    said = output_of("stored.py", tmp_path)

    assert said.startswith("20 pages recorded again, with 20 items\n")
    assert '"links":' in said


def test_a_folder_that_takes_no_files_ends_the_crawl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    site(tmp_path, 2)
    with docs.served(tmp_path) as served:
        spider(f"{served.origin}/index.html")
        run = invoke(*RUN, "-s", "bodies_dir=/dev/null")

    assert run.returncode == 3
    assert "cannot store pages in /dev/null/pages: Not a directory" in run.stderr + run.stdout
    assert (counts()["todo"], counts()["finished"]) == (1, 0)


CRASH = """if "page 2" in response.text and not __import__("os").path.exists("crashed"):
            open("crashed", "w").close()
            __import__("os")._exit(9)"""


@pytest.mark.thorough
def test_a_page_that_killed_its_process_once_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site").mkdir()
    site(tmp_path / "site", 4)
    with docs.served(tmp_path / "site") as served:
        start = f"{served.origin}/index.html"
        spider(start, first=CRASH)
        run = crawlcw("run", "pages", "--quiet")
    assert run.returncode == 0, run.stderr
    assert Path("crashed").exists()

    parsed = invoke("parse", "pages", "--stored")

    assert parsed.stderr == "4 pages parsed: 4 items, 3 requests\n"


# Processes that are killed -----------------------------------------------------------


def finished(ledger_url: str) -> int:
    run = invoke("stats", "pages", "--json", "--ledger", ledger_url)
    return json.loads(run.stdout)["counts"]["finished"] if run.returncode == 0 else 0


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("pages", "goals"),
    [pytest.param(40, (9,), id="one"), pytest.param(400, (1, 60, 130, 220, 300), id="five")],
)
def test_each_record_that_a_task_names_outlives_kills(
    ledger_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pages: int,
    goals: tuple[int, ...],
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site").mkdir()
    site(tmp_path / "site", pages)
    crawl = command("run", "pages", "--quiet", "--processes", "0", "--ledger", ledger_url)
    with docs.served(tmp_path / "site") as served:
        start = f"{served.origin}/index.html"
        spider(start)
        for goal in goals:
            # Two at once, each with its own file.
            crawls = [subprocess.Popen(crawl, env=environment()) for _ in range(2)]
            try:
                deadline = time.monotonic() + PATIENCE
                while finished(ledger_url) < goal and crawls[0].poll() is None:
                    assert time.monotonic() < deadline
            finally:
                for each in crawls:
                    each.send_signal(signal.SIGKILL)
                    each.wait()
            parsed = invoke("parse", "pages", "--stored", "--ledger", ledger_url)
            assert parsed.returncode == 0, parsed.stderr
        last = subprocess.run(crawl, env=environment(), check=False, timeout=200)
        assert last.returncode == 0

    parsed = invoke("parse", "pages", "--stored", "--ledger", ledger_url)
    assert parsed.stderr == f"{pages} pages parsed: {pages} items, {pages - 1} requests\n"
    titles = {json.loads(line)["title"] for line in parsed.stdout.splitlines() if line[0] == "{"}
    assert titles == {"home", *(f"page {n}" for n in range(1, pages))}
    assert not [path for path in warc_files() if path.name.endswith(".open")]
    assert all(checked(path).returncode == 0 for path in warc_files())
    assert invoke("doctor", "pages", "--ledger", ledger_url).returncode == 0
