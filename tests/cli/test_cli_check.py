"""`crawlcw check`: findings in Scrapy spiders, and none in ported ones."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from crawlcw.api.scrapy_words import SETTINGS
from crawlcw.api.settings import described
from crawlcw.checking import requests, scrapy_names, state
from crawlcw.guide.pages import page
from tests.support.commands import invoke

pytestmark = pytest.mark.quick


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "spiders").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def checked(source: str, name: str = "spiders/old.py") -> dict[int, list[str]]:
    """Return the findings of `check` in a file by line; lines count from 1."""
    Path(name).write_text(source)
    run = invoke("check", name)
    assert run.returncode == 2, run.stdout + run.stderr
    found: dict[int, list[str]] = {}
    heading, *findings = run.stdout.partition("\n\n")[0].splitlines()
    assert heading == name
    for finding in findings:
        number, message = finding.split(maxsplit=1)
        found.setdefault(int(number), []).append(message)
    return found


def is_clean(body: str, imports: str = "Spider") -> None:
    """Check that a spider with *body* has no finding."""
    lines = "".join(f"    {line}\n" if line else "\n" for line in body.splitlines())
    source = f"from crawlcw import {imports}\n\nclass Port(Spider):\n    name = 'port'\n"
    Path("port.py").write_text(f"{source}    start_urls = ['https://example.com/']\n{lines}")
    run = invoke("check", "port.py")
    assert (run.returncode, run.stdout) == (0, "port: no mistake found\n")


QUOTES = """\
import scrapy

class Quotes(scrapy.Spider):
    name = "quotes"
    allowed_domains = ["example.com"]
    custom_settings = {
        "DOWNLOAD_DELAY": 1,
        "SOMETHING_ELSE": 2,
    }

    def start_requests(self):
        yield scrapy.Request("https://example.com/", callback=self.parse, dont_filter=True,
                             meta={"proxy": "http://p", "page": 1}, errback=self.failed)

    def parse(self, response):
        for quote in response.css("div.quote"):
            yield {
                "text": quote.css("span.text::text").extract_first(),
                "tags": quote.css("a.tag::text").getall(),
                "link": quote.css("a")[0].attrib["href"],
                "page": response.meta["page"],
            }
        yield response.follow(response.css("li.next a::attr(href)").get(), cb_kwargs={"n": 1},
                              callback=self.parse_next)

    def parse_next(self, response, n):
        self.crawler.stats.inc_value("next")
        self.state["next"] = n
        self.log("next")

    def failed(self, failure):
        self.logger.error(failure.value.response.status)

    def closed(self, reason):
        print(reason)
"""


def test_a_setting_whose_value_is_the_default_here_needs_nothing():
    source = QUOTES.replace('"SOMETHING_ELSE": 2', '"HTTPCACHE_ENABLED": False')

    assert checked(source)[8] == [
        "HTTPCACHE_ENABLED -> nothing: False is the default here (guide settings)"
    ]


def test_a_scrapy_spider_is_told_each_place_with_the_word_and_the_section():
    asked = "(guide requests)"
    failed = '(guide spiders, "Failures")'
    start = "async def start(self)"

    assert checked(QUOTES) == {
        1: ["import of scrapy -> from crawlcw import Request, Spider (guide scrapy)"],
        5: ["allowed_domains -> allowed_hosts (guide spiders)"],
        6: ["custom_settings -> settings = Settings(...) (guide settings)"],
        7: ["DOWNLOAD_DELAY -> delay= (guide settings)"],
        8: ["SOMETHING_ELSE -> nothing: `crawlcw settings` lists all settings (guide settings)"],
        11: [f'start_requests -> {start} (guide spiders, "Start requests")'],
        12: [f"dont_filter=True, but allowed_hosts still apply to the request {asked}"],
        13: [
            f"Request(meta=...) -> context= {asked}",
            f"Request(meta=...): 'proxy' -> Request(proxy=) {asked}",
        ],
        21: [f"response.meta['page'] -> response.context['page'] {asked}"],
        23: [
            f"follow(cb_kwargs=...) -> context= {asked}",
        ],
        26: [
            ("def parse_next(): a callback gets only the response -> response.context['n'] "
            f"{asked}")
        ],
        27: ["self.crawler.stats -> self.state.add(key, n) (guide state)"],
        28: [
            ("self.state, which the ledger records with each page -> self.state.add(key, n) for "
            "counters (guide state)")
        ],
        29: ["self.log -> self.logger.info (guide spiders)"],
        31: [
            ("def failed(self, failure) -> def failed(self, request, error): error.reason, "
            f"error.response {failed}")
        ],
        32: [f"failure.value -> error.reason, error.response {failed}"],
        34: [
            ("def closed(self, reason) -> def closed(self, report): report.finish_reason "
            '(guide spiders, "Attributes and methods")')
        ],
    }  # fmt: skip


UNPORTED = {
    "rules": (
        """\
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule

