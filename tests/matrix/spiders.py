"""Spiders of the matrix, each for some public features; `-a base=` is the site's URL.

Items have paths and no URLs, since each run has its own port.
"""

import asyncio
from dataclasses import dataclass
from itertools import count
from typing import Annotated
from urllib.parse import urlsplit

from crawlcw import (
    Css,
    DropItem,
    FetchError,
    Limit,
    Request,
    Rule,
    Settings,
    SitemapSpider,
    Spider,
    url_list,
)

#: Long timeouts, so that a kill does not look like a slow host.
PACE = Settings(
    per_host_concurrency=4,
    concurrency=8,
    auto_throttle=False,
    backoff_base="0.1s",
    backoff_max="0.2s",
)


class Tree(Spider):
    """Follow all links of one kind of page, and record each page's title."""

    kind = "tree"
    settings = PACE
    base = ""

    @property
    def start_urls(self):
        return [f"{self.base}/{self.kind}/0"]

    def parse(self, response):
        yield self.record(response)
        yield from response.follow_all("a")

    def record(self, response, **more):
        return {"path": urlsplit(response.url).path, "title": title(response), **more}


def title(response):
    return response.css_first("h1").text()


class Plain(Tree):
    """Requests with all of their fields, and the scope."""

    name = "plain"
    limits = {"127.0.0.1": Limit(concurrency=4)}
    allowed_hosts = ["127.0.0.1"]
    invalid_items = "item"

    async def start(self):
        for number in (0, 1, 2):
            yield Request(
                f"{self.base}/tree/{number}", self.parse, context={"from": "start"}, priority=number
            )
        for number, body in enumerate([{"json": {"a": 1}}, {"data": {"a": "1"}}, {"body": b"a"}]):
            yield Request(f"{self.base}/echo/{number}", "parse_echo", method="PUT", **body)
        yield Request(f"{self.base}/echo/3", self.parse_echo, headers={"X-Kind": "h"})
        yield Request(f"{self.base}/echo/4", self.parse_echo, cookies={"k": "c"})
        yield Request(f"{self.base}/echo/4", self.parse_echo, dont_filter=True, max_depth=0)
        yield Request(f"{self.base}/echo/5", self.parse_echo, fingerprint=b"fifth")

    def parse(self, response):
        self.logger.debug("one page")
        yield self.record(response, came=response.context["from"], status=response.status)
        yield {"path": "bad", "value": object()}
        here = {"from": urlsplit(response.url).path}
        for link in response.css("a"):
            yield response.follow(link, context=here, max_body=10_000, truncate=True, timeout="20s")
        yield Request("http://127.0.0.2:9/elsewhere")

    def parse_echo(self, response):
        yield {"path": urlsplit(response.url).path, **response.json(), "size": response.size > 0}


class Keyed(Tree):
    """An item for each page and each link, so that several pages have an equal item."""

    name = "keyed"
    item_key = "about"

    def parse(self, response):
        links = [urlsplit(response.urljoin(a.attrs["href"])).path for a in response.css("a")]
        yield from ({"about": path} for path in (urlsplit(response.url).path, *links))
        yield from response.follow_all("a")


class KeyedLast(Keyed):
    name = "keyedlast"
    item_key_wins = "last"


class Selecting(Tree):
    """Selectors as in Scrapy."""

    name = "selecting"
    selectors = "parsel"

    def parse(self, response):
        yield {"path": urlsplit(response.url).path, "title": response.css("h1::text").get()}
        yield from response.follow_all(response.css("a"))


@dataclass
class Heading:
    title: Annotated[str, Css("h1")]


class Reading(Tree):
    """All attributes and methods of a response."""

    name = "reading"
    kind = "rich"

    def parse(self, response):
        [thing] = response.jsonld("Thing")
        yield {
            "meta": response.meta["og:title"],
            "json": thing["name"],
            "xpath": response.xpath("//h1/text()").get(),
            "selector": response.selector.css("h1::text").get(),
            "base": urlsplit(response.base_url).path,
            "encoding": response.encoding,
            "text": "h1" in response.text,
            "robots": response.robots.noindex,
            "refresh": response.refresh,
            "type": response.headers["content-type"],
            "whole": response.truncated is None and response.elapsed.total_seconds() >= 0,
            "joined": urlsplit(response.urljoin("x")).path,
            "page": response.page,
            "own": response.request.callback,
            "body": len(response.body) > 0,
            "item": response.extract(Heading).title,
            "items": len(response.extract_all(Heading, "h1")),
            "markdown": response.markdown(main=False).startswith("#"),
            "article": response.article().title,
            "html": response.is_html,
            "canonical": response.canonical,
            "policy": response.referrer_policy,
        }
        yield from response.follow_all("a")


