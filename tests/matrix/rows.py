"""Rows of the matrix: a spider for each group of public features, and the names that it covers."""

from dataclasses import dataclass

from crawlcw import Request, Response, Rule, SitemapSpider, Spider
from crawlcw.api.response import PageSession, SavedFile
from crawlcw.api.sessions import LoginSession
from tests.matrix import spiders

#: Classes whose public names a spider's author uses.
PUBLIC = (Spider, SitemapSpider, Request, Rule, Response, PageSession, LoginSession, SavedFile)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One spider, its command, and the public names that it uses, as `Class.name`."""

    spider: type[Spider]
    shows: frozenset[str]
    settings: tuple[str, ...] = ()  #: `name=value`
    again: str = ""  #: the command between a first whole run and the killed run
    proxied: bool = False
    browser: bool = False

    @property
    def name(self) -> str:
        return str(self.spider.name)


def names(kind: str, text: str) -> frozenset[str]:
    return frozenset(f"{kind}.{name}" for name in text.split())


ROWS = (
    Row(
        spider=spiders.Plain,
        shows=names("Spider", "name settings limits allowed_hosts invalid_items start logger")
        | names("Request", "url callback method headers body json data context priority")
        | names("Request", "dont_filter fingerprint timeout truncate max_body max_depth cookies")
        | names("Response", "request context status json size follow css"),
    ),
    Row(spider=spiders.Keyed, shows=names("Spider", "item_key")),
    Row(spider=spiders.KeyedLast, shows=names("Spider", "item_key_wins")),
    Row(spider=spiders.Selecting, shows=names("Spider", "selectors")),
    Row(
        spider=spiders.Reading,
        shows=names("Response", "meta jsonld xpath selector base_url encoding text robots refresh")
        | names("Response", "extract extract_all")
        | names("Response", "markdown article is_html canonical referrer_policy")
        | names("Response", "headers truncated elapsed urljoin page url body feed")
        | names("Settings", "obey_robots"),
    ),
    Row(
        spider=spiders.Asynchronous,
        shows=names("Spider", "parse start_urls start_again opened closed has_pages fetch")
        | names("Response", "follow_all css_first fetch"),
    ),
    Row(
        spider=spiders.Hooked,
        shows=names("Spider", "downloader before_request after_response")
        | names("Request", "set_header"),
    ),
    Row(spider=spiders.Layered, shows=names("Spider", "layers") | names("Response", "is_page")),
    Row(spider=spiders.Items, shows=names("Spider", "item")),
    Row(
        spider=spiders.Ruled,
        shows=names("Spider", "rules")
        | names("Rule", "allow deny extensions deny_extensions restrict callback follow options")
        | names("Rule", "allow_domains deny_domains restrict_xpath restrict_text process_links"),
    ),
    Row(spider=spiders.Forms, shows=names("Response", "form")),
    Row(
        spider=spiders.Rude,
        shows=names("Spider", "on_error")
        | names("Request", "errback max_retry retry_statuses accept_statuses"),
    ),
    Row(spider=spiders.Moved, shows=names("Settings", "max_redirects")),
    Row(
        spider=spiders.LoggedIn,
        shows=names("Spider", "login login_when default_session")
        | names("Request", "session")
        | names("Response", "session set_cookies")
        | names("PageSession", "name data")
        | names("LoginSession", "name data headers origins fetch submit add_cookies"),
    ),
    Row(
        spider=spiders.Pooled, shows=names("Spider", "banned_when") | names("Settings", "sessions")
    ),
    Row(spider=spiders.Retiring, shows=names("PageSession", "retire retired")),
    Row(
        spider=spiders.Proxied,
        shows=names("Request", "proxy") | names("Response", "proxy") | names("Settings", "proxies"),
        proxied=True,
    ),
    Row(
        spider=spiders.Saving,
        shows=names("Request", "save_to saves_file")
        | names("Response", "file")
        | names("SavedFile", "path name size sha256"),
    ),
    Row(
        spider=spiders.Kept,
        shows=names("Settings", "keep_bodies"),
        settings=("keep_bodies=true",),
    ),
    Row(spider=spiders.Cached, shows=names("Settings", "cache"), settings=("cache=dev",)),
    Row(
        spider=spiders.Revisited,
        shows=names("Request", "revisit each_run changed"),
        again="recrawl",
    ),
    Row(
        spider=spiders.Mapped,
        shows=names("SitemapSpider", "sitemap_urls sitemap_rules sitemap_follow sitemap_filter")
        | names("SitemapSpider", "sitemap_alternate_links sitemap_request parse_sitemap")
        | names("SitemapSpider", "sitemap_error"),
    ),
    Row(spider=spiders.Listed, shows=names("crawlcw", "url_list")),
    Row(spider=spiders.Stateful, shows=names("Spider", "state")),
    Row(
        spider=spiders.Rendered,
        shows=names("Request", "browser") | names("Settings", "browser"),
        browser=True,
    ),
)

#: Names that no item depends on, each with the reason.
NO_ITEM_DEPENDS = {
    "Spider.on_idle": "it concerns a crawl, not a page",
    "Spider.on_failure_rate": "it concerns a crawl, not a page",
    "Request.refused": "the crawl makes such requests from invalid links",
    "Request.of": "the crawl makes requests from tasks with it",
    "Request.at": "the crawl makes requests from a page's links with it",
    "Request.retargeted": "the crawl makes the requests of redirects with it",
    "Request.identity": "a query about a request",
    "Request.task": "the crawl makes tasks with it",
    "Request.locate": "the crawl makes tasks with it",
    "Request.with_location": "the crawl makes the requests of a page's other links with it",
    "Request.plain_url": "the crawl sorts links by it",
    "Request.options": "the arguments of a request, as they are stored",
    "Rule.css": "the crawl selects links with it",
    "Rule.requests": "the crawl makes the requests of a page with it",
    "LoginSession.send": "the crawl passes this argument",
    "LoginSession.add_cookie": "the crawl passes this argument",
    "Response.sends": "the crawl sets the function behind `fetch`",
    "Response.source": "an argument of the base class",
    "Response.tree": "the crawl makes trees with it",
    "Response.needs_tree": "a room of crawlcw says by it that its responses need no tree",
    "Response.selector_kind": "the crawl makes trees with it",
    "Response.dropped": "a count of links, for the report",
    "Response.following": "the crawl sets the rules for its links",
    "Response.trees": "the crawl sets the results of the parser",
    "Response.invalid_item_reasons": "the crawl counts the items that `extract_all` left out",
    "Response.field_sources": "`crawlcw parse` counts the selectors",
}
#: Settings about requests and storage of pages, which could change an item after a kill.
SETTINGS_OF_PAGES = (
    "obey_robots",
    "max_redirects",
    "sessions",
    "proxies",
    "keep_bodies",
    "cache",
    "browser",
)