class Shop(CrawlSpider):
    name = "shop"
    rules = (
        Rule(LinkExtractor(allow=r"/item/", restrict_xpaths="//main"), callback="parse_item"),
    )

    def parse_start_url(self, response):
        return []
""",
        {
            1: "import of scrapy.linkextractors.LinkExtractor -> Rule(allow=, deny=, restrict=)",
            2: "import of scrapy.spiders.CrawlSpider -> Spider with rules = [...]",
            7: "LinkExtractor(restrict_xpaths=...) -> restrict_xpath=",
            10: "parse_start_url -> parse(self, response)",
        },
    ),
    "loader": (
        """\
from itemloaders.processors import MapCompose, TakeFirst
from scrapy.loader import ItemLoader

class Books(scrapy.Spider):
    def parse(self, response):
        loader = ItemLoader(item={}, response=response)
        loader.add_css("title", "h1::text", MapCompose(str.strip))
        yield loader.load_item()
""",
        {
            2: "import of scrapy.loader.ItemLoader -> itemloaders.ItemLoader(item={}, ",
            6: "ItemLoader -> itemloaders.ItemLoader(item={}, selector=response.selector)",
        },
    ),
    "pipeline": (
        """\
from scrapy.exceptions import DropItem

class Prices:
    def open_spider(self, spider):
        self.seen = set()

    def process_item(self, item, spider):
        if not item["price"]:
            raise DropItem("no price")
        return item
""",
        {
            1: "import of scrapy.exceptions.DropItem -> crawlcw.DropItem",
            4: "Prices.open_spider() -> opened(self) of the spider",
            7: "Prices.process_item() -> item(self, item, response) of the spider",
        },
    ),
    "middleware": (
        """\
import scrapy

class Tokens:
    @classmethod
    def from_crawler(cls, crawler):
        return cls()

    def process_request(self, request, spider):
        request.headers["X-Token"] = "t"
""",
        {
            5: "Tokens.from_crawler() -> opened(self) of the spider",
            8: "Tokens.process_request() -> before_request(self, request)",
        },
    ),
    "items": (
        """\
import scrapy

class Book(scrapy.Item):
    title = scrapy.Field()
""",
        {3: "scrapy.Item -> a dict or a dataclass", 4: "scrapy.Field -> a field of a dataclass"},
    ),
}


@pytest.mark.parametrize("shape", UNPORTED)
def test_each_shape_of_a_scrapy_file_is_read_though_scrapy_may_be_missing(
    shape: str, monkeypatch: pytest.MonkeyPatch
):
    source, expected = UNPORTED[shape]
    # If `check` executed the file, it would print this.
    found = checked(source + "\nopen('executed', 'w')\n")

    for line, message in expected.items():
        assert any(each.startswith(message) for each in found[line]), found
    assert not Path("executed").exists()


def test_the_settings_of_a_scrapy_project_are_translated_with_all_of_its_folder():
    Path("project/spiders").mkdir(parents=True)
    Path("project/settings.py").write_text('BOT_NAME = "b"\nCONCURRENT_REQUESTS = 3\n')
    Path("project/items.py").write_text(UNPORTED["items"][0])
    Path("project/broken.py").write_text("def (\n")
    Path("project/spiders/quotes.py").write_text(QUOTES)

    run = invoke("check", "project")

    assert run.returncode == 2
    setting = "     2  CONCURRENT_REQUESTS -> concurrency= (guide settings)\n"
    assert re.search(rf"\n\nproject/settings\.py\n.*\n{re.escape(setting)}", run.stdout)
    assert "project/broken.py\n     -  invalid syntax" in run.stdout
    assert re.search(r"^project/items\.py\n.*\n +3  scrapy\.Item ", run.stdout, re.MULTILINE)
    assert "     5  allowed_domains" in run.stdout
    assert re.search(r"\n\n\d+ mistakes in 4 files\n$", run.stdout)


OWN_CLIENT = """\
def parse(self, response):
    found = json.loads(response.text)
    answer = requests_of(found)
    yield {"id": found.get("id"), "meta": answer.meta["depth"], "items": found["css"].get("a")}

def item(self, item, response):
    return {**item, "n": item.get("n")}
"""
PAGES_METAS = """\
def parse(self, response):
    yield {"title": response.meta["og:title"], "about": response.meta.get("description")}
    yield response.follow("/x", self.parse_more, context={"n": 1}, dont_filter=True)

def parse_more(self, response, **more):
    yield {"n": response.context["n"], "kind": response.headers["content-type"]}

