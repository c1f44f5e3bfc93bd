"""The commands for writing a spider, on a site served over HTTP."""

import json
import os
import pty
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_cli import PATIENCE, command, crawlcw, environment, read_all
from tests.support import docs, member_site
from tests.support.commands import invoke
from tests.support.member_site import MemberSite

PAGES = {
    "index.html": "<title>Home \x1b[2J</title><h1>Hi</h1>"
    "<a href='a.html'>a</a><a href='mailto:x@y'>m</a><a href='http://other.example/'>o</a>",
    "a.html": "<title>A</title>",
    "article.html": "<nav>menu</nav><main><h1>Hi\x1b</h1><p hidden>obey</p>"
    "<p>see <a href='a.html'>a</a></p></main>",
    "long.html": f"<p>{'word ' * 500}&#x202e;</p>",
    "plain.txt": "text",
    "robots.txt": "User-agent: *\nDisallow: /a.html\n",
}
SPIDER = """\
from crawlcw import Settings, Spider, StopCrawl

class Pages(Spider):
    name = "pages"
    start_urls = ["http://127.0.0.1:9/"]
    settings = Settings(obey_robots=False)

    def parse(self, response):
        yield {"title": response.css_first("title").text(), "kind": response.context.get("kind")}
        yield from response.follow_all("a", self.parse_page)

    def parse_page(self, response):
        raise LookupError("no price")
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("site")
    for name, text in PAGES.items():
        (folder / name).write_text(text)
    with docs.served(folder) as site:
        yield site.start.removesuffix("index.html")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "spiders").mkdir()
    (tmp_path / "spiders" / "pages.py").write_text(SPIDER)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_parse_shows_items_requests_and_what_is_left_out(home: str):
    run = invoke("parse", "pages", f"{home}index.html", "--context", '{"kind": "front"}')

    item, request, *left_out = run.stdout.splitlines()
    assert run.returncode == 0
    assert json.loads(item) == {"title": "Home \x1b[2J", "kind": "front"}
    assert request.split() == ["parse_page", "GET", f"{home}a.html"]
    assert left_out == [
        "dropped: 1 refused-scope: http://other.example/",
        "dropped: 1 refused-scheme: mailto:x@y",
    ]
    assert run.stderr.startswith(f"200 {home}index.html  ")
    assert run.stderr.endswith("1 item, 1 request\n")
    assert "\x1b" not in run.stdout + run.stderr
    assert not Path(".crawlcw").exists()


def test_the_callback_of_parse_may_fetch_more(home: str, folder: Path):
    spider = folder / "spiders" / "pages.py"
    spider.write_text(
        SPIDER.replace("def parse(self", "async def parse(self")
        .replace("yield from response", "for request in response")
        .replace("self.parse_page)", "self.parse_page): yield request")
        .replace('response.context.get("kind")', '(await response.fetch("a.html")).text')
    )

    run = invoke("parse", "pages", f"{home}index.html")

    assert json.loads(run.stdout.splitlines()[0])["kind"] == PAGES["a.html"]


def test_parse_as_one_object(home: str):
    run = invoke("parse", "pages", f"{home}index.html", "--json")

    found = json.loads(run.stdout)
    assert found["items"] == [{"title": "Home \x1b[2J", "kind": None}]
    assert [request["url"] for request in found["requests"]] == [f"{home}a.html"]
    assert found["links_dropped"] == {"refused-scope": 1, "refused-scheme": 1}


def test_a_callback_that_raises_is_shown_with_the_spiders_own_line(home: str):
    run = invoke("parse", "pages", f"{home}a.html", "-c", "parse_page")

    assert run.returncode == 3
    assert run.stdout == ""
    assert "parse_page failed: LookupError: no price" in run.stderr
    assert 'pages.py", line 13' in run.stderr


def test_fetch_gives_the_body_as_it_is(home: str):
    run = invoke("fetch", f"{home}index.html")

    assert (run.returncode, run.stdout) == (0, PAGES["index.html"])


def test_fetch_lets_no_page_act_on_a_terminal(home: str):
    ours, theirs = pty.openpty()
    run = subprocess.Popen(
        command("fetch", f"{home}index.html"),
        stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL, env=environment(),
    )  # fmt: skip
    os.close(theirs)
    shown = b"".join(read_all(ours))

    assert run.wait(PATIENCE) == 0
    assert b"\x1b" not in shown
    assert rb"Home \x1b[2J" in shown


def test_fetch_prints_markdown(home: str):
    main = invoke("fetch", f"{home}article.html", "--markdown")
    whole = invoke("fetch", f"{home}article.html", "--markdown", "--whole")

    assert (main.returncode, main.stdout) == (0, f"# Hi\n\nsee [a]({home}a.html)\n")
    assert main.stderr.endswith("left out: 1 hidden part\n")
    assert whole.stdout == f"menu\n\n{main.stdout}"


def test_fetch_writes_a_file(home: str):
    body = invoke("fetch", f"{home}index.html", "-o", "page.html")
    markdown = invoke("fetch", f"{home}article.html", "-o", "page.md")

    assert (body.returncode, body.stdout) == (0, "")
    assert (markdown.returncode, markdown.stdout) == (0, "")
    assert Path("page.html").read_text() == PAGES["index.html"]
    assert Path("page.md").read_text().startswith("# Hi\n")


def test_fetch_shows_long_lines_of_markdown_on_a_terminal(home: str):
    ours, theirs = pty.openpty()
    run = subprocess.Popen(
        command("fetch", f"{home}long.html", "--markdown"),
        stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL, env=environment(),
    )  # fmt: skip
    os.close(theirs)
    shown = b"".join(read_all(ours))

    assert run.wait(PATIENCE) == 0
    assert shown.decode().split() == ["word"] * 500


def test_fetch_asks_robots_txt_unless_it_is_told_not_to(home: str):
    refused = invoke("fetch", f"{home}a.html")
    allowed = invoke("fetch", f"{home}a.html", "-s", "obey_robots=false", "--headers")
    by_spider = invoke("fetch", f"{home}a.html", "--spider", "pages")

    assert refused.returncode == 3
    assert f"robots.txt disallows {home}a.html (-s obey_robots=false" in refused.stderr
    assert (allowed.returncode, by_spider.returncode) == (0, 0)
    assert "content-type: text/html" in allowed.stdout
    assert by_spider.stdout == PAGES["a.html"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["fetch", "nonsense"], 2, "not a URL to fetch: 'nonsense' is neither http nor https"),
        (["fetch", "ftp://me:secret@x/"], 2, "not a URL to fetch: 'ftp://***@x/' is neither"),
        (["fetch", "{home}none.html"], 3, "404 "),
        (["fetch", "{home}plain.txt", "--markdown"], 3, "--markdown needs an HTML page, and this"),
        (["fetch", "{home}", "--whole"], 2, "--whole is about Markdown: add --markdown"),
        (["fetch", "{home}", "--markdown", "--headers"], 2, "--headers prints no page"),
        (["fetch", "{home}article.html", "-o", "no/x.md"], 2, "cannot write no/x.md: No such file"),
        (["parse", "pages", "{home}none.html"], 3, "a crawl would not parse this response"),
        (["parse", "pages", "{home}", "-c", "nope"], 2, "Pages has no callback 'nope'"),
        (["parse", "pages", "{home}", "--context", "[]"], 2, "--context takes a JSON object"),
        (["parse", "page", "{home}"], 2, "did you mean pages?"),
        (["new", "1st"], 2, "'1st' is not a spider name"),
        (["new", "pages"], 2, "spiders/pages.py exists already"),
        (["new", "shop", "ftp://me:secret@x/"], 2, "not a URL to fetch: 'ftp://***@x/' is neither"),
        (["check", "nothing"], 2, "there is no spider 'nothing'"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_a_mistake_is_one_line(home: str, arguments: list[str], code: int, said: str):
    run = invoke(*(argument.format(home=home) for argument in arguments))

    assert run.returncode == code
    assert said in run.stderr
    assert "Traceback" not in run.stderr
    assert "secret" not in run.stderr
    assert Path("spiders/pages.py").read_text() == SPIDER


def test_the_shell_has_the_page_and_the_spiders_callbacks(home: str):
    run = subprocess.run(
        command("shell", f"{home}index.html", "--spider", "pages"),
        input=f'response.css_first("h1").text()\nfetch("{home}a.html")\nparse()\nparse("nope")\n',
        capture_output=True, text=True, timeout=PATIENCE, env=environment(), check=True,
    )  # fmt: skip

    assert run.stdout.splitlines() == [
        ">>> 'Hi'",
        f">>> <Response 200 '{home}a.html'>",
        ">>> [{'title': 'A', 'kind': None}]",
        ">>> >>> ",
    ]
    assert "Pages has no callback 'nope'" in run.stderr


def test_a_new_spider_runs(home: str):
    made = invoke("new", "my-shop", f"{home}index.html?q=%22'")
    checked = invoke("check", "my-shop")
    run = crawlcw("run", "my-shop", "-s", "obey_robots=false", "-o", "-", "-q")

    assert made.returncode == 0
    assert "Wrote spiders/my_shop.py" in made.stdout
    assert (checked.returncode, checked.stdout) == (0, "my-shop: no mistake found\n")
    assert run.returncode == 0
    assert len(run.stdout.splitlines()) == 2


@pytest.mark.parametrize("name", ["spider", "settings", "class", "a-b_c"])
def test_any_name_of_a_spider_makes_one_that_can_be_loaded(name: str):
    invoke("new", name)

    assert invoke("check", name).stdout == f"{name}: no mistake found\n"


OWN_WAY = """\
from crawlcw import Request, Response, Settings, Spider

