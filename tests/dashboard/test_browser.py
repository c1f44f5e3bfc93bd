"""The dashboard in a real Chromium, while a crawl of an odd site runs in a process of its own."""

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.blame.test_ends import Site
from tests.support import needed
from tests.support.odd_shop import ODD, PAGES, SPIDER
from tests.support.servers import ServerProcess

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page
_api = needed.module("playwright.sync_api", extra="browser")
expect, sync_playwright = _api.expect, _api.sync_playwright

AXE = Path(__file__).parents[1] / "support" / "axe" / "axe.min.js"
#: Milliseconds: a machine may be slow.
PATIENCE = 60_000
expect.set_options(timeout=PATIENCE)

VIEWS = ("start", "overview", "tasks", "items", "task", "confirmation", "settings")
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}


@pytest.fixture(scope="module")
def chromium() -> Iterator["Browser"]:
    """The system's browser."""
    place = needed.chromium()
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=place, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def screenshots(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("CRAWLCW_TEST_SCREENSHOTS", tmp_path / "screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@dataclass(frozen=True, slots=True)
class Crawl:
    """A running crawl, its site, and its dashboard."""

    site: str
    address: str

    def tell(self, what: str) -> None:
        """Request `/open` or `/mend` of the site."""
        with urllib.request.urlopen(f"{self.site}/{what}") as response:
            assert response.status == 200


@pytest.fixture
def crawl(ledger_url: str, tmp_path: Path, processes: ExitStack) -> Crawl:
    """A crawl that runs until a request for `/open`."""

    def started(*arguments: str, **options: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, *arguments], text=True, **options)
        processes.callback(process.communicate)
        processes.callback(process.kill)
        return process

    site = started("-m", "tests.support.odd_shop", stdout=subprocess.PIPE)
    assert site.stdout is not None
    port = site.stdout.readline().strip()
    spider = tmp_path / "shop.py"
    spider.write_text(SPIDER.format(port=port, pages=PAGES))
    run = ["-m", "crawlcw", "run", str(spider), "--ledger", ledger_url]
    started(*run, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    # After this request, the page with the links is in the ledger.
    while site.stdout.readline() != "/missing\n":
        assert site.poll() is None
    server = ServerProcess(
        processes, ledger_url, "--port", "0", use_case="shop", command="dashboard"
    )
    assert "the dashboard is at" in server.ready()
    return Crawl(f"http://127.0.0.1:{port}", server.address)


@pytest.fixture
def page(chromium: "Browser") -> Iterator["Page"]:
    """A new browser page; errors and dialogs in it fail the test."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    wrong: list[str] = []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    opened.on("dialog", lambda shown: wrong.append(f"a dialog: {shown.message}"))
    yield opened
    context.close()
    assert wrong == []


def number(page: "Page", status: str) -> Any:
    """Return the element of the overview with the number of tasks of a status."""
    return page.locator(".counts li").filter(has_text=status).locator(".number")


def search(page: "Page", text: str) -> None:
    page.get_by_label("URL or key").fill(text)
    page.get_by_role("button", name="Search").click()
    expect(page.locator(".foot p")).to_contain_text("that is all")


def confirmed(page: "Page", name: re.Pattern[str]) -> None:
    page.locator("dialog").get_by_role("button", name=name).click()


@pytest.mark.thorough
@pytest.mark.representative("sqlite")
def test_a_crawl_is_watched_searched_and_steered(crawl: Crawl, page: "Page"):
    page.goto(crawl.address)
    expect(page.get_by_role("heading", name="shop")).to_be_visible()
    expect(page.get_by_role("status").filter(has_text="live")).to_be_visible()
    expect(number(page, "processing")).to_have_text(str(PAGES))
    expect(page.locator(".headline")).to_contain_text("1 worker at work")

    # The page's name leads to the list of crawls, and the list back.
    page.get_by_role("link", name="crawlcw").click()
    expect(page.locator(".headline")).to_contain_text("1 crawl · 1 running")
    expect(page.locator(".crawl-list li")).to_contain_text("1 worker")
    page.get_by_role("link", name="shop").click()
    expect(number(page, "processing")).to_have_text(str(PAGES))

    # Find the failed page, and read its attempts.
    page.get_by_role("link", name="Tasks").click()
    search(page, "/missing")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.locator("a.url").click()
    expect(page.get_by_text("HTTP 404")).to_be_visible()
    expect(page.get_by_role("heading", name="Linked from")).to_be_visible()

    # Retry it: after the confirmation, the running crawl fetches it again.
    crawl.tell("mend")
    page.get_by_role("button", name="Retry").click()
    page.locator("dialog").get_by_role("button", name="Cancel").click()
    expect(page.locator(".headline .badge")).to_contain_text("ignored")
    page.get_by_role("button", name="Retry").click()
    confirmed(page, re.compile("Retry 1 task"))
    expect(page.locator(".headline .badge")).to_contain_text("finished")
    expect(page.locator("pre").filter(has_text="back again")).to_be_visible()

    # The counts update without a reload.
    page.get_by_role("link", name="Overview").click()
    others = 1 + len(ODD)  # the home page and the odd pages
    expect(number(page, "finished")).to_have_text(str(others + 1))  # with the retried page
    crawl.tell("open")
    expect(number(page, "processing")).to_have_text("0")
    expect(number(page, "finished")).to_have_text(str(others + 1 + PAGES))
    assert page.evaluate("window.hacked") is None


SECONDS_LONG = """
from crawlcw import Settings, Spider

class Numbers(Spider):
    name = "numbers"
    start_urls = [{url!r}]

    def parse(self, response):
        yield {{"big": 9223372036854775807, "some": [1.0, 1e-7, -0.0, None]}}
        yield {{"text": '{{[,:"\\\\ ', "none": [], "deep": [{{}}, {{"a": {{"b": True}}}}]}}
"""
#: The longest row of pixels in the colour of a chart's line, as a share of the chart's width.
LONGEST_STEP = """([number, colour]) => {
  const canvas = document.querySelectorAll("figure.chart canvas")[number];
  if (!canvas) return 0;  // the chart is not there yet
  const probe = document.createElement("canvas").getContext("2d");
  probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(colour).trim();
  probe.fillRect(0, 0, 1, 1);
  const [r, g, b] = probe.getImageData(0, 0, 1, 1).data;
  const found = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  let longest = 0;
  let length = 0;
  for (let n = 0; n < found.length; n += 4) {
    const same = found[n] === r && found[n + 1] === g && found[n + 2] === b && found[n + 3] === 255;
    length = same && (n / 4) % canvas.width ? length + 1 : Number(same);
    longest = Math.max(longest, length);
  }
  return longest / canvas.width;
}"""


@pytest.mark.thorough
@pytest.mark.representative("sqlite")
def test_a_crawl_of_seconds_is_drawn_and_its_numbers_are_those_recorded(
    ledger_url: str, tmp_path: Path, processes: ExitStack, page: "Page", screenshots: Path
):
    site = processes.enter_context(Site())
    spider = tmp_path / "numbers.py"
    spider.write_text(SECONDS_LONG.format(url=site.url))
    run = [sys.executable, "-m", "crawlcw", "run", str(spider), "--ledger", ledger_url, "-q"]
    subprocess.run(run, check=True)
    server = ServerProcess(
        processes, ledger_url, "--port", "0", use_case="numbers", command="dashboard"
    )
    assert "the dashboard is at" in server.ready()

    page.goto(f"{server.address}/#/numbers")
    expect(page.locator("figure.chart .blank").first).to_be_hidden()
    # The charts begin with the crawl, and draw its second as a step.
    for chart, colour in ((0, "--finished"), (1, "--processing")):
        page.wait_for_function(f"(asked) => ({LONGEST_STEP})(asked) > 0.05", arg=[chart, colour])
    page.screenshot(path=screenshots / "seconds.png", full_page=True)

    page.get_by_role("link", name="Tasks").click()
    search(page, "/")
    page.locator("a.url").click()
    expect(page.locator("pre")).to_have_count(2)
    numbers, texts = page.locator("pre").all_inner_texts()
    item = {"big": 9223372036854775807, "some": [1.0, 1e-7, -0.0, None]}
    assert numbers == json.dumps(item, indent=2)
    item = {"text": '{[,:"\\ ', "none": [], "deep": [{}, {"a": {"b": True}}]}
    assert texts == json.dumps(item, indent=2)


@pytest.mark.thorough
def test_crawled_markup_does_nothing(crawl: Crawl, page: "Page"):
    page.goto(f"{crawl.address}/#/shop/tasks")
    search(page, "odd")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(len({link.partition("#")[0] for link in ODD}))

    page.locator("a.url").filter(has_text="script").first.click()
    expect(page.locator("pre").first).to_contain_text("<script>window.hacked = 1</script>")
    expect(page.locator("pre").first).to_contain_text("\\u202e")
    outward = page.locator("h1 a")
    assert outward.get_attribute("rel") == "noopener noreferrer"
    assert outward.get_attribute("target") == "_blank"

    page.goto(f"{crawl.address}/#/shop/tasks?text=broken")
    expect(page.locator("a.url")).to_have_count(1)
    page.locator("a.url").click()
    page.locator("summary").click()
    expect(page.locator("details pre")).to_contain_text("ValueError: no price: <script>")

    page.get_by_role("link", name="Items").click()
    expect(page.locator(".foot p")).to_have_text(f"{1 + len(ODD)} items, that is all")
    odd_item = page.locator("pre").filter(has_text="window.hacked")
    expect(odd_item.first).to_contain_text("<script>window.hacked = 1</script>")
    odd_page = page.locator("section").filter(has=odd_item.first).locator("h2 a").last
    url = odd_page.inner_text()
    odd_page.click()
    expect(page.locator("h1")).to_have_text(url)

    for evil in ("/#/<img src=x onerror=alert(1)>", "/#/__proto__", "/#/shop/constructor"):
        page.goto(crawl.address + evil)
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img:not([alt=''])").count() == 0
    assert page.locator("script:not([src])").count() == 0


@pytest.mark.thorough
def test_many_are_chosen_and_the_crawl_is_paused_set_and_stopped(crawl: Crawl, page: "Page"):
    page.goto(f"{crawl.address}/#/shop")
    page.get_by_role("button", name="Pause").click()
    confirmed(page, re.compile("Pause"))
    expect(page.locator(".headline")).to_contain_text("paused since")

    page.goto(f"{crawl.address}/#/shop/tasks?status=ignored,finished")
    page.get_by_label("Select all that are shown").check()
    page.get_by_role("button", name="Reset").click()
    confirmed(page, re.compile("Reset"))
    expect(page.locator(".toast").last).to_contain_text("todo again")
    expect(page.locator("tbody")).to_contain_text("No task matches")

    page.goto(f"{crawl.address}/#/shop/tasks?status=todo")
    page.get_by_role("button", name="Ignore").click()
    confirmed(page, re.compile("Ignore"))
    expect(page.locator("tbody")).to_contain_text("No task matches")
    page.goto(f"{crawl.address}/#/shop")
    page.get_by_role("button", name="Resume").click()
    confirmed(page, re.compile("Resume"))
    expect(page.get_by_role("button", name="Pause")).to_be_visible()

    page.get_by_role("button", name="Set").click()
    page.get_by_label("delay").fill("1s")
    confirmed(page, re.compile("Set"))
    expect(page.get_by_text("Changed settings: delay=1s")).to_be_visible()

    crawl.tell("open")
    page.get_by_role("button", name="Stop").click()
    confirmed(page, re.compile("Stop"))
    expect(page.get_by_text("No worker is at work")).to_be_visible()
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)


#: The elements that hide a part of their width and draw no shadow at that side.
CUT = """() => [...document.querySelectorAll("main *, dialog *")]
  .filter((e) => e.clientWidth && e.scrollWidth > e.clientWidth + 1)
  .filter((e) => !e.classList.contains("unseen"))
  .filter((e) => getComputedStyle(e).overflowX !== "visible")
  .filter((e) => !getComputedStyle(e).backgroundImage.includes("gradient"))
  .map((e) => e.outerHTML.slice(0, 200))"""


@pytest.mark.thorough
def test_it_is_accessible_and_fits_on_a_phone_in_the_dark(
    crawl: Crawl, chromium: "Browser", screenshots: Path
):
    for scheme in ("light", "dark"):
        for device, (width, height) in SIZES.items():
            context = chromium.new_context(
                color_scheme=scheme,
                viewport={"width": width, "height": height},
                reduced_motion="reduce",
            )
            page = context.new_page()
            for view in VIEWS:
                _open(page, crawl, view)
                page.screenshot(path=screenshots / f"{view}-{device}-{scheme}.png", full_page=True)
                assert faults(page) == [], (view, device, scheme)
                overflow = "document.documentElement.scrollWidth - window.innerWidth"
                assert page.evaluate(overflow) <= 0, (view, device)
                assert page.evaluate(CUT) == [], (view, device)
            context.close()


def _open(page: "Page", crawl: Crawl, view: str) -> None:
    match view:
        case "start":
            page.goto(f"{crawl.address}/#/")
            expect(page.locator(".crawl-list li")).to_be_visible()
        case "overview":
            page.goto(f"{crawl.address}/#/shop")
            expect(page.locator(".failures li").first).to_be_visible()
            expect(page.locator("canvas").first).to_be_visible()
        case "tasks":
            page.goto(f"{crawl.address}/#/shop/tasks")
            expect(page.locator(".foot p")).to_contain_text("that is all")
        case "items":
            page.goto(f"{crawl.address}/#/shop/items")
            expect(page.locator(".foot p")).to_contain_text("that is all")
        case "task":
            page.goto(f"{crawl.address}/#/shop/tasks?text=broken")
            expect(page.locator("a.url")).to_have_count(1)
            page.locator("a.url").click()
            page.locator("summary").click()
            expect(page.locator("details pre")).to_be_visible()
        case "settings":
            page.goto(f"{crawl.address}/#/shop")
            page.reload()  # without the dialog
            page.get_by_role("button", name="Set").click()
            page.get_by_label("delay").fill("soon")
            confirmed(page, re.compile("Set"))
            expect(page.get_by_role("alert")).to_contain_text("delay")
        case _:
            page.get_by_role("button", name="Reset").click()
            expect(page.locator("dialog")).to_be_visible()


def faults(page: "Page") -> list[str]:
    """Return the serious and critical findings of axe-core."""
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run()")
    return [
        f"{each['id']}: {node['html']} {node['failureSummary']}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


@pytest.mark.thorough
def test_the_token_is_asked_for_and_never_stays_in_the_address(
    crawl: Crawl, chromium: "Browser", ledger_url: str, processes: ExitStack, screenshots: Path
):
    secured = ServerProcess(
        processes, ledger_url, "--port", "0",
        use_case="shop", command="dashboard", CRAWLCW_TOKEN="s3cret",
    )  # fmt: skip
    secured.ready()
    page = chromium.new_page()
    page.goto(secured.address)
    page.get_by_label("Token of this dashboard").fill("wrong")
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_text("That was not the token")).to_be_visible()
    page.screenshot(path=screenshots / "token.png")
    assert faults(page) == []
    page.get_by_label("Token of this dashboard").fill("s3cret")
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_role("heading", name="shop")).to_be_visible()
    page.close()

    page = chromium.new_page()
    page.goto(f"{secured.address}/#token=s3cret")
    expect(page.get_by_role("heading", name="shop")).to_be_visible()
    assert "s3cret" not in page.url
    page.close()