def on_error(self, request, error):
    yield {"url": request.url, "context": request.context, "reason": error.reason}
"""
STATELESS = """\
def __init__(self, **arguments):
    super().__init__(**arguments)
    self.cache = {}
    self.known = set(["a"])
    self.times = 0

async def opened(self):
    self.file = open("/dev/null", "w")
    self.times += 1

def closed(self, report):
    self.file.close()
    self.cache.clear()

@property
def prefix(self):
    return "p"

def parse(self, response):
    self.last = response.url
    self.file.write(self.last)
    if self.cache is None:
        self.cache = {}
    self.state["pages"] = 1
    yield {"prefix": self.prefix, "known": "a" in self.known, "times": self.times}
"""
CLASSES = {
    "own client": (OWN_CLIENT, "Spider"),
    "metas": (PAGES_METAS, "Spider"),
    "stateless": (STATELESS, "Spider"),
    "own requests": (
        ("def parse(self, response):\n"
        "    yield {'sent': requests.Request('GET', response.url, params={'a': 1}).url}\n"
        "    yield {'rule': Rule('/', tags=1)}\n"),
        "Spider\nimport asyncio as requests\nfrom collections import Counter as Rule",
    ),
    "optional": (
        "def parse(self, response):\n    yield {}\n",
        "Spider\ntry:\n    import scrapy\nexcept ImportError:\n    scrapy = None",
    ),
    "rules": (
        ("rules = [Rule(restrict='li.next'), Rule(allow='/item/', callback='parse_item')]\n"
        "def parse_item(self, response):\n    yield {'title': response.css_first('h1').text()}\n"),
        "Rule, Spider",
    ),
}  # fmt: skip


@pytest.mark.parametrize("shape", CLASSES)
def test_a_port_that_runs_has_no_finding(shape: str):
    is_clean(*CLASSES[shape])


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("x = response.meta['depth']", "response.meta['depth'] -> nothing: each task has its"),
        ("x = response.follow_all(css='a')", "follow_all(css=...) -> response.follow_all('a')"),
        ("x = response.follow('/', self.nothing)", "Port has no callback 'nothing'"),
        ("x = response.follow('/', callback='nothing')", "Port has no callback 'nothing'"),
        ("self.number += 1", "parse() changes self.number, and a crash loses the change -> "),
        ("self.seen.add(response.url)", "parse() changes self.seen, and a crash loses the change"),
        ("self.data[response.url] = 1", "parse() changes self.data, and a crash loses the change"),
        ("self.shared.append(1)", "parse() changes self.shared, and a crash loses the change"),
        ("self.last, self.n = response.url, 1", "parse() changes self.last, and a crash"),
        ("self.count()", "count() changes self.counted, and a crash loses the change"),
    ],
)  # fmt: skip
def test_a_port_is_told_what_fails_or_is_lost(statement: str, message: str):
    found = checked(f"""\
from crawlcw import Request, Spider
class Port(Spider):
    name = "port"
    start_urls = ["https://example.com/"]
    shared = []
    number, last = 0, ""
    def __init__(self):
        self.seen, self.data, self.counted = set(), dict(), 0
        self.seen = set()
        self.data = {{}}
    def parse(self, response):
        {statement}
        yield {{"seen": response.url in self.seen}}
    def count(self):
        self.counted += 1
    def on_error(self, request, error):
        print(self.data, self.shared, self.number, self.last)
""")

    assert any(each.startswith(message) for said in found.values() for each in said), found
    assert len(found) == 1


def test_a_base_in_another_file_is_read_with_its_own_lines(folder: Path):
    Path("spiders/_base.py").write_text(
        "from crawlcw import Spider\n\nclass Base(Spider):\n"
        "    def parse(self, response):\n        yield {'url': response.ip_address}\n"
    )
    Path("spiders/own.py").write_text(
        "from _base import Base\n\nclass Own(Base):\n    name = 'own'\n"
        "    start_urls = ['https://example.com/']\n"
        "    def more(self, response):\n        yield response.follow('/', self.parse)\n"
    )

    run = invoke("check", "own")

    assert run.returncode == 2
    assert run.stdout.startswith("spiders/_base.py\n     5  response.ip_address -> nothing")
    assert run.stdout.endswith("\n\n1 mistake in 1 file\n")


def test_an_extra_that_is_missing_is_named_with_its_install_command(
    monkeypatch: pytest.MonkeyPatch,
):
    installed = importlib.util.find_spec
    missing = {"parsel", "playwright", "warcio", "python_socks", "opentelemetry"}
    monkeypatch.setattr(
        "crawlcw.checking.requests.find_spec",
        lambda name: None if name in missing else installed(name),
    )

    found = checked("""\