class Asynchronous(Tree):
    """Callbacks that await, lists, and clean-up."""

    name = "asynchronous"
    start_again = True

    async def opened(self):
        self._sent = count()

    async def closed(self, report):
        self.logger.info("pages: %d", report.pages)

    async def start(self):
        async for request in super().start():
            yield request
        while await self.has_pages():
            await asyncio.sleep(0.05)

    async def parse(self, response):
        echo = await self.fetch(Request(f"{self.base}/echo/9", headers={"X-Kind": "fetch"}))
        yield self.record(response, echo=echo.status)
        for link in response.css("a"):
            yield response.follow(link, self.parse_list)

    def parse_list(self, response):
        return [self.record(response), *response.follow_all("a", self.parse_coroutine)]

    async def parse_coroutine(self, response):
        echo = await response.fetch("/echo/8")
        return [self.record(response, echo=echo.status), *response.follow_all("a", self.parse)]


class Hooked(Tree):
    """All hooks of a page."""

    name = "hooked"

    def downloader(self, default):
        return Doubled(default)

    def before_request(self, request):
        request.set_header("X-Hook", "yes")

    async def after_response(self, response):
        await asyncio.sleep(0)
        response.headers["x-seen"] = response.request.url.rpartition("/")[2]

    def parse(self, response):
        seen = response.headers["x-seen"], response.headers["x-doubled"]
        yield self.record(response, seen=list(seen))
        yield from response.follow_all("a")


class Again:
    async def __call__(self, attempt, request, call_next):
        await call_next(attempt, request)
        response = await call_next(attempt, request)
        response.headers["x-asked"] = "twice"
        response.is_page = True
        return response


class OnTheWire:
    wire = True

    async def __call__(self, attempt, request, call_next):
        response = await call_next(attempt, request)
        response.headers["x-wire"] = attempt.purpose
        return response


class Layered(Tree):
    """A layer that repeats requests, and a layer at the transport."""

    name = "layered"

    layers = (Again(), OnTheWire())

    def parse(self, response):
        yield self.record(response, seen=[response.headers["x-asked"], response.headers["x-wire"]])
        yield from response.follow_all("a")


class Doubled:
    """A downloader that wraps another one."""

    def __init__(self, default):
        self._default = default

    async def fetch(self, request, *, url):
        response = await self._default.fetch(request, url=url)
        response.headers["x-doubled"] = dict(request.headers).get("X-Hook", "")
        return response

    async def close(self):
        """Have nothing to close."""


@dataclass
class Book:
    path: str
    title: str


class Items(Tree):
    """Items that are changed, split and dropped."""

    name = "items"

    def record(self, response):
        return Book(urlsplit(response.url).path, title(response))

    async def item(self, item, response):
        if item.title.endswith("7"):
            raise DropItem("a seven")
        yield {"path": item.path, "title": item.title}
        if item.title.endswith("3"):
            yield {"path": urlsplit(response.url).path, "title": "a three"}


class Ruled(Tree):
    """Links followed by rules."""

    name = "ruled"
    rules = (
        Rule(allow=r"/tree/\d*[02468]$", callback="parse_even", follow=True),
        Rule(restrict="body", allow_domains="127.0.0.1", deny_domains="elsewhere.example"),
        Rule(restrict_xpath="//body", restrict_text=r"\w", process_links="half_of"),
    )

    def half_of(self, links):
        return [link for link in links if link.url[-1] in "02468"]

    def parse(self, response):
        yield self.record(response, by="parse")

    def parse_even(self, response):
        yield self.record(response, by="even")


class Forms(Tree):
    """Forms that are filled in and sent."""

    name = "forms"
    kind = "search"

    @property
    def start_urls(self):
        return [f"{self.base}/search"]

    def parse(self, response):
        yield self.record(response)
        for form in response.css("form"):
            yield response.form(f"form#{form.attributes['id']}", self.parse).submit(q="word")


class Rude(Tree):
    """Pages that fail, once or always, and the methods that hear of it."""

    name = "rude"
    kind = "rude"

    def parse(self, response):
        yield self.record(response)
        for number, link in enumerate(response.css("a")):
            errback = self.told if number else None
            yield response.follow(link, errback=errback, max_retry=4, retry_statuses=[503])
        yield Request(
            f"{self.base}/rude/9", self.parse_refusal, accept_statuses=[405], dont_filter=True
        )

    def parse_refusal(self, response):
        yield {"path": "accepted", "status": response.status, "text": response.text}

    def told(self, request: Request, error: FetchError):
        yield {
            "path": urlsplit(request.url).path,
            "told": str(error.reason),
            "status": error.status,
        }

    def on_error(self, request: Request, error: FetchError):
        yield {"path": urlsplit(request.url).path, "error": error.response.text}