class Wrapping:
    def __init__(self, inner):
        self.inner = inner

    async def fetch(self, request, *, url):
        response = await self.inner.fetch(request, url=url)
        response.headers = {**response.headers, "x-wrapped": "yes"}
        return response

    async def close(self):
        await self.inner.close()

class Own(Spider):
    name = "own"
    start_urls = ["http://127.0.0.1:9/"]

    def downloader(self, default):
        return Wrapping(default)

    def before_request(self, request):
        if request.url.endswith("/raises"):
            raise LookupError("no token")

    async def after_response(self, response):
        response.body += b"<h2>hooked</h2>"

    def parse(self, response):
        yield {"wrapped": response.headers["x-wrapped"], "h2": response.css_first("h2").text()}
"""


def test_the_hooks_and_the_downloader_of_a_spider_are_those_of_a_crawl(home: str, folder: Path):
    (folder / "spiders" / "own.py").write_text(OWN_WAY)

    parsed = invoke("parse", "own", f"{home}index.html")
    fetched = invoke("fetch", f"{home}index.html", "--spider", "own")
    raised = invoke("fetch", f"{home}raises", "--spider", "own")

    assert json.loads(parsed.stdout) == {"wrapped": "yes", "h2": "hooked"}
    assert fetched.stdout.endswith("<h2>hooked</h2>")
    assert raised.returncode == 3
    assert raised.stderr == ("crawlcw: parse-error: before_request raised LookupError: no token\n")


ENDING = """\
from crawlcw import Defer, Spider, StopCrawl

