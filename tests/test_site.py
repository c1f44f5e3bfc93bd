"""The documentation site: its pictures are true, and its pages work, alone and for all."""

import functools
import http.server
import re
import subprocess
import sys
import threading
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import architecture_drawing, needed, pages, pictures, state_drawing
from tests.support.pages import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

AXE = ROOT / "tests" / "support" / "axe" / "axe.min.js"
#: A page of each kind: prose, code and tables, pictures, a program, a diagram, signatures.
PAGES = (
    *("", "installation/", "settings/", "examples/", "examples/login.py/", "guarantees/"),
    *("architecture/", "api/", "api-responses/"),
)


# Pictures


def lines(screen: str) -> Counter[str]:
    """Return the lines of a screen without numbers and times, in any order, as pages differ."""
    text = re.sub(r"━+[╸╺]?━*|━*[╸╺]?━+", "bar", screen)
    # Redirects are counted from the first one on, and a pace is estimated after some pages.
    text = re.sub(r"  redirects [\d,]+$|eta \S.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"[\d,.]+", "0", text)
    return Counter(words for line in text.splitlines() if (words := " ".join(line.split())))


def test_the_commands_print_what_the_pictures_of_the_terminal_show(tmp_path: Path):
    # It takes ten seconds, and is about the documentation site alone.
    needed.module("material", extra="docs")
    for name, screen in pictures.screens(tmp_path).items():
        kept = (pictures.FOLDER / f"{name}.svg").read_text(encoding="utf-8")
        taken = pictures.drawn(screen, title="now")

        assert lines(pictures.texts(taken)) == lines(pictures.texts(kept)), (
            "run `python -m tests.support.pictures`"
        )


def test_crawled_text_in_a_picture_is_text():
    odd = '<script>alert("1")</script> {unique_id} &lt; \x1b[1mbold\x1b[0m 文'

    svg = pictures.drawn(odd, title="<b> & {title}")

    root = ET.fromstring(svg)
    shown = pictures.texts(svg).replace("\xa0", " ")
    assert shown.rstrip() == '<script>alert("1")</script> {unique_id} &lt; bold 文'
    assert {each.tag.rpartition("}")[2] for each in root.iter()} <= {
        *("svg", "title", "desc", "style", "defs", "clipPath", "rect", "g", "text", "circle")
    }
    assert root.findtext("{*}title") == "<b> & {title}"


def test_a_picture_is_small_and_loads_nothing():
    named = {file for picture in pictures.PICTURES for file in picture.files}

    assert {file.name for file in pictures.FOLDER.iterdir()} == named
    for file in pictures.FOLDER.iterdir():
        assert file.stat().st_size < 100_000, file.name
        if file.suffix == ".svg":
            text = file.read_text(encoding="utf-8")
            assert re.findall(r"@import|url\((?!#)|href|src=", text) == [], file.name


@pytest.mark.parametrize("page", ["guarantees", "politeness"])
def test_a_drawing_has_every_state_and_transition_of_its_diagram(page: str):
    diagram = pages.block(pages.guide(page), "mermaid", "stateDiagram")
    drawing = ET.fromstring(state_drawing.svg(diagram, title="a title"))

    texts = Counter(each.text for each in drawing.iter("text"))
    events = Counter(re.findall(r"--> \S+: (.*)", diagram))
    states = Counter(re.findall(r"^ *\w+: (.*)$", diagram, re.MULTILINE))
    assert texts == events + states
    arrows = [each for each in drawing.iter("path") if "marker-end" in each.attrib]
    assert len(arrows) == len(set(re.findall(r"\S+ --> [^\s:]+", diagram)))


def test_the_drawing_of_the_architecture_has_every_box_and_arrow_of_its_flowchart():
    flowchart = pages.block(pages.text_of(pages.ARCHITECTURE), "mermaid", "flowchart")
    drawing = ET.fromstring(architecture_drawing.svg(flowchart, title="a title"))

    texts = sorted(each.text or "" for each in drawing.iter("text"))
    labels = re.findall(r'\["(.*?)"\]|\|"?(.*?)"?\|', flowchart)
    assert texts == sorted(line for pair in labels for line in "".join(pair).split("<br>"))
    arrows = [each for each in drawing.iter("path") if "marker-end" in each.attrib]
    assert len(arrows) == flowchart.count("-->")
    boxes = [each for each in drawing.iter("rect") if each.attrib["class"] == "box"]
    assert len(boxes) == flowchart.count('["') - flowchart.count("subgraph")


# Pages


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the built site, on this machine."""
    needed.module("material", extra="docs")
    folder = tmp_path_factory.mktemp("site")
    build = ["-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder / "crawlcw")]
    subprocess.run([sys.executable, *build], cwd=ROOT, check=True)
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}/crawlcw/"
        server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def readers() -> Iterator[dict[str, "BrowserContext"]]:
    """A wide light window, and a narrow dark one."""
    api = needed.module("playwright.sync_api", extra="browser")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=needed.chromium(), args=["--no-sandbox"]
        )
        yield {
            scheme: browser.new_context(
                color_scheme=scheme,
                viewport={"width": width, "height": 844},
                permissions=["clipboard-read", "clipboard-write"],
                reduced_motion="reduce",
            )
            for scheme, width in (("light", 1280), ("dark", 390))
        }
        browser.close()


@pytest.fixture(params=["light", pytest.param("dark", marks=pytest.mark.thorough)])
def page(readers: dict[str, "BrowserContext"], request: pytest.FixtureRequest) -> Iterator["Page"]:
    """A page of a reader; errors in it fail the test, requests to other hosts among them."""
    opened = readers[request.param].new_page()
    wrong: list[str] = []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    opened.on("request", lambda sent: wrong.append(sent.url) if _is_foreign(sent.url) else None)
    yield opened
    opened.close()
    assert wrong == []


def _is_foreign(url: str) -> bool:
    return not url.startswith(("http://127.0.0.1:", "data:", "blob:"))


def test_every_kind_of_page_is_accessible_fits_and_loads_nothing_from_others(
    site: str, page: "Page"
):
    for path in PAGES:
        page.goto(site + path, wait_until="networkidle")
        assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0, path
        # Nothing that is shown has not been loaded.
        assert (
            page.evaluate(
                "[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
            )
            == []
        ), path
        page.evaluate(AXE.read_text())
        found = page.evaluate("axe.run({resultTypes: ['violations']})")

        assert [
            (path, each["id"], [node["html"] for node in each["nodes"]])
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
        ] == []


def test_a_click_copies_code_and_a_word_finds_a_page(site: str, page: "Page"):
    page.goto(f"{site}tutorial/")
    page.locator("[data-md-type=copy]").first.click()
    page.locator(".md-dialog--active").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == "pip install crawlcw"

    page.keyboard.press("/")
    page.keyboard.type("stay logged in")
    page.locator(".md-search-result__link").first.click()
    page.wait_for_url(re.compile(f"^{site}"))
    assert page.locator("h1").first.inner_text().startswith("Log in")


#: A question of a reader, and the page that answers it.
QUESTIONS = {
    "pagination": "requests/",
    "plugin": "extending/",
    "user agent": "limits/",
    "install": "installation/",
    "images": "files/",
    "markdown": "site/",
    "proxy": "proxies/",
    "duplicate": "items/",
    "export": "results/",
    "speed": "performance/",
}


def test_the_first_hit_of_a_question_is_the_page_that_answers_it(site: str, page: "Page"):
    hits = {}
    for question in QUESTIONS:
        page.goto(f"{site}tutorial/?q={question}")
        hit = page.locator(".md-search-result__link").first
        hits[question] = hit.evaluate("link => link.pathname").removeprefix("/crawlcw/")

    assert hits == QUESTIONS


def test_the_first_page_shows_a_picture_before_the_reader_scrolls(site: str, page: "Page"):
    page.goto(site, wait_until="networkidle")

    picture = page.locator("article img").first.bounding_box()
    assert picture["y"] + picture["height"] <= page.evaluate("window.innerHeight") * 1.1
    assert "pip install crawlcw" in page.locator("article pre").first.inner_text()
    assert "pytest" not in page.locator("article").inner_text()