class Moved(Tree):
    """Redirects, by the server and by the page."""

    name = "moved"
    kind = "moved"


class LoggedIn(Tree):
    """A session with a login; `login_when` recognises a logout by `css`."""

    name = "logged_in"
    kind = "member"
    default_session = "ada"

    async def login(self, session):
        welcome = await session.submit(Request(f"{self.base}/login", data={"password": "open"}))
        session.headers["X-Token"] = "t-77"
        session.data["team"] = session.name, len(welcome.set_cookies)

    def login_when(self, response):
        return response.css_first("form#login") is not None

    def parse(self, response):
        yield self.record(response, team=response.session.data["team"], name=response.session.name)
        yield from response.follow_all("a")
        # Another session, with its own login.
        yield from response.follow_all("a:last-child", session="bob", dont_filter=True)


class Pooled(Tree):
    """A pool of sessions, which the site forces to change."""

    name = "pooled"
    kind = "metered"
    settings = Settings(
        per_host_concurrency=3,
        concurrency=6,
        auto_throttle=False,
        sessions=3,
        backoff_base="0.1s",
        backoff_max="0.2s",
    )

    def banned_when(self, response):
        return response.css_first("#captcha") is not None


class Retiring(Pooled):
    """The same, with sessions retired by the callback."""

    name = "retiring"
    banned_when = None

    def parse(self, response):
        if response.css_first("#captcha"):
            response.session.retire("a captcha")
            return
        yield self.record(response)
        yield from response.follow_all("a")


class Proxied(Tree):
    """Two proxies, one of them banned by the site; `-a proxies=` names both."""

    name = "proxied"
    kind = "proxied"

    def __init__(self, *, proxies, **arguments):
        super().__init__(**arguments)
        self._own = proxies.split(",")[1]

    def banned_when(self, response):
        return response.css_first("#captcha") is not None

    def parse(self, response):
        yield self.record(response, proxied=response.proxy is not None)
        for number, link in enumerate(response.css("a")):
            yield response.follow(link, proxy=self._own if number else None)


class Saving(Tree):
    """Files, by each page of a tree: one as a page, one in an item."""

    name = "saving"

    def parse(self, response):
        yield from response.follow_all("a")
        film = urlsplit(response.url).path.replace("tree", "film")
        yield response.follow(film, self.parse_film, save_to="films")
        yield {"film": film, "copy": response.follow(f"{film}?copy", save_to="films")}

    def parse_film(self, response):
        file = response.file
        yield {"name": file.path.rpartition("/")[2], "size": file.size, "sha256": file.sha256}


class Kept(Tree):
    """Pages whose bodies are kept in WARC files."""

    name = "kept"


class Cached(Tree):
    """Pages that are answered from a cache for development."""

    name = "cached"


class Revisited(Tree):
    """Pages that are visited again, some in each run."""

    name = "revisited"
    kind = "versioned"

    def parse(self, response):
        yield self.record(response)
        yield from response.follow_all("a:first-child", each_run=True)
        yield from response.follow_all("a", revisit="1h", changed=None)


class Mapped(SitemapSpider):
    """Pages that a sitemap lists."""

    name = "mapped"
    settings = PACE
    base = ""

    @property
    def sitemap_urls(self):
        return [f"{self.base}/sitemap.xml.gz"]

    def parse(self, response):
        yield {"path": urlsplit(response.url).path, "title": title(response)}


class Listed(Tree):
    """Pages of a list, which is read as a stream."""

    name = "listed"

    @property
    def start_urls(self):
        return [f"{self.base}/list.txt"]

    @url_list
    def parse(self, response):
        for line in response.text.splitlines():
            yield response.follow(line, self.parse_page, max_depth=0)

    def parse_page(self, response):
        yield self.record(response)


class Rendered(Tree):
    """Pages that scripts make."""

    name = "rendered"
    kind = "scripted"

    async def parse(self, response):
        shown = await response.page.inner_text("h1")
        yield self.record(response, shown=shown)
        for link in response.css("a"):
            yield response.follow(link, browser=True)

    async def start(self):
        yield Request(f"{self.base}/scripted/0", browser=True)


class Stateful(Tree):
    """Pages that count themselves, and read the state of their parent page."""

    name = "stateful"

    def parse(self, response):
        self.state.add("pages")
        number = urlsplit(response.url).path.rpartition("/")[2]
        yield self.record(response, above=self.state.get(f"above {number}"))
        for link in response.css("a"):
            self.state[f"above {link.text()}"] = title(response)
            yield response.follow(link)