class Ending:
    wire = True

    def __init__(self, purpose, error):
        self.purpose, self.error = purpose, error

    async def __call__(self, attempt, request, call_next):
        if attempt.purpose == self.purpose:
            raise self.error
        return await call_next(attempt, request)

class Ends(Spider):
    name = "ends"
    start_urls = ["http://127.0.0.1:9/"]
    layers = [Ending({purpose!r}, {error})]
"""


@pytest.mark.parametrize(
    ("purpose", "error", "said"),
    [
        ("page", 'StopCrawl("enough")', "unwanted: the crawl would stop: enough"),
        ("robots", 'StopCrawl("enough")', "unwanted: the crawl would stop: enough"),
        ("page", 'Defer("not yet")', "unwanted: the page would be deferred: not yet"),
    ],
)
def test_what_a_layer_would_do_to_a_crawl_is_told(
    purpose: str, error: str, said: str, home: str, folder: Path
):
    code = ENDING.format(purpose=purpose, error=error)
    (folder / "spiders" / "ends.py").write_text(code)

    done = invoke("fetch", f"{home}index.html", "--spider", "ends")

    assert (done.returncode, done.stderr) == (3, f"crawlcw: {said}\n")


MEMBERS = """\
from tests.support.member_site import Members as Base

class Members(Base):
    start_urls = ["{base}/in/0"]
    login_when = 401
