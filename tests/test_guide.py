"""Checks of every page of the manual: runnable code, tables equal to the code, valid links."""

import configparser
import inspect
import json
import re
import shlex
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click
import pytest

from crawlcw import Settings, Spider, run_spider
from crawlcw.api.host_limits import Limit, Limits
from crawlcw.api.settings import described
from crawlcw.api.spider import check
from crawlcw.cli import exit_codes
from crawlcw.cli.main import cli
from crawlcw.crawl.control import ADJUSTABLE
from crawlcw.errors import Reason
from crawlcw.guide.pages import NAMES, all_pages
from crawlcw.model.retry import RETRY_STATUSES
from crawlcw.model.task import Status
from crawlcw.testing import ReplayDownloader
from crawlcw.tracking import Policy, Tracker, UseCase, Worker
from tests.support import api_reference, needed, pages
from tests.support.commands import invoke
from tests.support.pages import GUIDE, ROOT, WRITTEN, guide
from tests.support.state_diagram import diagram

COMMANDS = {name: cli.get_command(click.Context(cli), name) for name in cli.list_commands(None)}
#: Options that the page of the commands describes once for all commands.
COMMON = {"--ledger", "--log-level", "--help", "-h"}


def crawlcw(*arguments: str, folder: Path) -> str:
    return subprocess.run(
        [sys.executable, "-m", "crawlcw", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout


def options(command: click.Command) -> set[str]:
    shown = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    return {name for option in shown for name in (*option.opts, *option.secondary_opts)}


def relative(page: Path) -> str:
    return str(page.relative_to(ROOT))


# Pages


def test_every_file_of_the_folder_is_a_page():
    assert {path.stem for path in GUIDE.glob("*.md")} == set(NAMES)


def test_a_page_begins_with_a_heading_and_one_line_about_it():
    for page in all_pages():
        heading, empty, summary, after = page.text.split("\n")[:4]
        assert heading.startswith("# "), page.name
        assert (empty, after) == ("", ""), page.name
        assert summary.endswith("."), page.name
        assert len(summary) <= 85, page.name


@pytest.mark.quick
def test_the_api_reference_is_that_of_the_docstrings():
    assert {page.stem: pages.text_of(page) for page in pages.GENERATED} == api_reference.pages(), (
        "run `python -m tests.support.api_reference`"
    )


@pytest.mark.parametrize("page", [*WRITTEN, pages.ARCHITECTURE, *pages.GENERATED], ids=relative)
def test_every_link_leads_somewhere(page):
    text = pages.without_code(pages.text_of(page))
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        led_to = (page.parent / path).resolve() if path else page
        if not led_to.exists() or (anchor and anchor not in pages.anchors(pages.text_of(led_to))):
            broken.append(target)

    assert broken == []


@pytest.mark.parametrize("page", [*WRITTEN, pages.ARCHITECTURE], ids=relative)
def test_every_file_and_module_that_is_named_exists(page):
    text = pages.text_of(page)
    named = set(re.findall(r"(?:tests|examples)/[\w/]+\.(?:py|sh)", text))
    named |= {each.replace(".", "/") for each in re.findall(r"python -m (tests[\w.]*\w)", text)}

    missing = [
        each for each in named if not any((ROOT / f"{each}{end}").exists() for end in ("", ".py"))
    ]
    assert missing == []


@pytest.mark.parametrize("page", WRITTEN, ids=relative)
def test_the_english_is_plain(page):
    text = pages.without_code(pages.text_of(page))

    odd = r"\bof which\b|\bof whom\b|\bwho(?:m|so)?ever\b|\bto be had\b"
    assert re.findall(odd, text, re.IGNORECASE) == []


# Code


@pytest.fixture(autouse=True, scope="module")
def modules_of_pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Make the modules of the packages on the pages importable, for the code that imports them."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "spiders").mkdir()
    for page in ("extending", "tutorial"):
        for name, block in pages.modules(guide(page)).items():
            (folder / f"{name}.py").write_text(block)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield


def python_blocks() -> list:
    return [
        pytest.param(block, id=f"{page.stem}-{n}")
        for page in WRITTEN
        for n, block in enumerate(pages.blocks(pages.text_of(page), "python"))
    ]


@pytest.mark.parametrize("block", python_blocks())
def test_the_code_of_every_page_can_be_run(block):
    if "import scrapy" in block:
        needed.module("scrapy", extra="ports")
    exec(compile(block, "page", "exec"), {"__name__": "page"})


@pytest.mark.parametrize("block", python_blocks())
def test_every_spider_of_every_page_can_be_crawled(block):
    if "import scrapy" in block:
        needed.module("scrapy", extra="ports")
    names: dict = {"__name__": "page"}
    exec(block, names)

    for kind in names.values():
        if inspect.isclass(kind) and issubclass(kind, Spider) and kind.__module__ == "page":
            check(kind())


@pytest.mark.parametrize("page", WRITTEN, ids=relative)
def test_every_other_block_can_be_read(page):
    text = pages.text_of(page)

    for block in pages.blocks(text, "json"):
        json.loads(block)
    for block in pages.blocks(text, "toml"):
        tomllib.loads(block)
    for block in pages.blocks(text, "ini"):
        configparser.RawConfigParser(strict=False).read_string(block)
    for block in [*pages.blocks(text, "sh"), *pages.blocks(text, "bash")]:
        subprocess.run(["bash", "-n"], input=block, text=True, check=True)
    named = set(re.findall(r"^ *```(\w+)$", text, re.MULTILINE))
    # Other tests compare drawings, sessions and container files.
    assert named <= {
        "python",
        "json",
        "toml",
        "ini",
        "sh",
        "bash",
        "mermaid",
        "console",
        "dockerfile",
    }


def command_lines() -> list[str]:
    lines = [
        line
        for page in WRITTEN
        for block in pages.blocks(pages.text_of(page), "sh")
        for line in block.replace("\\\n", " ").splitlines()
    ]
    started = [re.sub(r"^pip install -e \. && ", "", line) for line in lines]
    return sorted({line for line in started if line.startswith("crawlcw ")})


@pytest.mark.parametrize("line", command_lines())
def test_every_command_line_can_be_given(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "orders.csv").touch()
    _, name, *arguments = shlex.split(line, comments=True)

    with COMMANDS[name].make_context(name, arguments):
        pass  # parsed, but not run


@pytest.mark.parametrize("page", WRITTEN, ids=relative)
def test_every_command_that_is_named_exists(page):
    named = set(re.findall(r"`crawlcw ([a-z-]+)", pages.text_of(page)))

    assert named <= set(COMMANDS)


def test_every_reason_that_a_command_chooses_exists():
    helps = [COMMANDS[name].get_help(click.Context(COMMANDS[name])) for name in COMMANDS]
    texts = [*helps, *(pages.text_of(page) for page in WRITTEN)]
    named = {reason for text in texts for reason in re.findall(r"--reason ([a-z][\w-]*)", text)}

    assert {"http-status", "timeout-read", "parse-error"} <= named <= set(Reason)


@pytest.mark.parametrize("page", WRITTEN, ids=relative)
def test_every_setting_that_is_set_exists(page):
    text = pages.text_of(page)
    named = {*re.findall(r"-s ([a-z_]+)=", text), *re.findall(r"CRAWLCW_([A-Z_]+)=", text)}

    known = {field.name for field in fields(Settings)} | {"name", "ledger"}
    assert {name.lower() for name in named} <= known


# Tables and figures


def test_the_page_about_the_installation_has_every_extra_of_users():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"]) - {"docs", "ports", "test"}
    table = pages.rows(pages.section(guide("installation"), "Extras"))

    commands = {re.sub(r" s3fs", "", row[0]) for row in table}
    assert commands == {f"`pip install 'crawlcw[{name}]'`" for name in extras}


def test_the_state_diagram_is_drawn_from_the_table():
    assert pages.block(guide("guarantees"), "mermaid", "stateDiagram") == diagram() + "\n"


def test_the_table_of_settings_has_every_setting_as_it_is():
    table = ["| setting | default | |", "|---|---|---|"]
    table += [f"| `{name}` | {field.shown()} | {field.doc} |" for name, field in described()]

    assert "\n".join(table) + "\n\n" in guide("settings")


def test_the_settings_of_a_use_case_are_as_they_are():
    policy = {f.name: vars(Policy)[f.name] for f in fields(Policy)}
    table = [[f"`{name}`", field.shown(), field.doc] for name, field in policy.items()]

    assert pages.rows(pages.section(guide("tracking"), "Settings")) == table


def test_the_retried_statuses_are_those_of_the_page():
    assert "408, 425, 429, 500, 502-504 and 520-526" in " ".join(guide("guarantees").split())
    assert {408, 425, 429, 500, *range(502, 505), *range(520, 527)} == RETRY_STATUSES


def test_the_limits_are_those_that_the_page_says():
    names: dict = {}
    exec(pages.block(guide("politeness"), "python", "limits = {"), names)

    limits = Limits(names["Prices"].limits)
    assert limits.of("shop.example.com") == Limit(concurrency=1, delay="2s")
    assert limits.of("shop.example.com:8443") == Limit(concurrency=1, delay="2s")
    assert limits.of("shop.example.com:8080") == Limit(concurrency=4)
    assert limits.of("www.example.org") == Limit(delay="500ms")
    assert limits.of("example.org") == Limit(concurrency=2)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_the_options_that_the_page_says(name):
    described_ = pages.section(guide("commands"), name)
    first_cells = " ".join(row[0] for row in pages.rows(described_) if row[0].startswith("`-"))
    said = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", first_cells))

    assert described_, "the command has no section"
    assert said == options(COMMANDS[name]) - COMMON


def test_the_settings_that_running_crawls_follow_are_those_of_the_page_and_of_the_help():
    for said in (pages.section(guide("commands"), "set"), COMMANDS["set"].help):
        assert [name for name in ADJUSTABLE if name not in said] == []


def test_the_page_has_every_command_in_its_table():
    table = pages.rows(guide("commands").partition("Three options")[0])

    named = {name for row in table for name in re.findall(r"\[`([a-z-]+)`\]", row[0])}
    assert named == set(COMMANDS)


def test_the_exit_codes_are_those_of_the_code_and_of_the_help():
    said = {int(row[0]) for row in pages.rows(pages.section(guide("commands"), "Exit codes"))}

    codes = {value for value in vars(exit_codes).values() if isinstance(value, int)}
    assert said == codes | {124}
    assert said == {int(code) for code in re.findall(r"^ +(\d+)  ", cli.epilog, re.MULTILINE)}


def test_the_oldest_server_is_that_of_the_ledger():
    from crawlcw.ledger.mongo import OLDEST_SERVER

    assert "MongoDB {}.{} or later".format(*OLDEST_SERVER) in guide("deploying")


def test_the_graces_are_those_of_the_defaults():
    said = guide("deploying")
    work = next(option for option in COMMANDS["work"].params if option.name == "grace")

    assert f"`grace` ({Settings().grace.total_seconds():.0f} s; `work`: `--grace`, 10 s)" in said
    assert work.default == "10s"


# Output of the commands


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which `crawlcw demo` ran."""
    folder = tmp_path_factory.mktemp("demo")
    crawlcw("demo", "--quiet", folder=folder)
    return folder


def in_demo(folder: Path, *arguments: str) -> str:
    """Return the output of a command on the demo's ledger."""
    run = invoke(*arguments, "--ledger", f"sqlite:///{folder}/.crawlcw/demo.db")
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_the_tutorial_shows_the_numbers_of_the_demo(demo):
    printed = in_demo(demo, "stats", "bookshop").splitlines()
    shown = pages.block(guide("tutorial"), "", " bookshop").splitlines()

    lines, first = ([line.split() for line in each if line.strip()] for each in (printed, shown))
    assert lines[: len(first)] == first


@pytest.mark.parametrize("command", ["stats", "hosts", "doctor"])
def test_the_json_of_a_command_has_the_members_that_the_page_names(command, demo):
    printed = in_demo(demo, command, "bookshop", "--json")
    said = pages.section(guide("commands"), command)

    members = set(json.loads(printed.splitlines()[0]))
    counts = {status.name.lower() for status in Status} if command == "hosts" else set()
    assert {each for each in members if f"`{each}`" not in said} - counts <= {"total"}


async def test_the_test_of_the_page_about_tests_passes(tmp_path):
    names: dict = {}
    exec(pages.block(guide("testing"), "python", "is_given_up"), names)

    await names["test_a_page_that_is_gone_is_given_up"](tmp_path)


BOOKSHOP = {
    "https://books.toscrape.com/": """<title>All books</title>
        <article class="product_pod"><h3><a href="/catalogue/a" title="A">A</a></h3>
        <p class="price_color">£2.50</p></article><li class="next"><a href="/page-2">next</a>""",
    "https://books.toscrape.com/page-2": """<title>Page 2</title>
        <article class="product_pod"><h3><a href="/catalogue/b" title="B">B</a></h3>
        <p class="price_color">£0.00</p></article>""",
    "https://books.toscrape.com/catalogue/a": '<h1>A</h1><p class="price_color">£2.50</p>',
    "https://books.toscrape.com/catalogue/b": '<h1>B</h1><p class="price_color">£0.00</p>',
    "https://books.toscrape.com/catalogue/category/books/travel_2/index.html": "<h1>Travel</h1>",
}


@pytest.mark.parametrize(
    ("page", "page_count", "item_count"),
    [
        ("spiders", 4, 2),
        ("requests", 5, 3),
        ("responses", 1, 1),
        ("items", 1, 1),
        ("state", 2, 0),
        ("layers", 1, 1),
    ],
)
async def test_the_first_spider_of_a_page_about_spiders_crawls(
    page, page_count, item_count, tmp_path
):
    names: dict = {"__name__": page}
    exec(pages.blocks(guide(page), "python")[0], names)
    spider_class = next(
        value
        for value in names.values()
        if inspect.isclass(value) and issubclass(value, Spider) and value is not Spider
    )

    report = await run_spider(
        spider_class(),
        ledger=f"sqlite:///{tmp_path}/x.db",
        downloader=ReplayDownloader(BOOKSHOP),
    )

    assert (report.pages, report.items, report.failures) == (page_count, item_count, {})


async def test_the_spider_of_the_page_for_users_of_crawlee_crawls(tmp_path):
    names: dict = {}
    exec(pages.block(guide("crawlee"), "python", "class Shop"), names)
    site = {
        "https://shop.example/": '<a class="detail" href="/1">one</a>',
        "https://shop.example/1": "<title>One</title>",
    }

    report = await run_spider(
        names["Shop"](), ledger=f"sqlite:///{tmp_path}/x.db", downloader=ReplayDownloader(site)
    )

    assert (report.pages, report.items) == (2, 1)


async def test_the_orders_of_the_page_about_tracking_are_charged(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one: dict = {}
    exec(pages.block(guide("tracking"), "python", "charge_one_order"), one)
    worker: dict = {"__name__": "orders"}
    exec(pages.block(guide("tracking"), "python", "@orders.stage"), worker)
    orders: UseCase = worker["orders"]

    async def charge(data: dict) -> str:
        return f"{data['amount']} charged"

    await one["charge_one_order"](charge)
    async with Tracker.open("sqlite:///orders.db", "orders") as tracker:
        charged = await tracker.get("order-1")
    async with Tracker.open("sqlite:///others.db", orders) as tracker:
        await tracker.add("order-2")
        await Worker(tracker, drain=True).run()
        worked_on = await tracker.get("order-2")

    assert (charged.status, charged.data["receipt"]) == (Status.FINISHED, "3 charged")
    assert worked_on.results == {"charge": {"receipt": "receipt of order-2"}}


async def test_the_dispenser_of_the_page_about_workers_hands_out(tmp_path):
    names: dict = {}
    exec(pages.block(guide("workers"), "python", "Dispenser"), names)

    counts = await names["hand_out"](f"sqlite:///{tmp_path}/x.db")

    assert counts[Status.FINISHED] == 2


def test_the_requests_of_the_page_about_workers_are_answered_as_it_shows(tmp_path):
    sent = re.findall(
        r"curl -s localhost:8700(/\w+) .*?-d '(.*?)'", guide("workers"), flags=re.DOTALL
    )
    shown = json.loads(pages.block(guide("workers"), "", '{"tasks"'))

    serve = [sys.executable, "-m", "crawlcw", "serve", "orders", "--port", "0"]
    with subprocess.Popen(
        [*serve, "--ledger", f"sqlite:///{tmp_path}/x.db"], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            address = re.search(r"http://\S+", server.stdout.readline())[0]
            answers = {path: posted(address + path, body) for path, body in sent}
        finally:
            server.terminate()

    assert list(answers) == ["/create_task", "/claim_task", "/end_task"]
    (held,), (as_shown,) = answers["/claim_task"]["tasks"], shown["tasks"]
    assert held.keys() == as_shown.keys()
    assert {**held, "expires_at": None} == {**as_shown, "expires_at": None}


def posted(url: str, body: str) -> dict:
    request = urllib.request.Request(
        url, data=body.encode(), headers={"Content-Type": "application/json"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=10) as answer:
        return json.load(answer)


def test_the_addresses_of_the_server_are_those_of_the_page():
    from crawlcw.server.operations import OPERATIONS

    said = {row[0] for row in pages.rows(guide("workers")) if row[0].startswith("`")}

    assert said == {f"`{each.method} {each.path}`" for each in OPERATIONS}