from crawlcw import Request, Settings, Spider
class Port(Spider):
    name = "port"
    start_urls = ["https://example.com/"]
    settings = Settings(
        keep_bodies=True,
        trace=True,
        proxies=["socks5://127.0.0.1:1080"],
    )
    def parse(self, response):
        yield {"title": response.xpath("//title/text()").get()}
        yield Request("https://example.com/2", browser=True)
""")

    extras = {
        line: re.search(r"pip install 'crawlcw\[(\w+)\]'", m[0])[1] for line, m in found.items()
    }  # type: ignore[index]
    assert extras == {6: "warc", 7: "otel", 8: "socks", 11: "xpath", 12: "browser"}


def test_what_crawlcw_does_not_have_is_told_at_its_import():
    found = checked("from crawlcw import CrawlSpider, Spider\n")

    (said,) = found[1]
    assert said.startswith("crawlcw has no CrawlSpider -> Spider with rules = [...] (guide ")


def test_a_file_that_can_be_loaded_is_checked_to_the_end():
    found = invoke_on("""\
from crawlcw import Spider
class Port(Spider):
    name = "port"
    start_urls = "https://example.com/"
    def parse(self, response):
        from scrapy.shell import inspect_response
        inspect_response(response, self)
""")

    assert [each.partition(" -> ")[0] for each in found] == [
        "     6  import of scrapy.shell.inspect_response",
        "     7  inspect_response",
        "     -  Port.start_urls is a single text: write a list",
    ]


def invoke_on(source: str) -> list[str]:
    Path("port.py").write_text(source)
    heading, *findings = invoke("check", "port.py").stdout.partition("\n\n")[0].splitlines()
    assert heading in ("port.py", "port: no mistake found")
    return findings


def test_programs_have_the_same_by_json():
    Path("spiders/old.py").write_text(QUOTES)

    run = invoke("check", "quotes", "--json")

    shown = json.loads(run.stdout)
    assert run.returncode == 2
    assert (shown["spider"], shown["file"]) == ("quotes", "spiders/old.py")
    assert shown["findings"][1] == {
        "file": "spiders/old.py",
        "line": 5,
        "message": "allowed_domains -> allowed_hosts (guide spiders)",
        "code": "allowed_domains",
        "replacement": "allowed_hosts",
        "guide": "spiders",
    }


def test_the_demos_and_examples_have_nothing_wrong(monkeypatch: pytest.MonkeyPatch):
    root = Path(__file__).parents[2]
    monkeypatch.chdir(root)
    for path in [*(root / "spiders").glob("*.py"), *(root / "examples").glob("*spider*.py")]:
        run = invoke("check", str(path))
        assert run.returncode == 0, run.stdout + run.stderr


def test_every_section_that_a_finding_names_is_in_the_guide():
    sections = {
        text
        for module in (scrapy_names, requests, state)
        for text in re.findall(r'"([a-z]+#[^"]+)"', Path(module.__file__).read_text())
    }

    assert len(sections) > 5
    for name, _, heading in (each.partition("#") for each in sections):
        assert re.search(rf"^##+ {re.escape(heading)}$", page(name).text, re.MULTILINE), heading


def test_every_counterpart_of_a_setting_is_a_setting():
    names = {name for name, _ in described()}
    counterparts = {each for text in SETTINGS.values() for each in re.findall(r"^(\w+)=", text)}

    assert counterparts <= names


def test_the_guides_spiders_are_told_what_the_guide_shows():
    guide = page("scrapy").text
    sources = re.findall(r"```python\n(# spiders/quotes\.py\n.*?)```", guide, re.DOTALL)
    outputs = re.findall(r"```console\n\$ crawlcw check quotes\n(.*?)```", guide, re.DOTALL)

    for source, output in zip(sources, outputs, strict=True):
        Path("spiders/quotes.py").write_text(source)
        assert invoke("check", "quotes").stdout == output


def test_a_layer_that_is_none_is_named(folder: Path):
    (folder / "shop.py").write_text(
        "from crawlcw import Spider\n"
        "class Signed:\n"
        "    def __call__(self, attempt, request, call_next): ...\n"
        "class Shop(Spider):\n"
        "    name = 'shop'\n"
        "    start_urls = ['http://a.example/']\n"
        "    layers = [Signed()]\n"
        "    def parse(self, response): yield {}\n"
    )

    wrong = invoke("check", "shop.py")
    (folder / "shop.py").write_text((folder / "shop.py").read_text().replace("[Signed()]", "[]"))
    named = invoke("check", "shop.py", "-s", "layers=nowhere:Layer")

    assert (wrong.returncode, named.returncode) == (2, 2)
    assert "Shop.layers: Signed is not `async`" in wrong.stdout
    assert "setting layers: 'nowhere:Layer' cannot be loaded" in named.stdout