"""


@pytest.fixture
def members(folder: Path) -> Iterator[MemberSite]:
    with member_site.served(5) as site:
        (folder / "spiders" / "members.py").write_text(MEMBERS.format(base=site.base))
        yield site


def test_a_page_behind_a_login_is_parsed_and_nothing_is_stored(members: MemberSite):
    parsed = invoke("parse", "members", f"{members.base}/in/1")
    fetched = invoke("fetch", f"{members.base}/in/2", "--spider", "members")

    assert json.loads(parsed.stdout.splitlines()[0]) == {"path": "in/1", "user": "default"}
    assert (parsed.returncode, fetched.returncode) == (0, 0)
    assert fetched.stdout.startswith("default\n")
    assert len(members.logins) == 2
    assert not Path(".crawlcw").exists()


def test_a_login_that_fails_is_told(members: MemberSite):
    run = invoke("parse", "members", f"{members.base}/in/1", "-a", "password=wrong")

    assert run.returncode == 3
    assert "session default is not ready: login() failed" in run.stderr
    assert "wrong" not in run.stderr
    assert members.refused.total() == 0, "the page was not requested"


ANNOTATED = """\
from dataclasses import dataclass
from typing import Annotated

from crawlcw import Css, JsonLd, Settings, Spider

@dataclass
class Page:
    title: Annotated[str, Css("h2"), Css("h1")]
    author: Annotated[str | None, JsonLd("author.name")]

@dataclass
class Link:
    url: Annotated[str, Css("a", attr="href")]

class TypedPages(Spider):
    name = "annotated"
    settings = Settings(obey_robots=False)
    start_urls = ["http://127.0.0.1:9/"]

    def parse(self, response):
        yield response.extract(Page)
        yield from response.extract_all(Link, "a")
"""


def test_parse_shows_the_selector_that_filled_each_field(home: str, folder: Path):
    (folder / "spiders" / "annotated.py").write_text(ANNOTATED)

    run = invoke("parse", "annotated", f"{home}index.html")

    assert json.loads(run.stdout.splitlines()[0]) == {"title": "Hi", "author": None}
    assert [line for line in run.stdout.splitlines() if line.startswith("field: ")] == [
        "field: Page.title: Css('h1'), 1 time",
        "field: Page.author: no selector has a value",
        "field: Link.url: Css('a', attr='href'), 3 times",
    ]
    as_json = invoke("parse", "annotated", f"{home}index.html", "--json")
    assert json.loads(as_json.stdout)["fields"] == [
        {"field": "Page.title", "selector": "Css('h1')", "count": 1},
        {"field": "Page.author", "selector": None, "count": 1},
        {"field": "Link.url", "selector": "Css('a', attr='href')", "count": 3},
    ]


def test_parse_names_the_field_that_is_missing(home: str, folder: Path):
    without_h1 = ANNOTATED.replace(', Css("h1")', "")
    (folder / "spiders" / "annotated.py").write_text(without_h1)

    run = invoke("parse", "annotated", f"{home}index.html")

    assert run.returncode == 3
    assert "Page.title is missing: no value from Css('h2') (page http" in run.stderr
